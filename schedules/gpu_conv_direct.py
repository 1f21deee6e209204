"""Convolution with one thread per output and no tiling: what every other schedule is measured against.

It takes any problem, so it also computes what the tiled families refuse.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar

import numpy as np

from convopt.schedules.base import Estimate, TensorView
from convopt.schedules.conv_problem import Array, ConvProblem
from convopt.schedules.primitives.gpu_nest import MOST_INDEX, THREADS, blocks_of, indices_of
from convopt.schedules.primitives.vector_width import ITEMSIZE
from convopt.targets import GpuTarget

# Published for the contest's cases: 13 to 40 times slower than what won it. Only ranks.
SHARE_OF_PEAK = 0.02


@dataclass(frozen=True)
class GpuDirectConv:
    """Threads in the order of the output's memory."""

    name: ClassVar[str] = "gpu-direct"

    @classmethod
    def space(
        cls, problem: ConvProblem, target: GpuTarget, level: str = "default"
    ) -> Iterator[GpuDirectConv]:
        yield cls()

    def why_not(self, problem: ConvProblem, target: GpuTarget) -> str | None:
        for view in (problem.x, *problem.others, problem.y):
            if view.dtype not in ITEMSIZE:
                return f"convolution of {view.dtype}"
        weights = problem.groups * problem.features * problem.channels * problem.taps
        if max(problem.x.reach, problem.y.reach, weights) > MOST_INDEX:
            return "more than 2^31 elements in an operand"
        return None

    def cost(self, problem: ConvProblem, target: GpuTarget) -> Estimate:
        peak = target.vector_flops * target.compute_units * target.clock
        moved = sum(v.size * ITEMSIZE[v.dtype] for v in (problem.x, problem.y))
        return Estimate(problem.flops / (SHARE_OF_PEAK * peak), moved / target.memory_rate)

    def workspace_bytes(self, problem: ConvProblem, target: GpuTarget) -> int:
        return 0

    def shared_bytes(self, problem: ConvProblem, target: GpuTarget) -> int:
        return 0

    def pack(self, problem: ConvProblem, target: GpuTarget, weight: Array, bias: Array | None) -> list[Array]:
        """(g, k, c, kd, kh, kw) to float32 (g, kd, kh, kw, c, k); the bias as it is."""
        packed = np.ascontiguousarray(weight.transpose(0, 3, 4, 5, 2, 1), np.float32)
        return [packed] if bias is None else [packed, np.ascontiguousarray(bias, np.float32)]

    def apply(self, problem: ConvProblem, target: GpuTarget, symbol: str) -> tuple[Any, ...]:
        from tvm.tirx.script.builder import ir as T

        from convopt.schedules.primitives.gpu_emit import all_of, device_kernel, hold, local, to_float, when
        from convopt.schedules.primitives.gpu_epilogue import FinalOutput, operands_of

        x, y = problem.x, problem.y
        order = sorted(range(6), key=lambda d: -abs(y.strides[d]))
        extents = [y.shape[d] for d in order]
        threads = prod(extents)
        flat_weight = TensorView((1,), (1,))
        views = (x, flat_weight, *((flat_weight,) if problem.bias else ()), *problem.others, y)
        with device_kernel(f"{symbol}_0", views, blocks_of(threads), THREADS) as body:
            source, weight, bias, others, _, destination = operands_of(problem, body.buffers, False)
            flat = body.block[0] * THREADS + body.thread
            with when(flat < threads if threads % THREADS else None):
                found = dict(zip(order, indices_of(flat, extents), strict=True))
                group, image, *at, feature = (hold(found[d] + T.int32(0)) for d in range(6))
                first = [hold(o * s - p) for o, s, p in zip(at, problem.strides, problem.pads, strict=True)]
                start = hold(group * x.strides[0] + image * x.strides[1])
                sums = local(1)
                T.buffer_store(sums, T.float32(0.0), [0])
                kd, kh, kw = problem.kernel
                with T.serial(0, kd) as d, T.serial(0, kh) as h, T.serial(0, kw) as w:
                    position = [
                        f + tap * dilation
                        for f, tap, dilation in zip(first, (d, h, w), problem.dilations, strict=True)
                    ]
                    inside = []
                    for i, index in enumerate(position):
                        reach = (y.shape[2 + i] - 1) * problem.strides[i] - problem.pads[i]
                        reach += (problem.kernel[i] - 1) * problem.dilations[i]
                        inside += [index >= 0] if problem.pads[i] > 0 else []
                        inside += [index < x.shape[2 + i]] if reach >= x.shape[2 + i] else []
                    with when(all_of(inside)):
                        pixel = hold(
                            sum((i * s for i, s in zip(position, x.strides[2:5], strict=True)), start)
                        )
                        tap = ((group * kd + d) * kh + h) * kw + w
                        row = hold(tap * (problem.channels * problem.features) + feature)
                        with T.serial(0, problem.channels) as c:
                            value = to_float(source[pixel + c * x.strides[5]], x.dtype)
                            product = value * weight[row + c * problem.features]
                            T.buffer_store(sums, sums[0] + product, [0])
                m = hold(
                    ((image * y.shape[2] + at[0]) * y.shape[3] + at[1]) * y.shape[4] + at[2] + T.int32(0)
                )
                output = FinalOutput(problem, target, bias, others, destination, problem.features)
                output.put(sums, 0, group, m, feature, 1)
        return (body.function,)
