"""Nearest and linear resampling by tables: which elements each output index takes, with which weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any, ClassVar, Literal

from convopt.schedules.base import FLOAT_BYTES, Estimate, TensorView
from convopt.schedules.pointwise_problem import ITEM_BYTES
from convopt.schedules.primitives.nest import Tasks, loops, split_tasks, vector_pieces
from convopt.targets import Target

MEMORY_BANDWIDTH = 10e9  # bytes/s of one core; only ranks
VECTOR_RATE = 4e9


@dataclass(frozen=True)
class ResizeProblem:
    """y[..., o, ...] = sum over t of weights[o, t] * x[..., index[o, t], ...] along each of `axes`.

    One tap for nearest, two for linear. Operands of a kernel: x, offsets, [weights], y. offsets (int32): for
    each of the axes in order, [outputs, taps] indices times x's stride; weights (float32): the same, linear
    only. Nearest moves elements of any dtype; linear computes in float32.
    """

    x: TensorView
    y: TensorView
    axes: tuple[int, ...]
    mode: Literal["nearest", "linear"]

    @property
    def taps(self) -> int:
        return 1 if self.mode == "nearest" else 2

    @property
    def table(self) -> int:
        """Entries of the offsets."""
        return self.taps * sum(self.y.shape[a] for a in self.axes)

    @property
    def operands(self) -> tuple[TensorView, ...]:
        offsets = TensorView((self.table,), (1,), "int32")
        weights = (TensorView((self.table,), (1,)),) if self.mode == "linear" else ()
        return (self.x, offsets, *weights, self.y)

    def storage(self) -> tuple[TensorView, ...]:
        """The operands with the element types that the kernel's code uses."""
        if self.mode == "linear":
            return self.operands
        kind = f"uint{8 * ITEM_BYTES[self.x.dtype]}"
        x, offsets, y = self.operands
        return TensorView(x.shape, x.strides, kind), offsets, TensorView(y.shape, y.strides, kind)

    @property
    def nest(self) -> tuple[ResizeLoop, ...]:
        """Loops over y, outermost in memory first."""
        found, first = [], 0
        for axis in self.axes:
            found.append(ResizeLoop(self.y.shape[axis], 0, self.y.strides[axis], first))
            first += self.taps * self.y.shape[axis]
        kept = [d for d in range(len(self.y.shape)) if d not in self.axes]
        strides = [[v.strides[d] for d in kept] for v in (self.x, self.y)]
        for loop in loops([self.y.shape[d] for d in kept], strides, order_by=1):
            x_stride, y_stride = loop.strides
            found.append(ResizeLoop(loop.extent, x_stride, y_stride, None))
        return tuple(sorted(found, key=lambda loop: -abs(loop.y_stride)))


@dataclass(frozen=True)
class ResizeLoop:
    """`table`: where the loop's entries begin if it is resized, None if x just moves by `x_stride`."""

    extent: int
    x_stride: int
    y_stride: int
    table: int | None


def default(problem: ResizeProblem, target: Target) -> Resize:
    return Resize()


