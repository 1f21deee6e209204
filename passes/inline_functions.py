"""Inline model-local functions and turn Constant nodes into initializers, so that one flat graph is left.

Before:
    g (float[N] x) => (float[N] y) { c = Constant <value_float = 2.0> ()  y = local.Scale (x, c) }
    <domain: "local"> Scale (a, b) => (r) { r = Mul (a, b) }
After:
    g (float[N] x) => (float[N] y) <float c = {2.0}> { y = Mul (x, c) }
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir
from onnx_ir.passes import common

from convopt.errors import ModelError
from convopt.ir.values import is_op, label
from convopt.passes.base import Note, PassContext, PassReport
from convopt.passes.upgrade_opset import WORKING_OPSET, UpgradeOpset


@dataclass(frozen=True)
class InlineFunctions:
    name: ClassVar[str] = "inline-functions"

    def run(self, model: ir.Model, context: PassContext) -> PassReport:
        notes = []
        calls = [n for n in model.graph.all_nodes() if n.op_identifier() in model.functions]
        if calls:
            notes = [Note(n.name or "", f"call of function {n.domain}.{n.op_type} inlined") for n in calls]
            _align_opsets(model, context)
            try:
                common.InlinePass()(model)
            except (ValueError, ir.passes.PreconditionError) as error:
                raise ModelError(f"functions can't be inlined: {error}") from error
        model.functions.clear()
        before = sum(is_op(n, "Constant") for n in model.graph.all_nodes())
        if before:
            # A Constant that is an output of the graph stays: an initializer can't be one everywhere.
            common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
        after = sum(is_op(n, "Constant") for n in model.graph.all_nodes())
        return PassReport(len(calls) + before - after, tuple(notes))


# Operators whose form changed behind WORKING_OPSET, and in which: an older node would mean something else.
_REFORMED = {"DFT": 20, "GridSample": 20, "GroupNormalization": 21}


def _align_opsets(model: ir.Model, context: PassContext) -> None:
    """Functions say their opsets themselves; the model must agree with those whose body it takes over.

    Standard operators of older opsets are brought to WORKING_OPSET first, in the model as in the functions.
    From there on all but a few operators have one form, so that the newest opset of all reads every body.
    """
    bodies = {"the model": model}
    for function in _called(model):
        bodies[f"function {function.domain}.{function.name}"] = ir.Model(function.graph, ir_version=8)
    for name, body in bodies.items():
        for domain, version in body.opset_imports.items():
            ours = model.opset_imports.setdefault(domain, version)
            if domain and ours != version:
                raise ModelError(
                    f"{name} uses opset {version} of domain {domain!r}, the model {ours}; expected the same"
                )
    versions = {name: body.opset_imports.get("", WORKING_OPSET) for name, body in bodies.items()}
    newest = max(WORKING_OPSET, *versions.values())
    if len(set(versions.values())) == 1:
        return
    for name, body in bodies.items():
        for node in body.graph.all_nodes():  # messages name nodes, and only the model's have a name for sure
            node.name = node.name or node.outputs[0].name
        UpgradeOpset().run(body, context)
        for node in body.graph.all_nodes():
            if is_op(node, *_REFORMED) and versions[name] < _REFORMED[node.op_type] <= newest:
                raise ModelError(
                    f"{label(node)} in {name}, of opset {versions[name]}, has another form in opset {newest},"
                    " which others have; expected the same opset"
                )
        body.opset_imports[""] = newest
        if body is not model:
            _without_initializers(body.graph)


def _called(model: ir.Model) -> list[ir.Function]:
    """The functions that the graph calls, also by way of others."""
    found: dict[ir.OperatorIdentifier, ir.Function] = {}
    bodies: list[ir.Graph] = [model.graph]
    for graph in bodies:  # grows while it is walked
        for node in graph.all_nodes():
            function = model.functions.get(node.op_identifier())
            if function is not None and node.op_identifier() not in found:
                found[node.op_identifier()] = function
                bodies.append(function.graph)
    return list(found.values())


def _without_initializers(graph: ir.Graph) -> None:
    """A function has none: its constants are nodes."""
    for name, value in list(graph.initializers.items()):
        assert value.const_value is not None
        node = ir.node("Constant", [], {"value": value.const_value}, name=name)
        value.replace_all_uses_with(node.outputs[0])
        node.outputs[0].name = name
        del graph.initializers[name]
        graph.insert_before(graph[0], node)
