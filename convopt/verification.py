"""Compares a compiled Program with onnxruntime, and finds the groups that make it differ."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir

from convopt.errors import InputError, VerificationError
from convopt.ir.groups import DOMAIN, body_of, make_group
from convopt.ir.layout import ROW_MAJOR, set_layout
from convopt.ir.precision import Precision
from convopt.ir.values import constant, static_shape, unique_name
from convopt.passes.base import PassContext
from convopt.passes.check import draw_inputs, relative_error, run_reference
from convopt.runtime.execution import ContextPool
from convopt.runtime.loaded import Loaded
from convopt.runtime.signature import TensorInfo, as_array

Array = np.ndarray[Any, Any]

# Largest error relative to the output's scale. float32: the bound that the project holds itself to;
# 16-bit outputs are rounded once more, by half a unit of their 10 or 7 bits.
TOLERANCE = {"float16": 2e-3, "bfloat16": 1e-2}
FLOAT32_TOLERANCE = 1e-4
# 1e-4 of it is 1e-6, what a few float32 operations around 1 (a sigmoid's 1 + exp) may differ by; no output is
# held to less, however small it is.
LEAST_SCALE = 1e-2


@dataclass
class Verifier:
    """model: as given. graph: after the graph passes, standard ONNX. given: inputs to use where they fit.

    tolerance: of the precision that is computed with inside; an output's own dtype may allow more.
    """

    model: ir.Model
    graph: ir.Model
    context: PassContext
    given: Mapping[str, Array]
    tolerance: float = FLOAT32_TOLERANCE  # of the precision inside
    report: str = ""
    _expected: dict[str, Array] | None = None
    _feeds: dict[str, Array] = field(default_factory=dict)

    def __post_init__(self) -> None:
        feeds = draw_inputs(self.graph, self.context, seed=0)
        assert feeds is not None, "the graph's inputs are bound"
        for name, array in self.given.items():
            if name not in feeds:
                raise InputError(f"verify: the model has no input {name!r}; expected {', '.join(feeds)}")
            if array.shape == feeds[name].shape and array.dtype == feeds[name].dtype:
                feeds[name] = array
        self._feeds = feeds
        names = [v.name or "" for v in self.graph.graph.outputs]
        for model, what in ((self.model, "the model"), (self.graph, "the optimized graph")):
            try:
                self._expected = run_reference(model, feeds, names)
            except Exception as error:  # onnxruntime raises a type of its own for each refusal
                self.report = f"not verified: onnxruntime does not run it: {str(error).splitlines()[0]}"
            else:
                self._reference = what
                break

    def difference(self, loaded: Loaded) -> VerificationError | None:
        """What differs from the reference; None where all outputs are within the tolerance."""
        if self._expected is None:
            return None
        worst = 0.0
        for name, array in _outputs(loaded, self._feeds).items():
            error, bound = _error(self._expected[name], array), max(self.tolerance, tolerance(array.dtype))
            if not error <= bound:
                return VerificationError(
                    f"output {name!r} differs from onnxruntime by {error:.2e} of its scale;"
                    f" expected at most {bound:.0e}"
                )
            worst = max(worst, error)
        self.report = f"equal to {self._reference} in onnxruntime within {worst:.1e} of the output's scale"
        return None

    def probe(self, lowered: ir.Model, build: Callable[[ir.Model], Loaded]) -> Probed:
        """What every compiled group computes, beside what it should.

        The groups' outputs are copied out by kernels behind them, so the kernels themselves stay the same.
        """
        probes = _add_probes(lowered)
        found = _outputs(build(lowered), self._feeds)
        expected = run_reference(self.graph, self._feeds, sorted({name for _, name, *_ in probes}))
        groups = [
            ProbedGroup(group, name, group.outputs[index], found[probe], expected[name])
            for probe, name, group, index in probes
        ]
        return Probed(groups, self._feeds, self.tolerance)


@dataclass(frozen=True)
class ProbedGroup:
    """One output of a compiled group: its name in the graph, what was found and what onnxruntime computes."""

    group: ir.Node
    name: str
    value: ir.Value
    found: Array
    expected: Array

    @property
    def nodes(self) -> frozenset[str]:
        return frozenset(node.name or "" for node in body_of(self.group))


@dataclass(frozen=True)
class Probed:
    """The outputs of all compiled groups, in order."""

    outputs: list[ProbedGroup]
    feeds: Mapping[str, Array]
    tolerance: float

    def guilty(self) -> dict[str, str]:
        """(node, reason) of the first group, in order, whose output differs while all before it are right."""
        for output in self.outputs:
            error = _error(output.expected, output.found)
            bound = max(self.tolerance, tolerance(output.found.dtype))
            if not error <= bound:
                reason = (
                    f"verification: {output.name} differs by {error:.2e} of its scale,"
                    f" at most {bound:.0e} expected"
                )
                return dict.fromkeys(output.nodes, reason)
        return {}

    def lossy(self, precision: Precision) -> frozenset[str]:
        """The nodes to keep in float32 next: those of groups that lose most, as many as are kept already.

        A group's loss is the distance of its result from its body's, in float32 on the inputs that it had:
        what its own rounding does, whatever came in. Twice as many at every round: a few rounds to all.
        """
        losses = []
        for output in self.outputs:
            if precision.name != "fp32" and precision.keep_fp32.isdisjoint(output.nodes):
                losses.append((self._loss(output), output.nodes))
        losses.sort(key=lambda pair: -pair[0])
        kept = sum(not precision.keep_fp32.isdisjoint(output.nodes) for output in self.outputs)
        beyond = sum(not loss <= self.tolerance for loss, _ in losses)
        return frozenset[str]().union(*(nodes for _, nodes in losses[: max(1, kept, beyond)]))

    def _loss(self, output: ProbedGroup) -> float:
        body = body_of(output.group).clone()
        feeds = {}
        for inner, outer in zip(body.inputs, output.group.inputs, strict=True):
            array = None if outer is None else self._array(outer)
            if array is None or inner.dtype is None:
                return 0.0  # behind an island: not measured
            feeds[inner.name or ""] = array.astype(inner.dtype.numpy()).reshape(static_shape(inner) or ())
        inner_name = body.outputs[list(output.group.outputs).index(output.value)].name or ""
        model = ir.Model(body, ir_version=10)
        model.graph.opset_imports.pop(DOMAIN, None)
        return _error(run_reference(model, feeds, [inner_name])[inner_name], output.found)

    def _array(self, value: ir.Value) -> Array | None:
        """What a value held, seen through copies and reshapes."""
        if (array := constant(value)) is not None:
            return array
        if value.producer() is None:
            return self.feeds.get(value.name or "")
        for output in self.outputs:
            if output.value is value:
                return output.found
        producer = value.producer()
        if producer is None or producer.op_type not in ("Relayout", "View") or producer.inputs[0] is None:
            return None
        return self._array(producer.inputs[0])


def tolerance(dtype: np.dtype[Any]) -> float:
    return TOLERANCE.get(dtype.name, FLOAT32_TOLERANCE)


def _error(expected: Array, found: Array) -> float:
    if expected.shape != found.shape:
        return float("inf")
    if expected.dtype.kind in "biu":
        return 0.0 if np.array_equal(expected, found) else float("inf")
    return relative_error(expected, found, LEAST_SCALE)


def _outputs(loaded: Loaded, feeds: Mapping[str, Array]) -> dict[str, Array]:
    arrays = [as_array(TensorInfo.of(spec), feeds[spec.name]) for spec in loaded.program.inputs]
    results = ContextPool(1, 0).run(loaded, arrays)
    return {spec.name: array for spec, array in zip(loaded.program.outputs, results, strict=True)}


def _add_probes(lowered: ir.Model) -> list[tuple[str, str, ir.Node, int]]:
    """Makes every compiled group's outputs outputs of the model: (new name, name in the graph, group, index).

    The copies are of the type that is stored.
    """
    graph, probes = lowered.graph, []
    for group in [g for g in graph if g.op_type not in ("Relayout", "View", "Island")]:
        for index, (value, inner) in enumerate(zip(group.outputs, body_of(group).outputs, strict=True)):
            if static_shape(value) is None or inner.name is None:
                continue
            name = unique_name(graph, f"{inner.name}_probe")
            copy = ir.Value(name=name, type=value.type, shape=value.shape)
            graph.append(ir.node("Identity", [value], outputs=[copy], name=name))
            probe = make_group(graph, "Relayout", [graph[-1]], keep=[copy])
            set_layout(probe.outputs[0], ROW_MAJOR)
            graph.outputs.append(probe.outputs[0])
            probes.append((name, inner.name, group, index))
    graph.sort()
    return probes
