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
from convopt.ir.values import is_op
from convopt.passes.base import Note, PassContext, PassReport


@dataclass(frozen=True)
class InlineFunctions:
    name: ClassVar[str] = "inline-functions"

    def run(self, model: ir.Model, context: PassContext) -> PassReport:
        notes = []
        calls = [n for n in model.graph.all_nodes() if n.op_identifier() in model.functions]
        if calls:
            notes = [Note(n.name or "", f"call of function {n.domain}.{n.op_type} inlined") for n in calls]
            _align_opsets(model)
            try:
                common.InlinePass()(model)
            except ValueError as error:
                raise ModelError(f"functions can't be inlined: {error}") from error
        model.functions.clear()
        before = sum(is_op(n, "Constant") for n in model.graph.all_nodes())
        if before:
            # A Constant that is an output of the graph stays: an initializer can't be one everywhere.
            common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
        after = sum(is_op(n, "Constant") for n in model.graph.all_nodes())
        return PassReport(len(calls) + before - after, tuple(notes))


def _align_opsets(model: ir.Model) -> None:
    """Functions say their opsets themselves; the model must agree with those whose body it takes over."""
    for function in model.functions.values():
        for domain, version in function.opset_imports.items():
            ours = model.opset_imports.setdefault(domain, version)
            if ours != version:
                raise ModelError(
                    f"function {function.domain}.{function.name} uses opset {version} of domain {domain!r},"
                    f" the model {ours}; expected the same"
                )
