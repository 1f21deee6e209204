"""Depthwise convolution on GPUs: a thread computes a run of pixels of a few channels.

There is no reduction over channels, so no tile of shared memory pays: an input vector is loaded once per
kernel row and added to every pixel of the run that sees it. Threads next to each other take neighbouring
channels.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from convopt.schedules.base import Estimate, TensorView
from convopt.schedules.conv_problem import Array, ConvProblem
from convopt.schedules.primitives.gpu_nest import MOST_INDEX, THREADS, blocks_of, indices_of
from convopt.schedules.primitives.vector_width import ITEMSIZE, access_width

if TYPE_CHECKING:
    from convopt.targets import GpuTarget


def _channels_last(view: TensorView) -> TensorView:
    """(g, n, d, h, w, 1) as one group of g channels."""
    return replace(
        view,
        shape=(1, *view.shape[1:5], view.shape[0]),
        strides=(0, *view.strides[1:5], view.strides[0]),
    )


@lru_cache(maxsize=4096)
def _one_group(problem: ConvProblem) -> ConvProblem:
    """The same outputs, its groups as channels: what the epilogue stores."""
    return replace(
        problem,
        x=_channels_last(problem.x),
        y=_channels_last(problem.y),
        others=tuple(_channels_last(view) for view in problem.others),
    )


@dataclass(frozen=True)
class GpuDepthwise:
    """vector channels (a load of up to 16 bytes) by `pixels` neighbours along a row per thread."""

    name: ClassVar[str] = "gpu-depthwise"
    vector: int
    pixels: int

    @classmethod
    def space(cls, problem: ConvProblem, target: GpuTarget, level: str = "default") -> Iterator[GpuDepthwise]:
        for vector in (8, 4, 2, 1):
            for pixels in (4, 2, 1, 8):
                if (schedule := cls(vector, pixels)).why_not(problem, target) is None:
                    yield schedule

    def why_not(self, problem: ConvProblem, target: GpuTarget) -> str | None:
        if problem.channels != 1 or problem.features != 1:
            return f"{problem.channels} channels to {problem.features} features in a group, not 1 to 1"
        for view in (problem.x, *problem.others, problem.y):
            if view.dtype not in ITEMSIZE:
                return f"convolution of {view.dtype}"
        folded = _one_group(problem)
        if (width := min(access_width(folded.x, 5), access_width(folded.y, 5))) % self.vector:
            return f"{self.vector} channels are not neighbours in x and y, {width} are"
        if self.pixels > 1 and self.pixels >= 2 * problem.y.shape[4]:
            return f"runs of {self.pixels} pixels in rows of {problem.y.shape[4]}"
        if self.vector * self.pixels > 32:
            return f"{self.vector * self.pixels} accumulators per thread"
        if max(problem.x.reach, problem.y.reach) > MOST_INDEX:
            return "more than 2^31 elements in an operand"
        return None

    def _threads(self, problem: ConvProblem) -> int:
        runs = -(-problem.y.shape[4] // self.pixels)
        return prod(problem.y.shape[1:4]) * runs * (problem.groups // self.vector)

    def cost(self, problem: ConvProblem, target: GpuTarget) -> Estimate:
        """Seconds: loads from L2 (a row of the kernel shares them), multiply-adds, memory. It ranks only."""
        width, step = problem.kernel[2], problem.strides[2]
        reads = ((self.pixels - 1) * step + (width - 1) * problem.dilations[2] + 1) / self.pixels
        rows = problem.kernel[0] * problem.kernel[1]
        loaded = problem.y.size * rows * reads * ITEMSIZE[problem.x.dtype]
        filled = min(1.0, self._threads(problem) / (target.compute_units * THREADS))
        instructions = problem.y.size * rows * (width + reads / self.vector + 1)
        compute = max(instructions * 2 / target.vector_flops, loaded / 64) / target.compute_units / filled
        moved = sum(v.size * ITEMSIZE[v.dtype] for v in (problem.x, problem.y))
        return Estimate(compute / target.clock, moved / target.memory_rate, 4e-6)

    def workspace_bytes(self, problem: ConvProblem, target: GpuTarget) -> int:
        return 0

    def shared_bytes(self, problem: ConvProblem, target: GpuTarget) -> int:
        return 0

    def pack(self, problem: ConvProblem, target: GpuTarget, weight: Array, bias: Array | None) -> list[Array]:
        """(g, 1, 1, kd, kh, kw) to float32 (kd, kh, kw, g); the bias as (g)."""
        packed = np.ascontiguousarray(weight[:, 0, 0].transpose(1, 2, 3, 0), np.float32)
        return [packed] if bias is None else [packed, np.ascontiguousarray(bias.reshape(-1), np.float32)]

    def apply(self, problem: ConvProblem, target: GpuTarget, symbol: str) -> tuple[Any, ...]:
        from tvm.tirx.script.builder import ir as T

        from convopt.schedules.primitives.gpu_emit import device_kernel, hold, hold_multiple, local, when
        from convopt.schedules.primitives.gpu_epilogue import FinalOutput, operands_of

        folded, v = _one_group(problem), self.vector
        flat = TensorView((1,), (1,))
        views = (folded.x, flat, *((flat,) if problem.bias else ()), *folded.others, folded.y)
        across, runs = problem.groups // v, -(-problem.y.shape[4] // self.pixels)
        threads = self._threads(problem)
        with device_kernel(f"{symbol}_0", views, blocks_of(threads), THREADS) as body:
            x, weight, bias, others, _, y = operands_of(folded, body.buffers, False)
            unit = body.block[0] * THREADS + body.thread
            with when(unit < threads if threads % THREADS else None):
                n, d, h, run = indices_of(unit // across, (*problem.y.shape[1:4], runs))
                channel = unit % across * v
                place = [hold(i + T.int32(0)) for i in (d, h, run * self.pixels)]
                first = [
                    hold(i * s - p) for i, s, p in zip(place, problem.strides, problem.pads, strict=True)
                ]
                start = hold_multiple(n * folded.x.strides[1] + channel, v)
                sums = local(self.pixels * v)
                with T.unroll(0, self.pixels * v) as i:
                    T.buffer_store(sums, T.float32(0), [i])
                kd, kh, _ = problem.kernel
                with T.serial(0, kd) as a, T.serial(0, kh) as b:
                    self._kernel_row(folded, x, weight, (a, b), first, start, channel, sums)
                output = FinalOutput(folded, target, bias, others, y, problem.groups)
                row = (n * problem.y.shape[2] + place[0]) * problem.y.shape[3] + place[1]
                for pixel in range(self.pixels):
                    w = place[2] + pixel
                    with when(w < problem.y.shape[4] if problem.y.shape[4] % self.pixels else None):
                        m = row * problem.y.shape[4] + w
                        output.put(sums, pixel * v, 0, m, channel, v)
        return (body.function,)

    def _kernel_row(
        self,
        folded: ConvProblem,
        x: Any,
        weight: Any,
        tap: tuple[Any, Any],
        first: list[Any],
        start: Any,
        channel: Any,
        sums: Any,
    ) -> None:
        """Adds one row of taps: every input position of the run is loaded once."""
        from tvm.tirx.script.builder import ir as T

        from convopt.schedules.primitives.gpu_emit import (
            all_of,
            hold_multiple,
            local,
            store,
            to_float,
            vector,
            when,
        )

        v, strides, groups = self.vector, folded.x.strides, folded.x.shape[5]
        step, dilation, width = folded.strides[2], folded.dilations[2], folded.kernel[2]
        d = first[0] + tap[0] * folded.dilations[0]
        h = first[1] + tap[1] * folded.dilations[1]
        rows = [i for p, e in ((d, folded.x.shape[2]), (h, folded.x.shape[3])) for i in (p >= 0, p < e)]
        taps = local(width * v)
        base = (tap[0] * folded.kernel[1] + tap[1]) * width
        part = min(v, 4)
        with when(all_of(rows)):
            for r in range(width):
                for lane in range(0, v, part):
                    at = (base + r) * groups + channel + lane
                    store(taps, r * v + lane, vector(weight, at, part), part)
            line = hold_multiple(start + d * strides[2] + h * strides[3], v)
            values = local(v, folded.x.dtype)
            for offset in range((self.pixels - 1) * step + (width - 1) * dilation + 1):
                users = [
                    (p, r)
                    for p in range(self.pixels)
                    for r in range(width)
                    if p * step + r * dilation == offset
                ]
                w = first[2] + offset
                if not users:
                    continue
                with when(T.And(w >= 0, w < folded.x.shape[4])):
                    store(values, 0, vector(x, line + w * strides[4], v), v)
                    for p, r in users:
                        with T.unroll(0, v) as lane:
                            product = to_float(values[lane], folded.x.dtype) * taps[r * v + lane]
                            T.buffer_store(sums, sums[p * v + lane] + product, [p * v + lane])
