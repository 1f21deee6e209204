"""Elementwise kernels along the output's contiguous dimension, and the choice among the three schedules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from convopt.schedules.base import Estimate
from convopt.schedules.pointwise_interleaved import InterleavedPointwise
from convopt.schedules.pointwise_problem import Emitter, PointwiseProblem, advance, estimate, why_no_kernel
from convopt.schedules.pointwise_tiled import TiledPointwise
from convopt.schedules.primitives.nest import Loop, Tasks, split_tasks, vector_pieces
from convopt.targets import Target


def default(problem: PointwiseProblem, target: Target) -> Pointwise | TiledPointwise | InterleavedPointwise:
    """The first that does not refuse: shuffled planes, transposed tiles, plain vectors."""
    for schedule in (InterleavedPointwise(), TiledPointwise()):
        if schedule.why_not(problem, target) is None:
            return schedule
    return Pointwise()


@dataclass(frozen=True)
class Pointwise:
    """Vectors along the innermost loop of the output, `unroll` of them at a time."""

    name: ClassVar[str] = "pointwise"
    unroll: int = 2

    def why_not(self, problem: PointwiseProblem, target: Target) -> str | None:
        return why_no_kernel(problem)

    def cost(self, problem: PointwiseProblem, target: Target) -> Estimate:
        strided = any(s not in (0, 1) for s in problem.nest[-1].strides)
        return estimate(problem, target, slowdown=8.0 if strided else 1.0)

    def _tasks(self, problem: PointwiseProblem, target: Target) -> Tasks:
        vector = problem.lanes(target) * self.unroll
        return split_tasks([loop.extent for loop in problem.nest], problem.item_bytes, vector)

    def tasks(self, problem: PointwiseProblem, target: Target) -> int:
        return self._tasks(problem, target).count

    def scratch_bytes(self, problem: PointwiseProblem, target: Target) -> int:
        return 0

    def apply(self, problem: PointwiseProblem, target: Target, symbol: str) -> Any:
        from convopt.schedules.primitives.emit import kernel

        nest, tasks, lanes = problem.nest, self._tasks(problem, target), problem.lanes(target)
        with kernel(symbol, problem.storage()) as body:
            emitter = Emitter(problem, body.buffers)
            with body.task() as task:
                outer, start = tasks.decode(task)
                offsets: list[Any] = [0] * len(problem.operands)
                for loop, index in zip(nest, outer, strict=False):
                    offsets = advance(offsets, loop, index)
                offsets = advance(offsets, nest[tasks.depth], start)
                inside = [Loop(tasks.chunk, nest[tasks.depth].strides), *nest[tasks.depth + 1 :]]
                self._run(emitter, inside, offsets, lanes)
        return body.function

    def _run(self, emitter: Emitter, inside: Sequence[Loop], offsets: list[Any], lanes: int) -> None:
        from tvm.tirx.script.builder import ir as T

        if len(inside) > 1:
            with T.serial(0, inside[0].extent) as index:
                self._run(emitter, inside[1:], advance(offsets, inside[0], index), lanes)
            return
        loop = inside[0]
        step = lanes * self.unroll
        rounds = loop.extent // step
        if rounds:
            with T.serial(0, rounds) as index:
                for u in range(self.unroll):
                    self._vector(emitter, loop, advance(offsets, loop, index * step + u * lanes), lanes)
        rest = loop.extent - rounds * step
        if rest and rounds:  # the last vector may overlap what is already done
            for start in range(0, rest, lanes):
                at = min(rounds * step + start, loop.extent - lanes)
                self._vector(emitter, loop, advance(offsets, loop, at), lanes)
        elif rest:
            for start, width in vector_pieces(rest, lanes):
                self._vector(emitter, loop, advance(offsets, loop, start), width)

    def _vector(self, emitter: Emitter, loop: Loop, offsets: Sequence[Any], lanes: int) -> None:
        count = emitter.inputs
        values = [emitter.load(i, offsets[i], loop.strides[i], lanes) for i in range(count)]
        for i, value in enumerate(emitter.evaluate(values, lanes)):
            emitter.store(i, value, offsets[count + i], loop.strides[count + i], lanes)
