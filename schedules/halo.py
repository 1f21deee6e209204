"""Zeros for the border of a buffer, in one kernel whatever the number of padded dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar

from convopt.schedules.base import Estimate, TensorView
from convopt.schedules.pointwise_problem import ITEM_BYTES
from convopt.schedules.primitives.nest import Loop, Tasks, loops, split_tasks, vector_pieces
from convopt.targets import Target

MEMORY_BANDWIDTH = 10e9  # bytes/s of one core; only ranks


@dataclass(frozen=True)
class HaloProblem:
    """The elements around `inner`, halo[d] = (before, after) of them along dimension d, become 0.

    The operand of a kernel is the pointer to element 0 of `inner`, as for any view.
    """

    inner: TensorView
    halo: tuple[tuple[int, int], ...]

    @property
    def operands(self) -> tuple[TensorView, ...]:
        return (self.inner,)

    @property
    def border(self) -> int:
        """Elements to be written."""
        whole = prod(n + sum(h) for n, h in zip(self.inner.shape, self.halo, strict=True))
        return whole - self.inner.size

    @property
    def dims(self) -> tuple[HaloDim, ...]:
        """Outermost in memory first, without those that have one element and no halo."""
        found = [
            HaloDim(n, s, *h)
            for n, s, h in zip(self.inner.shape, self.inner.strides, self.halo, strict=True)
            if n + sum(h) > 1
        ]
        return tuple(sorted(found, key=lambda d: -abs(d.stride)))


@dataclass(frozen=True)
class HaloDim:
    extent: int
    stride: int
    before: int
    after: int

    @property
    def padded(self) -> bool:
        return self.before + self.after > 0

    @property
    def total(self) -> int:
        return self.before + self.extent + self.after


@dataclass(frozen=True)
class HaloFill:
    """A task is some indices of the outermost padded dimension: whole slices outside, borders inside."""

    name: ClassVar[str] = "halo"

    def why_not(self, problem: HaloProblem, target: Target) -> str | None:
        if problem.inner.dtype not in ITEM_BYTES:
            return f"dtype {problem.inner.dtype} has no known size"
        return None if problem.border else "no border"

    def cost(self, problem: HaloProblem, target: Target) -> Estimate:
        nbytes = problem.border * ITEM_BYTES[problem.inner.dtype]
        return Estimate(compute=0.0, memory=nbytes / MEMORY_BANDWIDTH)

    def _outer(self, problem: HaloProblem) -> tuple[list[HaloDim], HaloDim, list[HaloDim]]:
        """The dims outside the first padded one, that one, and those inside."""
        dims = problem.dims
        first = next(i for i, d in enumerate(dims) if d.padded)
        return list(dims[:first]), dims[first], list(dims[first + 1 :])

    def _tasks(self, problem: HaloProblem) -> Tasks:
        outer, first, _ = self._outer(problem)
        extents = [*(d.extent for d in outer), first.total]
        nbytes = problem.border * ITEM_BYTES[problem.inner.dtype]
        return split_tasks(extents, max(1, nbytes // prod(extents)))

    def tasks(self, problem: HaloProblem, target: Target) -> int:
        return self._tasks(problem).count

    def scratch_bytes(self, problem: HaloProblem, target: Target) -> int:
        return 0

    def apply(self, problem: HaloProblem, target: Target, symbol: str) -> Any:
        from tvm.tirx.script.builder import ir as T

        from convopt.schedules.primitives.emit import kernel

        outer, first, inside = self._outer(problem)
        item = ITEM_BYTES[problem.inner.dtype]
        view = TensorView(problem.inner.shape, problem.inner.strides, f"uint{8 * item}")
        tasks = self._tasks(problem)
        with kernel(symbol, [view]) as body:
            fill = _Fill(body.buffers[0], view.dtype, target.vector_bytes // item)
            with body.task() as task, tasks.indices(task) as index:
                *around, row = index
                offset = sum(i * d.stride for i, d in zip(around, outer, strict=True))
                position = row - first.before
                offset = offset + position * first.stride
                outside = T.Or(position < 0, position >= first.extent)
                with T.If(outside):
                    with T.Then():
                        fill.block(offset, inside)
                    if any(d.padded for d in inside):
                        with T.Else():
                            fill.borders(offset, inside)
        return body.function


class _Fill:
    """Stores of zeros. Needs tvm."""

    def __init__(self, buffer: Any, dtype: str, lanes: int) -> None:
        self.buffer, self.dtype, self.lanes = buffer, dtype, lanes

    def borders(self, offset: Any, dims: Sequence[HaloDim]) -> None:
        """Around the inner part of `dims`, whose element 0 is at `offset`."""
        from tvm.tirx.script.builder import ir as T

        if not any(d.padded for d in dims):
            return
        dim, *rest = dims
        for start, width in ((-dim.before, dim.before), (dim.extent, dim.after)):
            if width:
                self.block(offset + start * dim.stride, [HaloDim(width, dim.stride, 0, 0), *rest])
        if any(d.padded for d in rest):
            with T.serial(0, dim.extent) as i:
                self.borders(offset + i * dim.stride, rest)

    def block(self, offset: Any, dims: Sequence[HaloDim]) -> None:
        """All of `dims`, their halos included."""
        from tvm.tirx.script.builder import ir as T

        start = offset - sum(d.before * d.stride for d in dims)
        found = loops([d.total for d in dims], [[d.stride for d in dims]], order_by=0) or (Loop(1, (1,)),)
        *around, inner = found

        def descend(level: int, at: Any) -> None:
            if level < len(around):
                with T.serial(0, around[level].extent) as i:
                    descend(level + 1, at + i * around[level].strides[0])
                return
            self._run(at, inner)

        descend(0, start)

    def _run(self, start: Any, loop: Loop) -> None:
        from tvm.tirx.script.builder import ir as T

        (stride,) = loop.strides
        if loop.extent <= 8 * self.lanes:
            for at, width in vector_pieces(loop.extent, self.lanes):
                self._store(start + at * stride, width, stride)
            return
        with T.serial(0, -(-loop.extent // self.lanes)) as step:
            at = step * self.lanes
            if loop.extent % self.lanes:  # the last vector ends at the extent, over its neighbour
                at = T.min(at, loop.extent - self.lanes)
            self._store(start + at * stride, self.lanes, stride)

    def _store(self, at: Any, width: int, stride: int) -> None:
        from tvm.tirx.script.builder import ir as T

        from convopt.schedules.primitives.emit import lanes_at, splat

        zero = T.Cast(self.dtype, T.int32(0))
        T.buffer_store(self.buffer, splat(zero, width), [lanes_at(at, width, stride)])
