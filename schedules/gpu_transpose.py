"""Copies on GPUs that change which dimension is contiguous, as NCHW to NHWC and back.

A thread moves a 4x4 block: four 4-wide loads along the dimension that is contiguous in the source, a
transposition in registers, four 4-wide stores along the one contiguous in the destination. A block of 16 x 16
threads covers 64 x 64. Where an extent is no multiple of 4, or memory not aligned to 4 elements, elements
move one by one under a guard.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from convopt.schedules.base import Estimate, TensorView
from convopt.schedules.pointwise_problem import PointwiseProblem, moved_bytes, why_no_kernel
from convopt.schedules.primitives.gpu_nest import indices_of
from convopt.schedules.primitives.nest import Loop
from convopt.targets import GpuTarget

SIDE = 4  # of a thread's block
THREADS_ACROSS = 16
BLOCK = SIDE * THREADS_ACROSS
MOST_BATCH = 65535


@dataclass(frozen=True)
class _Plan:
    """Loop `a` is contiguous in the source, `b` in the destination, `others` lie around them."""

    a: Loop
    b: Loop
    others: tuple[Loop, ...]

    @classmethod
    def of(cls, problem: PointwiseProblem) -> _Plan | None:
        nest = problem.nest
        a = next((loop for loop in nest if loop.strides[0] == 1 and loop.strides[1] != 1), None)
        b = next((loop for loop in nest if loop.strides[1] == 1 and loop.strides[0] != 1), None)
        if a is None or b is None:
            return None
        return cls(a, b, tuple(loop for loop in nest if loop not in (a, b)))

    @property
    def batch(self) -> int:
        count = 1
        for loop in self.others:
            count *= loop.extent
        return count


def sides(problem: PointwiseProblem) -> tuple[int, int] | None:
    """The extents along which source and destination are contiguous; None where they are not two."""
    plan = _Plan.of(problem) if len(problem.operands) == 2 else None
    return None if plan is None else (plan.a.extent, plan.b.extent)


@dataclass(frozen=True)
class GpuTranspose:
    """vector: whether threads load and store 4 elements at once, or one by one under guards."""

    name: ClassVar[str] = "gpu-transpose"
    vector: bool = True

    def why_not(self, problem: PointwiseProblem, target: GpuTarget) -> str | None:
        if refusal := why_no_kernel(problem):
            return refusal
        if len(problem.inputs) != 1 or len(problem.outputs) != 1 or not problem.moves_bits:
            return "not a copy of one operand"
        plan = _Plan.of(problem)
        if plan is None:
            return "source and destination are not contiguous along two different dimensions"
        if plan.batch > MOST_BATCH:
            return f"a grid of {plan.batch}, the most is {MOST_BATCH}"
        if self.vector:
            if plan.a.extent % SIDE or plan.b.extent % SIDE:
                return f"{plan.a.extent} x {plan.b.extent} are no multiples of {SIDE}"
            for index, view in enumerate(problem.operands):
                steps = [loop.strides[index] for loop in (plan.a, plan.b, *plan.others)]
                size = SIDE * problem.item_bytes
                if size > 16 or any(s % SIDE for s in steps if s != 1) or view.alignment % size:
                    return f"operand {index} has no aligned vectors of {SIDE}"
        return None

    def cost(self, problem: PointwiseProblem, target: GpuTarget) -> Estimate:
        """Seconds: memory, twice as long where elements move one by one. It ranks, no more."""
        slowdown = 1.0 if self.vector else 2.0
        return Estimate(0.0, slowdown * moved_bytes(problem) / target.memory_rate, 4e-6)

    def workspace_bytes(self, problem: PointwiseProblem, target: GpuTarget) -> int:
        return 0

    def shared_bytes(self, problem: PointwiseProblem, target: GpuTarget) -> int:
        return 0

    def apply(self, problem: PointwiseProblem, target: GpuTarget, symbol: str) -> tuple[Any, ...]:
        from convopt.schedules.primitives.gpu_emit import all_of, device_kernel, hold_multiple, local, when

        plan = _Plan.of(problem)
        assert plan is not None  # by why_not
        a, b = plan.a, plan.b
        unit = SIDE if self.vector else 1
        views: tuple[TensorView, ...] = problem.storage()
        grid = (-(-a.extent // BLOCK), -(-b.extent // BLOCK), plan.batch)
        with device_kernel(f"{symbol}_0", views, grid, THREADS_ACROSS**2) as body:
            indices = indices_of(body.block[2], [loop.extent for loop in plan.others]) if plan.others else []
            first_a = body.block[0] * BLOCK + body.thread % THREADS_ACROSS * SIDE
            first_b = body.block[1] * BLOCK + body.thread // THREADS_ACROSS * SIDE
            source, destination = (
                hold_multiple(
                    sum(i * loop.strides[o] for i, loop in zip(indices, plan.others, strict=True))
                    + first_a * a.strides[o]
                    + first_b * b.strides[o],
                    unit,
                )
                for o in range(2)
            )
            rows = local(SIDE * SIDE, views[0].dtype)
            if self.vector:
                inside = [
                    first < loop.extent for first, loop in ((first_a, a), (first_b, b)) if loop.extent % BLOCK
                ]
                with when(all_of(inside)):
                    self._vectors(plan, body.buffers, rows, (source, destination))
            else:
                self._elements(plan, body.buffers, rows, (first_a, first_b), (source, destination))
        return (body.function,)

    def _vectors(self, plan: _Plan, buffers: list[Any], rows: Any, starts: tuple[Any, Any]) -> None:
        from tvm.tirx.script.builder import ir as T

        from convopt.schedules.primitives.gpu_emit import local, store, vector

        kind = str(rows.dtype)
        columns = local(SIDE * SIDE, kind)
        for j in range(SIDE):
            value = vector(buffers[0], starts[0] + j * plan.b.strides[0], SIDE)
            store(rows, j * SIDE, value, SIDE)
        for i in range(SIDE):
            for j in range(SIDE):
                T.buffer_store(columns, rows[j * SIDE + i], [i * SIDE + j])
        for i in range(SIDE):
            value = vector(columns, i * SIDE, SIDE)
            store(buffers[1], starts[1] + i * plan.a.strides[1], value, SIDE)

    def _elements(
        self,
        plan: _Plan,
        buffers: list[Any],
        rows: Any,
        firsts: tuple[Any, Any],
        starts: tuple[Any, Any],
    ) -> None:
        from tvm.tirx.script.builder import ir as T

        from convopt.schedules.primitives.gpu_emit import when

        def inside(i: int, j: int) -> Any:
            return T.And(firsts[0] + i < plan.a.extent, firsts[1] + j < plan.b.extent)

        for j in range(SIDE):
            for i in range(SIDE):
                with when(inside(i, j)):
                    value = buffers[0][starts[0] + i * plan.a.strides[0] + j * plan.b.strides[0]]
                    T.buffer_store(rows, value, [j * SIDE + i])
        for i in range(SIDE):
            for j in range(SIDE):
                with when(inside(i, j)):
                    place = starts[1] + i * plan.a.strides[1] + j * plan.b.strides[1]
                    T.buffer_store(buffers[1], rows[j * SIDE + i], [place])
