"""Elementwise operations with broadcast, and copies between any two layouts (the identity expression).

What the three schedules of this problem share: `pointwise`, `pointwise_tiled`, `pointwise_interleaved`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from convopt.schedules.base import FLOAT_BYTES, Estimate, TensorView
from convopt.schedules.primitives.expression import Expression, identity
from convopt.schedules.primitives.nest import Loop, loops
from convopt.targets import Target

MEMORY_BANDWIDTH = 10e9  # bytes/s of one core, streaming; only ranks
VECTOR_RATE = 4e9  # vector instructions/s of one core
ITEM_BYTES = {"float16": 2, "float32": 4, "bool": 1, "uint8": 1, "int8": 1, "int32": 4, "int64": 8}
ITEM_BYTES |= {"uint16": 2, "int16": 2, "uint32": 4, "uint64": 8, "float64": 8, "bfloat16": 2}
ARITHMETIC = (*FLOAT_BYTES, "bool")


@dataclass(frozen=True)
class PointwiseProblem:
    """outputs = expression(inputs), element by element; all views have one shape, broadcast by stride 0.

    Operands of a kernel: inputs..., outputs.... Arithmetic is float32; 16-bit floats and bool are converted
    on load and store. An identity between equal dtypes moves bits, whatever they mean.
    """

    inputs: tuple[TensorView, ...]
    outputs: tuple[TensorView, ...]
    expression: Expression

    def __post_init__(self) -> None:
        if (len(self.inputs), len(self.outputs)) != (self.expression.inputs, len(self.expression.results)):
            raise ValueError(f"{len(self.inputs)} and {len(self.outputs)} views for {self.expression}")
        if len({v.shape for v in self.operands}) != 1:
            raise ValueError(f"shapes differ: {[v.shape for v in self.operands]}")

    @property
    def operands(self) -> tuple[TensorView, ...]:
        return self.inputs + self.outputs

    @property
    def shape(self) -> tuple[int, ...]:
        return self.outputs[0].shape

    @property
    def moves_bits(self) -> bool:
        return self.expression.is_identity and len({v.dtype for v in self.operands}) == 1

    @property
    def item_bytes(self) -> int:
        return ITEM_BYTES[self.outputs[0].dtype]

    @property
    def nest(self) -> tuple[Loop, ...]:
        """Loops in the order of the first output's memory; at least one."""
        found = loops(self.shape, [v.strides for v in self.operands], order_by=len(self.inputs))
        return found or (Loop(1, (0,) * len(self.operands)),)

    def lanes(self, target: Target) -> int:
        return target.vector_bytes // self.item_bytes if self.moves_bits else target.lanes

    def storage(self) -> tuple[TensorView, ...]:
        """The operands with the element types that the kernel's code uses."""
        if self.moves_bits:
            kind = f"uint{8 * self.item_bytes}"
            return tuple(TensorView(v.shape, v.strides, kind) for v in self.operands)
        return tuple(
            TensorView(v.shape, v.strides, "uint8" if v.dtype == "bool" else v.dtype) for v in self.operands
        )


def copy_problem(source: TensorView, destination: TensorView) -> PointwiseProblem:
    """destination = source, converted if the dtypes differ."""
    return PointwiseProblem((source,), (destination,), identity())


def why_no_kernel(problem: PointwiseProblem) -> str | None:
    kinds = {v.dtype for v in problem.operands}
    if unknown := kinds - set(ITEM_BYTES):
        return f"dtype {sorted(unknown)[0]} has no known size"
    if not problem.moves_bits and (others := kinds - set(ARITHMETIC)):
        return f"arithmetic on {sorted(others)[0]}"
    for view in problem.operands:
        if sum((n - 1) * abs(s) for n, s in zip(view.shape, view.strides, strict=True)) >= 2**31:
            return f"an operand of shape {view.shape} spans 2**31 elements"
    return None


def moved_bytes(problem: PointwiseProblem) -> int:
    """Bytes read and written, broadcast elements once."""
    return sum(
        prod(n for n, s in zip(v.shape, v.strides, strict=True) if s) * ITEM_BYTES[v.dtype]
        for v in problem.operands
    )


def estimate(problem: PointwiseProblem, target: Target, slowdown: float) -> Estimate:
    vectors = prod(problem.shape) / problem.lanes(target)
    work = (problem.expression.cost + len(problem.operands)) * vectors
    return Estimate(compute=slowdown * work / VECTOR_RATE, memory=moved_bytes(problem) / MEMORY_BANDWIDTH)


class Emitter:
    """Loads, the expression and stores, at given offsets of each operand. Needs tvm."""

    def __init__(self, problem: PointwiseProblem, buffers: Sequence[Any]) -> None:
        self.problem = problem
        self.buffers = buffers
        self.inputs = len(problem.inputs)
        self.kinds = [v.dtype for v in problem.storage()]
        self.compute = self.kinds[0] if problem.moves_bits else "float32"

    def hold(self, value: Any, lanes: int) -> Any:
        from convopt.schedules.primitives.emit import hold

        return hold(value, lanes, self.compute)

    def load(self, operand: int, offset: Any, stride: int, lanes: int) -> Any:
        """`lanes` elements of an operand in the type that is computed with, held in a register."""
        from tvm.tirx.script.builder import ir as T

        from convopt.schedules.primitives.emit import lanes_at, splat, widened

        at = offset if stride == 0 else lanes_at(offset, lanes, stride)
        value = self.buffers[operand][at]
        width = 1 if stride == 0 else lanes
        if self.kinds[operand] in FLOAT_BYTES and not self.problem.moves_bits:
            value = widened(value)
        elif self.kinds[operand] != self.compute:
            value = T.Cast(self.compute if width == 1 else f"{self.compute}x{width}", value)
        return self.hold(splat(value, lanes) if stride == 0 else value, lanes)

    def evaluate(self, values: Sequence[Any], lanes: int) -> list[Any]:
        from convopt.schedules.primitives.vector_math import emit

        if self.problem.expression.is_identity:
            return [values[r] for r in self.problem.expression.results]
        return emit(self.problem.expression, values, lanes)

    def store(self, output: int, value: Any, offset: Any, stride: int, lanes: int) -> None:
        from tvm.tirx.script.builder import ir as T

        from convopt.schedules.primitives.emit import lanes_at, narrowed

        operand = self.inputs + output
        kind = self.kinds[operand]
        if kind in FLOAT_BYTES and not self.problem.moves_bits:
            value = narrowed(value, kind, lanes)
        elif kind != self.compute:
            value = T.Cast(kind if lanes == 1 else f"{kind}x{lanes}", value)
        T.buffer_store(self.buffers[operand], value, [lanes_at(offset, lanes, stride)])


def advance(offsets: Sequence[Any], loop: Loop, index: Any) -> list[Any]:
    return [o + index * s if s else o for o, s in zip(offsets, loop.strides, strict=True)]
