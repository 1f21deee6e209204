"""Nearest and linear resampling on GPUs: a thread per output, the elements and weights from tables."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any, ClassVar

from convopt.schedules.base import Estimate
from convopt.schedules.pointwise_problem import ITEM_BYTES
from convopt.schedules.primitives.gpu_nest import MOST_INDEX, THREADS, blocks_of, indices_of
from convopt.schedules.resize import ResizeProblem
from convopt.targets import GpuTarget


def default(problem: ResizeProblem, target: GpuTarget) -> GpuResize:
    return GpuResize()


@dataclass(frozen=True)
class GpuResize:
    """Threads in the order of the output's memory."""

    name: ClassVar[str] = "gpu-resize"

    def why_not(self, problem: ResizeProblem, target: GpuTarget) -> str | None:
        x, y = problem.x, problem.y
        if problem.mode == "linear" and not {x.dtype, y.dtype} <= {"float32", "float16", "bfloat16"}:
            return f"linear interpolation of {x.dtype}"
        if x.dtype not in ITEM_BYTES:
            return f"dtype {x.dtype} has no known size"
        if max(x.reach, y.reach) > MOST_INDEX:
            return "an operand spans 2**31 elements"
        return "no elements" if x.size == 0 or y.size == 0 else None

    def cost(self, problem: ResizeProblem, target: GpuTarget) -> Estimate:
        loads = problem.taps ** len(problem.axes) * problem.y.size
        moved = (problem.x.size + problem.y.size) * ITEM_BYTES[problem.y.dtype]
        rate = target.vector_flops / 2 * target.compute_units * target.clock
        return Estimate(2 * loads / rate, moved / target.memory_rate)

    def workspace_bytes(self, problem: ResizeProblem, target: GpuTarget) -> int:
        return 0

    def shared_bytes(self, problem: ResizeProblem, target: GpuTarget) -> int:
        return 0

    def apply(self, problem: ResizeProblem, target: GpuTarget, symbol: str) -> tuple[Any, ...]:
        from tvm.tirx.script.builder import ir as T

        from convopt.schedules.primitives.gpu_emit import device_kernel, from_float, hold, to_float, when

        nest, threads = problem.nest, prod(loop.extent for loop in problem.nest)
        linear = problem.mode == "linear"
        with device_kernel(f"{symbol}_0", problem.storage(), blocks_of(threads), THREADS) as body:
            x, entries, *weights, y = body.buffers
            flat = body.block[0] * THREADS + body.thread
            with when(flat < threads if threads % THREADS else None):
                base: Any = T.int32(0)
                place: Any = T.int32(0)
                taps: list[list[Any]] = []
                for loop, index in zip(nest, indices_of(flat, [n.extent for n in nest]), strict=True):
                    held = hold(index)
                    place = place + held * loop.y_stride
                    if loop.table is None:
                        base = base + held * loop.x_stride
                    else:
                        first = loop.table + held * problem.taps
                        taps.append([hold(first + t) for t in range(problem.taps)])
                start = hold(base)
                total: Any = None
                for corner in product(*taps):
                    offset = sum((entries[e] for e in corner), start)
                    value = x[offset]
                    if linear:
                        weight = prod((weights[0][e] for e in corner[1:]), start=weights[0][corner[0]])
                        value = to_float(value, problem.x.dtype) * weight
                    total = value if total is None else total + value
                T.buffer_store(y, from_float(total, problem.y.dtype) if linear else total, [place])
        return (body.function,)
