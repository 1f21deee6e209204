"""Check every pass by data: run a random input through the model before and after, and name the guilty pass.

    run_passes(model, GRAPH_PASSES, context, after=CheckEachPass(model, context))

The runs are onnxruntime's, unoptimised. What it refuses (a model of unbound shape, SAME beside dilation,
operators it doesn't have) is not checkable; the next model that runs becomes the reference for what follows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir

from convopt.errors import ConvoptError
from convopt.ir.evaluate import session_options
from convopt.ir.protos import whole_proto
from convopt.ir.values import Array, static_shape
from convopt.passes.base import Note, Pass, PassContext, PassReport
from convopt.sessions import run_session


class PassCheckError(ConvoptError):
    """A pass changed what the model computes: names the pass, the output and the error."""


@dataclass
class CheckEachPass:
    """The callback of `run_passes`. Notes say what was compared, with the largest error, and what wasn't.

    tolerance: of the error relative to the output's largest magnitude; float32's rounding, through a hundred
        layers whose weights were rescaled, stays below 1e-4.
    inputs: arrays by name, for what a random input would not exercise; the rest is drawn.
    """

    model: ir.Model
    context: PassContext
    tolerance: float = 1e-3
    seed: int = 0
    inputs: dict[str, Array] = field(default_factory=dict)
    notes: list[Note] = field(default_factory=list)

    def __post_init__(self) -> None:
        feeds = draw_inputs(self.model, self.context, self.seed)
        self._feeds = None if feeds is None else feeds | self.inputs
        self._expected = self._run(self.model, "the model as given")

    def __call__(self, index: int, one: Pass, model: ir.Model, report: PassReport) -> None:
        """Raises PassCheckError where the outputs differ from those of the last model that could run."""
        if not report.changed:
            return
        found = self._run(model, f"after {one.name}")
        if found is not None and self._expected is not None:
            # A pass that is meant to round says by how much.
            tolerance = max(self.tolerance, getattr(one, "tolerance", 0.0))
            worst = _compare(one.name, self._expected, found, tolerance)
            self.notes.append(Note(one.name, f"equal within {worst:.1e} of the output's scale"))
        self._expected = found if found is not None else self._expected

    def _run(self, model: ir.Model, when: str) -> dict[str, Array] | None:
        if self._feeds is None:
            self.notes.append(
                Note("", f"not checkable {when}: the inputs' shapes are not bound", refused=True)
            )
            return None
        try:
            return run_reference(model, self._feeds)
        except Exception as error:  # onnxruntime raises a type of its own for each refusal
            reason = str(error).splitlines()[0]
            self.notes.append(Note("", f"not checkable {when}: {reason}", refused=True))
            return None


def run_reference(
    model: ir.Model, feeds: Mapping[str, Array], names: Sequence[str] | None = None
) -> dict[str, Array]:
    """The named values of the model, by default its outputs, in onnxruntime without its optimizations."""
    import onnx
    import onnxruntime as ort

    proto = whole_proto(model)
    for value in proto.graph.input:  # the caller's shape may override the declared one
        for dim, extent in zip(value.type.tensor_type.shape.dim, feeds[value.name].shape, strict=True):
            dim.dim_value = extent
    for value in (*proto.graph.output, *proto.graph.value_info):
        value.type.tensor_type.ClearField("shape")
    have = [value.name for value in proto.graph.output]
    wanted = have if names is None else list(names)
    proto.graph.output.extend(onnx.ValueInfoProto(name=name) for name in wanted if name not in have)
    session: Any = ort.InferenceSession(
        proto.SerializeToString(), session_options(), ["CPUExecutionProvider"]
    )
    return dict(zip(wanted, run_session(session, wanted, feeds), strict=True))


def draw_inputs(model: ir.Model, context: PassContext, seed: int) -> dict[str, Array] | None:
    """A random array per input, of the bound shape: normal floats, 0 and 1 otherwise; None where unbound."""
    generator = np.random.default_rng(seed)
    feeds: dict[str, Array] = {}
    for value in model.graph.inputs:
        given = context.shapes.get(value.name or "")
        shape = static_shape(value) if given is None else tuple(given)
        if shape is None or value.dtype is None or value.name is None:
            return None
        if value.dtype.is_floating_point():
            feeds[value.name] = generator.standard_normal(shape).astype(value.dtype.numpy())
        elif value.dtype == ir.DataType.STRING:
            feeds[value.name] = generator.integers(0, 2, shape).astype(str).astype(object)
        else:
            feeds[value.name] = generator.integers(0, 2, shape).astype(value.dtype.numpy())
    return feeds


def _compare(name: str, expected: dict[str, Array], found: dict[str, Array], tolerance: float) -> float:
    """The largest error relative to the scale of its output."""
    if expected.keys() != found.keys():
        raise PassCheckError(f"pass {name}: outputs {list(found)}; expected {list(expected)}")
    worst = 0.0
    for output, before in expected.items():
        after = found[output]
        if before.shape != after.shape or before.dtype != after.dtype:
            raise PassCheckError(
                f"pass {name}: output {output!r} is {after.dtype} {after.shape};"
                f" expected {before.dtype} {before.shape} as before it"
            )
        if before.dtype.kind in "biuOSU":
            if not np.array_equal(before, after):
                raise PassCheckError(f"pass {name}: output {output!r} differs; expected equality")
            continue
        worst = max(worst, error := relative_error(before, after))
        rounding = ml_dtypes.finfo(before.dtype).eps  # type: ignore[no-untyped-call]
        bound = max(tolerance, float(rounding))
        if not error <= bound:
            raise PassCheckError(
                f"pass {name}: output {output!r} differs by {error:.2e} of its scale;"
                f" expected at most {bound:.0e}"
            )
    return worst


def relative_error(expected: Array, found: Array, least_scale: float = 1e-3) -> float:
    """Largest difference over largest magnitude; places where both are the same NaN or infinity are equal.

    An output that is tiny as a whole (a sigmoid's far tail) is rounding: `least_scale` is its magnitude.
    Strings are equal, or infinitely far from each other.
    """
    if not expected.size:
        return 0.0
    if expected.dtype.kind in "OSU":
        return 0.0 if np.array_equal(expected, found) else float("inf")
    a, b = expected.astype(np.float64), found.astype(np.float64)
    with np.errstate(invalid="ignore"):
        difference = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.0, np.abs(a - b))
    finite = np.abs(a[np.isfinite(a)])
    scale = max(float(finite.max(initial=0.0)), least_scale)
    return float(difference.max()) / scale
