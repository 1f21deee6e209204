"""Reductions on GPUs: a thread, or several of a block with a tree in shared memory, per result."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from convopt.schedules.base import Estimate
from convopt.schedules.primitives.gpu_nest import MOST_INDEX, THREADS
from convopt.schedules.primitives.gpu_reduction import BlockReduction, Reduction
from convopt.schedules.primitives.vector_width import ITEMSIZE
from convopt.schedules.reduce import OPS, ReduceProblem
from convopt.targets import GpuTarget


def default(problem: ReduceProblem, target: GpuTarget) -> GpuReduce:
    return GpuReduce(Reduction.of(problem.operands, problem.axes).threads_per_result(target))


@dataclass(frozen=True)
class GpuReduce:
    """`width` threads per result, a power of two; sums are in float32, in a fixed order."""

    name: ClassVar[str] = "gpu-reduce"
    width: int = 1

    def why_not(self, problem: ReduceProblem, target: GpuTarget) -> str | None:
        for view in problem.operands:
            if view.dtype not in ITEMSIZE:
                return f"reduction of {view.dtype}"
            if view.size == 0:
                return "no elements"
            if view.reach > MOST_INDEX:
                return f"an operand of shape {view.shape} spans 2**31 elements"
        return None

    def cost(self, problem: ReduceProblem, target: GpuTarget) -> Estimate:
        moved = sum(v.size * ITEMSIZE[v.dtype] for v in problem.operands)
        rate = target.vector_flops / 2 * target.compute_units * target.clock
        return Estimate(2 * problem.x.size / rate, moved / target.memory_rate)

    def workspace_bytes(self, problem: ReduceProblem, target: GpuTarget) -> int:
        return 0

    def shared_bytes(self, problem: ReduceProblem, target: GpuTarget) -> int:
        return 4 * THREADS if self.width > 1 else 0

    def apply(self, problem: ReduceProblem, target: GpuTarget, symbol: str) -> tuple[Any, ...]:
        from tvm.tirx.script.builder import ir as T

        from convopt.schedules.primitives.gpu_emit import device_kernel, from_float, hold, local, to_float
        from convopt.schedules.primitives.vector_math import VectorMath

        plan = Reduction.of(problem.operands, problem.axes)
        before, combination, start, after = OPS[problem.op]
        math = VectorMath(1, "local")
        combine = getattr(math, combination)
        grid = BlockReduction.grid(plan, self.width)
        with device_kernel(f"{symbol}_0", problem.operands, grid, THREADS) as body:
            x, y = body.buffers
            block = BlockReduction(plan, self.width, body.block[0], body.thread)
            offsets = block.offsets()
            sums = local(1)
            T.buffer_store(sums, T.float32(start), [0])

            def visit(at: list[Any]) -> None:
                value = hold(to_float(x[at[0]], problem.x.dtype), "float32")
                if before != "identity":
                    value = hold(getattr(math, before)(value), "float32")
                T.buffer_store(sums, combine(sums[0], value), [0])

            block.each(offsets, visit)
            total = block.total(sums[0], combine)
            with block.storing():
                if after == "divide":
                    total = total * T.float32(1.0 / plan.elements)
                elif after != "identity":
                    total = getattr(math, after)(hold(total, "float32"))
                T.buffer_store(y, from_float(total, problem.y.dtype), [offsets[1]])
        return (body.function,)
