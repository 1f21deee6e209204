"""Elementwise kernels and copies that change which dimension is contiguous, by transposed register tiles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any, ClassVar

from convopt.schedules.base import Estimate
from convopt.schedules.pointwise_problem import Emitter, PointwiseProblem, advance, estimate, why_no_kernel
from convopt.schedules.primitives.nest import (
    CACHE_LINE,
    Loop,
    Tasks,
    minimum,
    power_of_two_below,
    split_tasks,
)
from convopt.targets import Target


@dataclass(frozen=True)
class TiledPointwise:
    """Register tiles: loads along the dimension contiguous in the inputs, stores along the output's.

    A block of tiles is `block` elements on a side, a cache line of float32, so that every line that is read
    or written is used up at once.
    """

    name: ClassVar[str] = "pointwise-tiled"
    block: int = CACHE_LINE // 4

    def why_not(self, problem: PointwiseProblem, target: Target) -> str | None:
        if (reason := why_no_kernel(problem)) is not None:
            return reason
        if prod(problem.shape) == 0:
            return "no elements"
        plan = _TilePlan.of(problem, target, self.block)
        if plan is None:
            return "no input is contiguous along another dimension than the output"
        return None if plan.width > 1 else "the tile has one element"

    def cost(self, problem: PointwiseProblem, target: Target) -> Estimate:
        return estimate(problem, target, slowdown=2.0)

    def _plan(self, problem: PointwiseProblem, target: Target) -> _TilePlan:
        plan = _TilePlan.of(problem, target, self.block)
        assert plan is not None  # by why_not
        return plan

    def tasks(self, problem: PointwiseProblem, target: Target) -> int:
        return self._plan(problem, target).tasks.count

    def scratch_bytes(self, problem: PointwiseProblem, target: Target) -> int:
        return 0

    def apply(self, problem: PointwiseProblem, target: Target, symbol: str) -> Any:
        from convopt.schedules.primitives.emit import kernel

        plan = self._plan(problem, target)
        with kernel(symbol, problem.storage()) as body:
            emitter = Emitter(problem, body.buffers)
            with body.task() as task:
                outer, start = plan.tasks.decode(task)
                plan.walk(outer, start, lambda offsets: self._block(emitter, plan, offsets))
        return body.function

    def _block(self, emitter: Emitter, plan: _TilePlan, offsets: list[Any]) -> None:
        for j in range(0, plan.block_j, plan.width):
            for i in range(0, plan.block_i, plan.width):
                tile = advance(advance(offsets, plan.loop_j, j), plan.loop_i, i)
                self._tile(emitter, plan, tile)

    def _tile(self, emitter: Emitter, plan: _TilePlan, offsets: Sequence[Any]) -> None:
        from convopt.schedules.primitives.shuffle import transpose

        width, count = plan.width, emitter.inputs
        columns = {}
        for operand in plan.transposed:
            rows = [
                emitter.load(operand, advance(offsets, plan.loop_i, i)[operand], 1, width)
                for i in range(width)
            ]
            columns[operand] = transpose(rows, lambda value: emitter.hold(value, width))
        for j in range(width):
            at = advance(offsets, plan.loop_j, j)
            values = [
                columns[k][j] if k in columns else emitter.load(k, at[k], plan.loop_i.strides[k], width)
                for k in range(count)
            ]
            for k, value in enumerate(emitter.evaluate(values, width)):
                emitter.store(k, value, at[count + k], plan.loop_i.strides[count + k], width)


@dataclass(frozen=True)
class _TilePlan:
    """Loop i is contiguous in the output, loop j in the `transposed` inputs; `others` lie around them."""

    others: tuple[Loop, ...]
    loop_j: Loop
    loop_i: Loop
    transposed: tuple[int, ...]
    block_j: int
    block_i: int
    width: int  # lanes and rows of a register tile
    item_bytes: int

    @classmethod
    def of(cls, problem: PointwiseProblem, target: Target, block: int) -> _TilePlan | None:
        *outer, loop_i = problem.nest
        if loop_i.strides[len(problem.inputs)] != 1:
            return None
        for position, loop_j in enumerate(outer):
            transposed = tuple(
                k
                for k in range(len(problem.inputs))
                if loop_j.strides[k] == 1 and loop_i.strides[k] not in (0, 1)
            )
            if transposed:
                block_j = min(block, power_of_two_below(loop_j.extent))
                block_i = min(block, power_of_two_below(loop_i.extent))
                width = min(problem.lanes(target), block_i, block_j, 16)
                others = (*outer[:position], *outer[position + 1 :])
                return cls(others, loop_j, loop_i, transposed, block_j, block_i, width, problem.item_bytes)
        return None

    @cached_property
    def tasks(self) -> Tasks:
        counts = [loop.extent for loop in self.others]
        counts += [-(-self.loop_j.extent // self.block_j), -(-self.loop_i.extent // self.block_i)]
        return split_tasks(counts, self.block_i * self.block_j * self.item_bytes)

    def walk(self, outer: Sequence[Any], start: Any, visit: Any) -> None:
        """Calls `visit(offsets)` at every block of one task, inside the loops over them."""
        from tvm.tirx.script.builder import ir as T

        def move(offsets: list[Any], level: int, index: Any) -> list[Any]:
            if level < len(self.others):
                return advance(offsets, self.others[level], index)
            is_j = level == len(self.others)
            loop, block = (self.loop_j, self.block_j) if is_j else (self.loop_i, self.block_i)
            at = index * block
            if loop.extent % block:  # the last block ends at the extent, over its neighbour
                at = minimum(at, loop.extent - block)
            return advance(offsets, loop, at)

        def descend(offsets: list[Any], level: int) -> None:
            if level == len(self.tasks.extents):
                visit(offsets)
                return
            first = level == self.tasks.depth
            with T.serial(0, self.tasks.chunk if first else self.tasks.extents[level]) as step:
                descend(move(offsets, level, start + step if first else step), level + 1)

        offsets: list[Any] = [0] * len(self.loop_i.strides)
        for level, index in enumerate(outer):
            offsets = move(offsets, level, index)
        descend(offsets, self.tasks.depth)