@dataclass(frozen=True)
class Resize:
    """Vectors along y's contiguous dimension: plain loads where it is kept, gathers where it is resized."""

    name: ClassVar[str] = "resize"

    def why_not(self, problem: ResizeProblem, target: Target) -> str | None:
        x, y = problem.x, problem.y
        if problem.mode == "linear" and not {x.dtype, y.dtype} <= FLOAT_BYTES.keys():
            return f"linear interpolation of {x.dtype}"
        if x.dtype not in ITEM_BYTES:
            return f"dtype {x.dtype} has no known size"
        return "no elements" if x.size == 0 or y.size == 0 else None

    def cost(self, problem: ResizeProblem, target: Target) -> Estimate:
        gathered = problem.nest[-1].table is not None
        loads = problem.taps ** len(problem.axes) * problem.y.size / (1 if gathered else target.lanes)
        moved = (problem.x.size + problem.y.size) * ITEM_BYTES[problem.y.dtype]
        return Estimate(compute=loads / VECTOR_RATE, memory=moved / MEMORY_BANDWIDTH)

    def _tasks(self, problem: ResizeProblem) -> Tasks:
        *outer, inner = problem.nest
        return split_tasks([loop.extent for loop in outer], inner.extent * ITEM_BYTES[problem.y.dtype])

    def tasks(self, problem: ResizeProblem, target: Target) -> int:
        return self._tasks(problem).count

    def scratch_bytes(self, problem: ResizeProblem, target: Target) -> int:
        return 0

    def apply(self, problem: ResizeProblem, target: Target, symbol: str) -> Any:
        from tvm.tirx.script.builder import ir as T

        from convopt.schedules.primitives.emit import kernel

        *outer, inner = problem.nest
        tasks = self._tasks(problem)
        lanes = target.lanes
        if problem.mode == "nearest":
            lanes = target.vector_bytes // ITEM_BYTES[problem.x.dtype]
        with kernel(symbol, problem.storage()) as body:
            emitter = _Emitter(problem, body.buffers)
            with body.task() as task, tasks.indices(task) as index:
                at = emitter.position(outer, index)
                if inner.extent < lanes:
                    for start, width in vector_pieces(inner.extent, lanes):
                        emitter.vector(inner, at, start, width)
                else:
                    with T.serial(0, -(-inner.extent // lanes)) as step:
                        start = step * lanes
                        if inner.extent % lanes:  # the last vector ends at the extent, over its neighbour
                            start = T.min(start, inner.extent - lanes)
                        emitter.vector(inner, at, start, lanes)
        return body.function


@dataclass(frozen=True)
class _Corner:
    """One of the inputs that an output mixes: its offset in x and its weight, None for 1."""

    offset: Any
    weight: Any


class _Emitter:
    """Needs tvm."""

    def __init__(self, problem: ResizeProblem, buffers: Sequence[Any]) -> None:
        self.problem = problem
        self.x, self.offsets, *weights, self.y = buffers
        self.weights = weights[0] if weights else None

    def position(self, outer: Sequence[ResizeLoop], index: Sequence[Any]) -> tuple[list[_Corner], Any]:
        """The corners and y's offset at these indices of the loops around the innermost."""
        from tvm.tirx.script.builder import ir as T

        from convopt.schedules.primitives.emit import hold

        base: Any = 0
        y_offset: Any = 0
        taps: list[list[_Corner]] = []
        for loop, i in zip(outer, index, strict=False):
            y_offset = y_offset + i * loop.y_stride
            if loop.table is None:
                base = base + i * loop.x_stride
            else:
                taps.append(
                    [self._tap(loop.table + i * self.problem.taps + t) for t in range(self.problem.taps)]
                )
        corners = []
        for choice in product(*taps):
            offset = sum((c.offset for c in choice), start=base)
            weights = [c.weight for c in choice if c.weight is not None]
            weight = hold(prod(weights[1:], start=weights[0]), 1) if weights else None
            corners.append(_Corner(hold(offset + T.int32(0), 1, "int32"), weight))
        return corners, y_offset

    def _tap(self, entry: Any) -> _Corner:
        return _Corner(self.offsets[entry], None if self.weights is None else self.weights[entry])

    def vector(self, inner: ResizeLoop, at: tuple[list[_Corner], Any], start: Any, lanes: int) -> None:
        """`lanes` outputs along the innermost loop from `start` on."""
        from tvm.tirx.script.builder import ir as T

        from convopt.schedules.primitives.emit import hold, lanes_at, narrowed, splat

        corners, y_offset = at
        total: Any = None
        for corner in corners:
            for t in range(1 if inner.table is None else self.problem.taps):
                weight = None if corner.weight is None else splat(corner.weight, lanes)
                if inner.table is None:
                    index = lanes_at(corner.offset + start * inner.x_stride, lanes, inner.x_stride)
                    if inner.x_stride == 0 and lanes > 1:
                        index = corner.offset
                else:
                    entry = inner.table + start * self.problem.taps + t
                    entries = lanes_at(entry, lanes, self.problem.taps)
                    index = hold(splat(corner.offset, lanes) + self.offsets[entries], lanes, "int32")
                    if self.weights is not None:
                        along = self.weights[entries]
                        weight = along if weight is None else weight * along
                value = self._load(index, lanes)
                if weight is not None:
                    value = value * weight
                total = value if total is None else total + value
        if self.problem.mode == "linear":
            total = narrowed(total, self.problem.y.dtype, lanes)
        T.buffer_store(self.y, total, [lanes_at(y_offset + start * inner.y_stride, lanes, inner.y_stride)])

    def _load(self, index: Any, lanes: int) -> Any:
        from convopt.schedules.primitives.emit import widened

        value = self.x[index]
        return widened(value) if self.problem.mode == "linear" else value
