"""Multi-batch im2col: several images unfolded side by side into one matrix, for a GEMM instead of a conv.

    matrix[g, image, pixel, (kd, kh, kw, c)] = x[g, image, pixel's window]

The matrix has kd*kh*kw times the input's elements per output pixel: the lowering cuts the batch, or one
image's rows, into chunks under a cap. expand_col images at once widen the GEMM where one image has few
pixels.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar

from convopt.schedules.base import Estimate, TensorView
from convopt.schedules.conv_problem import Triple

if TYPE_CHECKING:
    from convopt.targets import Target


@dataclass(frozen=True)
class Im2colProblem:
    """x: (g, n, d, h, w, c) as in ConvProblem; outputs: the extents (od, oh, ow) that are unfolded.

    Operands: x, matrix; the matrix is dense (g, n*od*oh*ow, kd*kh*kw*c).
    """

    x: TensorView
    outputs: Triple
    kernel: Triple
    strides: Triple
    dilations: Triple
    pads: Triple

    @property
    def columns(self) -> int:
        return prod(self.kernel) * self.x.shape[5]

    @property
    def rows(self) -> int:
        return self.x.shape[1] * prod(self.outputs)

    @property
    def operands(self) -> tuple[TensorView, ...]:
        return (self.x, TensorView((1,), (1,)))


@dataclass(frozen=True)
class Im2col:
    """A task unfolds one row of output pixels of one image."""

    name: ClassVar[str] = "im2col"

    def why_not(self, problem: Im2colProblem, target: Target) -> str | None:
        return None

    def cost(self, problem: Im2colProblem, target: Target) -> Estimate:
        """A store and a load per element, 16 bytes a cycle while the matrix stays in L2, 6 beyond."""
        nbytes = problem.x.shape[0] * problem.rows * problem.columns * 4
        per_cycle = 16 if nbytes <= target.l2 // 2 else 6
        return Estimate(0.0, nbytes / per_cycle / 2.4e9)

    def tasks(self, problem: Im2colProblem, target: Target) -> int:
        return problem.x.shape[0] * problem.x.shape[1] * problem.outputs[0] * problem.outputs[1]

    def scratch_bytes(self, problem: Im2colProblem, target: Target) -> int:
        return 0

    def apply(self, problem: Im2colProblem, target: Target, symbol: str) -> Any:
        from tvm.tirx.script.builder import ir as T

        from convopt.schedules.primitives.conv_tiles import load, pieces
        from convopt.schedules.primitives.emit import kernel, lanes_at

        images, channels = problem.x.shape[1], problem.x.shape[5]
        od, oh, ow = problem.outputs
        (kd, kh, kw), (sd, sh, sw) = problem.kernel, problem.strides
        (dd, dh, dw), (pd, ph, pw) = problem.dilations, problem.pads
        x_g, x_n, x_d, x_h, x_w, x_c = problem.x.strides
        # A kernel row whose pixels touch is one run of elements.
        taps, run = (1, kw * channels) if dw * x_w == channels * x_c else (kw, channels)
        full, tail = run // target.lanes, run % target.lanes
        with kernel(symbol, problem.operands) as body:
            x, matrix = body.buffers

            def copy(source: Any, to: Any) -> None:
                def vector(at: Any, count: int) -> None:
                    value = load(x, source + at * x_c, count, x_c if count > 1 else 1)
                    T.buffer_store(matrix, value, [lanes_at(to + at, count)])

                if full:
                    with T.serial(0, full) as i:
                        vector(i * target.lanes, target.lanes)
                for first, count in pieces(tail):
                    vector(full * target.lanes + first, count)

            with body.task() as task:
                h, d = task % oh, task // oh % od
                image, group = task // (oh * od) % images, task // (oh * od * images)
                corner = group * x_g + image * x_n + (d * sd - pd) * x_d + (h * sh - ph) * x_h - pw * x_w
                with T.serial(0, ow) as w:
                    row = (task * ow + w) * problem.columns
                    with T.serial(0, kd) as r, T.serial(0, kh) as s, T.serial(0, taps) as t:
                        source = corner + w * sw * x_w + r * (dd * x_d) + s * (dh * x_h) + t * (dw * x_w)
                        copy(source, row + ((r * kh + s) * taps + t) * run)
        return body.function
