"""Convolution to few output channels as one product for all taps, whose results are shifted and added.

Every input pixel is multiplied by the weights of all taps at once: taps * features columns fill the vectors
that 4 or 27 output channels leave partly empty. Where a tap lies is applied to its products afterwards
("kn2row": Vasudevan, Anderson and Gregg, "Parallel Multi Channel Convolution using General Matrix
Multiplication", 2017):

    task (group, image, block of output rows)
      for row of inputs under the block:
        M[row, column, (tap, k)] = x[row, column] @ weight        scratch, in L2; zeros outside the image
      y[row, column, k] = epilogue(bias[k] + sum over taps of M[row + kh*dh, column + kw*dw, (tap, k)])

Each input is read once, and nothing of the padding. Rows at the seam of two tasks are multiplied by both.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from convopt.schedules.base import Estimate
from convopt.schedules.conv_direct import (
    CLOCK,
    L3_BYTES_PER_CYCLE,
    around_tile,
    bytes_per_cycle,
    tile_pixels,
    tile_step,
)
from convopt.schedules.conv_problem import Array, ConvProblem

if TYPE_CHECKING:
    from convopt.targets import Target

MOST_FEATURES = 32


@dataclass(frozen=True)
class ShiftedConv:
    """pixels x vectors: the register tile of the product. row_chunk: output rows of a task."""

    name: ClassVar[str] = "shifted"
    pixels: int
    vectors: int
    row_chunk: int

    @classmethod
    def space(cls, problem: ConvProblem, target: Target) -> Iterator[ShiftedConv]:
        rows = problem.y.shape[3]
        for vectors in (2, 3, 4):
            if (pixels := tile_pixels(target, vectors)) >= 1:
                for row_chunk in sorted({-(-rows // parts) for parts in (1, 2, 4, 8)}):
                    yield cls(pixels, vectors, row_chunk)

    def why_not(self, problem: ConvProblem, target: Target) -> str | None:
        if problem.strides != (1, 1, 1):
            return "with a stride most products would be for nothing"
        if problem.kernel[0] != 1:
            return "kernels of three dimensions"
        if problem.taps < 2:
            return "there is nothing to shift"
        if problem.features > MOST_FEATURES:
            return f"{problem.features} output channels > {MOST_FEATURES}"
        if min(problem.pads) < 0:
            return f"negative pads {problem.pads}"
        if problem.y.strides[5] != 1:
            return "output channels are not contiguous"
        if self.scratch_bytes(problem, target) > target.l3 // 4:
            return f"{self.scratch_bytes(problem, target)} B scratch > {target.l3 // 4}"
        return None

    def cost(self, problem: ConvProblem, target: Target) -> Estimate:
        """Products as in DirectConv; a load and an add a vector of sums and tap, two a cycle."""
        rows, width = self.rows(problem), min(problem.x.shape[4], self.width(problem))
        full, tail = divmod(self.columns(problem, target) // target.lanes, self.vectors)
        runs = -(-width // self.pixels)
        per_tile = width / runs
        compute = 0.0
        for count, used in ((full, self.vectors), (1 if tail else 0, tail)):
            step = tile_step(per_tile, used, problem.channels * used * target.vector_bytes, target)
            compute += count * runs * (problem.channels * step + around_tile(per_tile, used))
        compute *= rows
        sums = self.row_chunk * problem.y.shape[4] * -(-problem.features // target.lanes)
        compute += sums * (1.5 * problem.taps + 6)
        inputs = 4 * rows * width * problem.channels
        spilt = (
            self.scratch_bytes(problem, target) if self.scratch_bytes(problem, target) > target.l2 // 2 else 0
        )
        stream = inputs / bytes_per_cycle(problem, target) + 2 * spilt / L3_BYTES_PER_CYCLE
        seconds = self.tasks(problem, target) / CLOCK
        return Estimate(compute * seconds, stream * seconds, 0.5 * min(compute, stream) * seconds)

    def tasks(self, problem: ConvProblem, target: Target) -> int:
        _, images, depth, rows, _, _ = problem.y.shape
        return problem.groups * images * depth * -(-rows // self.row_chunk)

    def rows(self, problem: ConvProblem) -> int:
        """Rows of products under a task's output rows."""
        return self.row_chunk + (problem.kernel[1] - 1) * problem.dilations[1]

    def width(self, problem: ConvProblem) -> int:
        """Columns of products of a row, those of the padding included."""
        return problem.y.shape[4] + (problem.kernel[2] - 1) * problem.dilations[2]

    def columns(self, problem: ConvProblem, target: Target) -> int:
        """Products of a pixel, rounded up to whole vectors."""
        return -(-problem.taps * problem.features // target.lanes) * target.lanes

    def scratch_bytes(self, problem: ConvProblem, target: Target) -> int:
        """M; sums read whole vectors, which may end beyond the last pixel's products."""
        return 4 * (self.rows(problem) * self.width(problem) * self.columns(problem, target) + target.lanes)

    def pack(self, problem: ConvProblem, target: Target, weight: Array, bias: Array | None) -> list[Array]:
        """Weight (g, k, c, 1, kh, kw) to (g, tile of (kh, kw, k), c, lanes of the tile), zeros at the end."""
        g, k, c, _, kh, kw = weight.shape
        tile = self.vectors * target.lanes
        count = kh * kw * k
        padded = np.zeros((g, -(-count // tile) * tile, c), np.float32)
        padded[:, :count] = weight.transpose(0, 4, 5, 1, 2, 3).reshape(g, count, c)
        packed = [np.ascontiguousarray(padded.reshape(g, -1, tile, c).swapaxes(2, 3))]
        return packed if bias is None else [*packed, np.ascontiguousarray(bias)]

    def apply(self, problem: ConvProblem, target: Target, symbol: str) -> Any:
        from convopt.schedules.primitives.shifted_tiles import shifted_kernel

        return shifted_kernel(self, problem, target, symbol)
