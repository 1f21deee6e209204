"""Multi-batch im2col on GPUs: several images unfolded side by side into the matrix of a GEMM.

shared_loads: a thread reads an input vector once and writes it to every tap of a kernel row that sees it, a
third of the loads of a 3-wide kernel. It takes stride 1 along the row. Otherwise a thread reads what it
writes.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar

from convopt.schedules.base import Estimate, TensorView
from convopt.schedules.im2col import Im2colProblem
from convopt.schedules.primitives.gpu_nest import MOST_INDEX, THREADS, blocks_of, indices_of
from convopt.schedules.primitives.vector_width import ITEMSIZE, access_width
from convopt.targets import GpuTarget


@dataclass(frozen=True)
class GpuIm2col:
    name: ClassVar[str] = "gpu-im2col"
    shared_loads: bool = True

    def why_not(self, problem: Im2colProblem, target: GpuTarget) -> str | None:
        if problem.x.dtype not in ITEMSIZE:
            return f"im2col of {problem.x.dtype}"
        if self.shared_loads and (problem.strides[2] != 1 or problem.kernel[2] == 1):
            return f"a kernel {problem.kernel[2]} wide with stride {problem.strides[2]} shares no loads"
        if max(problem.x.reach, problem.x.shape[0] * problem.rows * problem.columns) > MOST_INDEX:
            return "more than 2^31 elements in an operand"
        return None

    def _vector(self, problem: Im2colProblem) -> int:
        return access_width(problem.x, 5)

    def _positions(self, problem: Im2colProblem) -> int:
        """Along a row: input positions that some window sees, or output pixels by taps."""
        (_, _, ow), kw = problem.outputs, problem.kernel[2]
        return (ow - 1) + (kw - 1) * problem.dilations[2] + 1 if self.shared_loads else ow * kw

    def cost(self, problem: Im2colProblem, target: GpuTarget) -> Estimate:
        """Seconds: the matrix written, the loads from L2. It ranks, no more."""
        size = ITEMSIZE[problem.x.dtype]
        matrix = problem.x.shape[0] * problem.rows * problem.columns * size
        loads = matrix / (problem.kernel[2] if self.shared_loads else 1)
        compute = (loads + matrix) / (64 * target.compute_units * target.clock)
        return Estimate(compute, (matrix + problem.x.size * size) / target.memory_rate, 4e-6)

    def workspace_bytes(self, problem: Im2colProblem, target: GpuTarget) -> int:
        return 0

    def shared_bytes(self, problem: Im2colProblem, target: GpuTarget) -> int:
        return 0

    def apply(self, problem: Im2colProblem, target: GpuTarget, symbol: str) -> tuple[Any, ...]:
        from tvm.tirx.script.builder import ir as T

        from convopt.schedules.primitives.gpu_emit import (
            Bits,
            all_of,
            device_kernel,
            hold,
            hold_multiple,
            local,
            when,
        )

        x, v = problem.x, self._vector(problem)
        groups, images, channels = x.shape[0], x.shape[1], x.shape[5]
        (od, oh, ow), (kd, kh, kw) = problem.outputs, problem.kernel
        extents = (groups, images, od, oh, kd, kh, self._positions(problem), channels // v)
        threads = prod(extents)
        matrix_view = TensorView((1,), (1,), x.dtype)
        with device_kernel(f"{symbol}_0", (x, matrix_view), blocks_of(threads), THREADS) as body:
            unit = body.block[0] * THREADS + body.thread
            with when(unit < threads if threads % THREADS else None):
                g, n, d, h, a, b, position, part = indices_of(unit, extents)
                tap = 0 if self.shared_loads else position % kw
                column = position if self.shared_loads else position // kw
                at = [
                    hold(i * s + r * dilation - p)
                    for i, s, r, dilation, p in zip(
                        (d, h, column), problem.strides, (a, b, tap), problem.dilations, problem.pads,
                        strict=True,
                    )
                ]  # fmt: skip
                inside = [c for i, e in zip(at, x.shape[2:5], strict=True) for c in (i >= 0, i < e)]
                start = g * x.strides[0] + n * x.strides[1] + part * (v * x.strides[5])
                for i, stride in zip(at, x.strides[2:5], strict=True):
                    start = start + i * stride
                value = local(v, x.dtype)
                kept, origin = Bits.of(value, x.dtype, v), Bits.of(body.buffers[0], x.dtype, v)
                matrix = Bits.of(body.buffers[1], x.dtype, v)
                with T.If(all_of(inside)):
                    with T.Then():
                        kept.put(0, origin.get(hold_multiple(start, v), v), v)
                    with T.Else():
                        kept.put(0, kept.zeros(v), v)
                line = hold(((g * images + n) * od + d) * oh + h)
                row = hold((a * kh + b) * kw)

                def put(pixel: Any, tap: Any) -> None:
                    place = (line * ow + pixel) * problem.columns + (row + tap) * channels + part * v
                    matrix.put(hold_multiple(place, v), kept.get(0, v), v)

                if self.shared_loads:
                    for r in range(kw):
                        pixel = position - r * problem.dilations[2]
                        with when(T.And(pixel >= 0, pixel < ow)):
                            put(pixel, r)
                else:
                    put(column, tap)
        return (body.function,)
