"""Elementwise kernels and copies between 2 to 4 planes and pixels of as many channels, by shuffles.

An image of 3 planes becomes pixels of 3 floats here, or the other way round, at the speed of a copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar

from convopt.schedules.base import Estimate
from convopt.schedules.pointwise_problem import Emitter, PointwiseProblem, advance, estimate, why_no_kernel
from convopt.schedules.primitives.nest import Loop, Tasks, minimum, split_tasks
from convopt.targets import Target


@dataclass(frozen=True)
class InterleavedPointwise:
    """Vectors of pixels. Planar operands have stride 1 (or 0) over pixels, others over channels."""

    name: ClassVar[str] = "pointwise-interleaved"

    def why_not(self, problem: PointwiseProblem, target: Target) -> str | None:
        if (reason := why_no_kernel(problem)) is not None:
            return reason
        if prod(problem.shape) == 0:
            return "no elements"
        plan = _Plan.of(problem, problem.lanes(target))
        return "no 2 to 4 planes meet pixels of as many channels" if plan is None else None

    def cost(self, problem: PointwiseProblem, target: Target) -> Estimate:
        return estimate(problem, target, slowdown=1.5)

    def _plan(self, problem: PointwiseProblem, target: Target) -> _Plan:
        plan = _Plan.of(problem, problem.lanes(target))
        assert plan is not None  # by why_not
        return plan

    def tasks(self, problem: PointwiseProblem, target: Target) -> int:
        return self._plan(problem, target).tasks.count

    def scratch_bytes(self, problem: PointwiseProblem, target: Target) -> int:
        return 0

    def apply(self, problem: PointwiseProblem, target: Target, symbol: str) -> Any:
        from tvm.tirx.script.builder import ir as T

        from convopt.schedules.primitives.emit import kernel

        plan = self._plan(problem, target)
        tasks, pixels = plan.tasks, plan.pixels
        with kernel(symbol, problem.storage()) as body:
            emitter = Emitter(problem, body.buffers)
            with body.task() as task:
                outer, start = tasks.decode(task)
                offsets: list[Any] = [0] * len(problem.operands)
                for loop, index in zip(plan.others, outer, strict=False):
                    offsets = advance(offsets, loop, index)
                inside = [*plan.others, Loop(0, ())][tasks.depth : -1]
                self._walk(plan, emitter, T, inside, offsets, start, pixels)
        return body.function

    def _walk(
        self,
        plan: _Plan,
        emitter: Emitter,
        T: Any,
        inside: Sequence[Loop],
        offsets: list[Any],
        start: Any,
        pixels: Loop,
    ) -> None:
        depth = len(plan.others) - len(inside)
        extents = plan.tasks.extents
        count = plan.tasks.chunk if depth == plan.tasks.depth else extents[depth]
        with T.serial(0, count) as step:
            index = start + step if depth == plan.tasks.depth else step
            if inside:
                self._walk(plan, emitter, T, inside[1:], advance(offsets, inside[0], index), start, pixels)
                return
            at = index * plan.lanes
            if pixels.extent % plan.lanes:  # the last group ends at the extent, over its neighbour
                at = minimum(at, pixels.extent - plan.lanes)
            self._group(plan, emitter, advance(offsets, pixels, at))

    def _group(self, plan: _Plan, emitter: Emitter, offsets: Sequence[Any]) -> None:
        from convopt.schedules.primitives.shuffle import deinterleave, interleave

        lanes, channels, count = plan.lanes, plan.channels.extent, emitter.inputs

        def hold(value: Any) -> Any:
            return emitter.hold(value, lanes)

        planes: list[list[Any]] = []
        for k in range(count):
            if k in plan.interleaved:
                vectors = [emitter.load(k, offsets[k] + c * lanes, 1, lanes) for c in range(channels)]
                planes.append(deinterleave(vectors, lanes, hold))
            else:
                step, stride = plan.channels.strides[k], plan.pixels.strides[k]
                planes.append(
                    [emitter.load(k, offsets[k] + c * step, stride, lanes) for c in range(channels)]
                )
        results = [emitter.evaluate([p[c] for p in planes], lanes) for c in range(channels)]
        for i in range(len(results[0])):
            k, values = count + i, [r[i] for r in results]
            if k in plan.interleaved:
                for c, vector in enumerate(interleave(values, lanes, hold)):
                    emitter.store(i, vector, offsets[k] + c * lanes, 1, lanes)
            else:
                for c, value in enumerate(values):
                    emitter.store(i, value, offsets[k] + c * plan.channels.strides[k], 1, lanes)


@dataclass(frozen=True)
class _Plan:
    others: tuple[Loop, ...]
    pixels: Loop
    channels: Loop
    interleaved: frozenset[int]
    lanes: int
    item_bytes: int

    @classmethod
    def of(cls, problem: PointwiseProblem, lanes: int) -> _Plan | None:
        nest = problem.nest
        for channels in nest:
            for pixels in nest:
                if channels is pixels or not 2 <= channels.extent <= 4 or pixels.extent < lanes:
                    continue
                pairs = list(zip(channels.strides, pixels.strides, strict=True))
                interleaved = frozenset(k for k, pair in enumerate(pairs) if pair == (1, channels.extent))
                planar = frozenset(
                    k for k, (_, p) in enumerate(pairs) if p == 1 or (p == 0 and k < len(problem.inputs))
                )
                streams = any(pairs[k][1] == 1 for k in planar)
                if interleaved and streams and len(interleaved | planar) == len(pairs):
                    others = tuple(loop for loop in nest if loop is not channels and loop is not pixels)
                    return cls(others, pixels, channels, interleaved, lanes, problem.item_bytes)
        return None

    @property
    def tasks(self) -> Tasks:
        groups = -(-self.pixels.extent // self.lanes)
        step_bytes = self.lanes * self.channels.extent * self.item_bytes
        return split_tasks([*(loop.extent for loop in self.others), groups], step_bytes)
