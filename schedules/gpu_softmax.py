"""Softmax and its logarithm on GPUs: maximum, sum of exponentials, result, by several threads per result."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Any, ClassVar

from convopt.schedules.base import Estimate
from convopt.schedules.primitives.gpu_nest import MOST_INDEX, THREADS
from convopt.schedules.primitives.gpu_reduction import BlockReduction, Reduction
from convopt.schedules.primitives.vector_width import ITEMSIZE
from convopt.schedules.softmax import EXP_COST, SoftmaxProblem
from convopt.targets import GpuTarget


def default(problem: SoftmaxProblem, target: GpuTarget) -> GpuSoftmax:
    return GpuSoftmax(Reduction.of(problem.operands, problem.axes).threads_per_result(target))


@dataclass(frozen=True)
class GpuSoftmax:
    """`width` threads per row, a power of two. x is read three times: rows are short enough for a cache."""

    name: ClassVar[str] = "gpu-softmax"
    width: int = 1

    def why_not(self, problem: SoftmaxProblem, target: GpuTarget) -> str | None:
        for view in problem.operands:
            if view.dtype not in ITEMSIZE:
                return f"softmax of {view.dtype}"
            if view.size == 0:
                return "no elements"
            if view.reach > MOST_INDEX:
                return f"an operand of shape {view.shape} spans 2**31 elements"
        return None

    def cost(self, problem: SoftmaxProblem, target: GpuTarget) -> Estimate:
        moved = 2 * problem.x.size * ITEMSIZE[problem.x.dtype]
        rate = target.vector_flops / 2 * target.compute_units * target.clock
        return Estimate((2 * EXP_COST + 8) * problem.x.size / rate, moved / target.memory_rate)

    def workspace_bytes(self, problem: SoftmaxProblem, target: GpuTarget) -> int:
        return 0

    def shared_bytes(self, problem: SoftmaxProblem, target: GpuTarget) -> int:
        return 4 * THREADS if self.width > 1 else 0

    def apply(self, problem: SoftmaxProblem, target: GpuTarget, symbol: str) -> tuple[Any, ...]:
        from tvm.tirx.script.builder import ir as T

        from convopt.schedules.primitives.gpu_emit import device_kernel, from_float, hold, local, to_float
        from convopt.schedules.primitives.vector_math import VectorMath

        plan = Reduction.of(problem.operands, problem.axes)
        math = VectorMath(1, "local")
        grid = BlockReduction.grid(plan, self.width)
        with device_kernel(f"{symbol}_0", problem.operands, grid, THREADS) as body:
            x, y = body.buffers
            block = BlockReduction(plan, self.width, body.block[0], body.thread)
            offsets = block.offsets()
            state = local(1)

            def element(at: list[Any]) -> Any:
                return hold(to_float(x[at[0]], problem.x.dtype), "float32")

            def exponential(at: list[Any]) -> Any:
                return hold(math.exp(hold(element(at) - top, "float32")), "float32")

            T.buffer_store(state, T.float32(-inf), [0])
            block.each(offsets, lambda at: T.buffer_store(state, math.max(state[0], element(at)), [0]))
            top = hold(block.total(state[0], math.max), "float32")
            T.buffer_store(state, T.float32(0.0), [0])
            block.each(offsets, lambda at: T.buffer_store(state, state[0] + exponential(at), [0]))
            total = hold(block.total(state[0], math.add), "float32")
            scale = hold(math.log(total) if problem.logarithm else math.reciprocal(total), "float32")

            def finish(at: list[Any]) -> None:
                value = element(at) - top - scale if problem.logarithm else exponential(at) * scale
                T.buffer_store(y, from_float(value, problem.y.dtype), [at[1]])

            with block.storing(every_thread=True):
                block.each(offsets, finish)
        return (body.function,)
