"""Whether two ONNX models compute the same, by running both in onnxruntime without its optimizations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from convopt.bench.compare import max_error
from convopt.bench.inputs import bind_inputs
from convopt.errors import InputError, VerificationError
from convopt.ir.values import dims_of
from convopt.passes.check import run_reference

# Relative to the output's scale. Folding and fusing reorder float32 sums; 16-bit values are rounded between.
TOLERANCE = {ir.DataType.FLOAT16: 1e-2, ir.DataType.BFLOAT16: 5e-2}
DEFAULT_TOLERANCE = 1e-3  # as for each pass, see `passes.check`

# Extents to try for dims that nobody bound: networks have a least size, or one that must divide the extent.
EXTENTS = (64, 224, 320, 640, 16)


@dataclass(frozen=True)
class Equality:
    """The largest error (see `max_error`), or why there was nothing to compare with."""

    max_error: float | None
    unchecked: str | None = None


def check_equal(
    name: str, original: ir.Model, rewritten: ir.Model, shapes: Mapping[str, tuple[int, ...]]
) -> Equality:
    """Runs both on the same random input; neither model is changed.

    Raises:
        VerificationError: the results differ by more than the tolerance, or only the original runs.
    """
    reason = ""
    for bound in _bindings(original, shapes):
        before = original.clone()
        inputs = bind_inputs(before, bound)
        try:
            expected = run_reference(before, inputs)
        except Exception as refusal:  # onnxruntime raises a type of its own for each
            reason = reason or f"onnxruntime refuses the model: {refusal}"
            continue
        after = rewritten.clone()
        bind_inputs(after, bound)
        try:
            got = run_reference(after, inputs, list(expected))
        except Exception as refusal:
            raise VerificationError(f"{name}: the rewritten model does not run: {refusal}") from refusal
        error = max_error([*got.values()], [*expected.values()])
        tolerance = max(
            TOLERANCE.get(v.dtype or ir.DataType.FLOAT, DEFAULT_TOLERANCE) for v in original.graph.outputs
        )
        if error > tolerance:
            raise VerificationError(
                f"{name}: the rewritten model differs by {error:.2e} of the output's scale;"
                f" expected {tolerance:.0e} at most"
            )
        return Equality(error)
    return Equality(None, reason)


def _bindings(model: ir.Model, shapes: Mapping[str, tuple[int, ...]]) -> Iterator[dict[str, tuple[int, ...]]]:
    """Input shapes to try: the given ones, the dynamic first dims 1, the other dynamic dims of one extent."""
    inputs = [value for value in model.graph.inputs if value.name not in shapes]
    dims = {str(value.name): dims_of(value) for value in inputs}
    if unknown := [name for name, found in dims.items() if found is None]:
        raise InputError(f"input {unknown[0]!r} has an unknown rank; give it a shape")
    dynamic = any(None in (found or ())[1:] for found in dims.values())
    for extent in EXTENTS if dynamic else (1,):
        yield {
            **shapes,
            **{
                name: tuple(
                    (1 if i == 0 else extent) if dim is None else dim for i, dim in enumerate(found or ())
                )
                for name, found in dims.items()
            },
        }
