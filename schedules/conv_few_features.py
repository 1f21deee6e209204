"""Convolution to a handful of output channels: vectors run over the input channels instead.

With 4 output channels most lanes of a vector of outputs are empty. Here an accumulator holds the partial sums
of one pixel and one output channel over the lanes of the reduction; its lanes are added up once at the end.

    task (group, chunk of tiles of pixels)
      for panel of kernel rows
        for tile of pixels:  acc = 0, or what the panels before left in the scratch
          for tap, for vector of input channels:  acc[pixel][k] += x[pixel] * w[k]
          last panel:  y[pixel, k] = epilogue(sum of the lanes of acc[pixel][k] + bias[k])

All weights at once are one panel. Where they outgrow L1, each kernel row is a panel of its own: a tile reads
every weight once, and few pixels would make L2 the limit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from convopt.schedules.base import Estimate
from convopt.schedules.conv_direct import CLOCK, bytes_per_cycle, position_axes
from convopt.schedules.conv_problem import Array, ConvProblem

if TYPE_CHECKING:
    from convopt.targets import Target

MOST_FEATURES = 8
MIXED_BYTES_PER_CYCLE = 18.0  # from L2, weights and inputs in turn, measured on Zen 3


def contiguous_run(problem: ConvProblem) -> tuple[int, int]:
    """(kernel columns to loop over, elements in a run): a kernel row whose pixels touch is one run."""
    if problem.dilations[2] * problem.x.strides[4] == problem.channels:
        return 1, problem.kernel[2] * problem.channels
    return problem.kernel[2], problem.channels


@dataclass(frozen=True)
class FewFeaturesConv:
    """pixels: output positions of a tile, each with an accumulator per output channel.

    tile_chunk: tiles of pixels that a task takes; tiles run across rows, the last one repeats pixels.
    panels: 1, or the kernel's rows.
    """

    name: ClassVar[str] = "few-features"
    pixels: int
    tile_chunk: int
    panels: int = 1

    @classmethod
    def space(cls, problem: ConvProblem, target: Target) -> Iterator[FewFeaturesConv]:
        most = (target.vector_registers - 3) // max(problem.features, 1)
        for pixels in range(1, min(most, 12) + 1):
            tiles = -(-problem.pixels // pixels)
            for tasks in (1, 4, 16, 64):
                # A phase of a transposed convolution may have no taps at all.
                for panels in {1, max(1, prod(problem.kernel[:2]))} if tasks <= tiles else ():
                    yield cls(pixels, -(-tiles // tasks), panels)

    def why_not(self, problem: ConvProblem, target: Target) -> str | None:
        if problem.features > MOST_FEATURES:
            return f"{problem.features} output channels > {MOST_FEATURES}"
        if problem.x.strides[5] != 1:
            return "input channels are not contiguous"
        _, run = contiguous_run(problem)
        if run % target.lanes:
            return f"runs of {run} inputs are no multiple of {target.lanes}"
        if self.panels not in (1, prod(problem.kernel[:2])):
            return f"{self.panels} panels of {prod(problem.kernel[:2])} kernel rows"
        used = self.pixels * problem.features + 2
        return (
            f"{used} vector registers > {target.vector_registers}" if used > target.vector_registers else None
        )

    def cost(self, problem: ConvProblem, target: Target) -> Estimate:
        """Two multiply-adds and two loads a cycle, weights from L1 or L2.

        Adding up an accumulator takes about 10 cycles, keeping and fetching it again 2.
        """
        accumulators = self.pixels * problem.features
        loads = (self.pixels + problem.features) / 2
        step = max(accumulators / 2, loads, 4.0)
        if problem.taps * problem.channels * problem.features * 4 // self.panels > target.l1 * 3 // 4:
            # Weights that pass through L1 leave no room in it for inputs: measured with 320 channels to 4.
            step = max(step, (problem.features + self.pixels) * target.vector_bytes / MIXED_BYTES_PER_CYCLE)
        if self.panels > 1:  # measured with 320 channels to 4, tiles of 2 and 3 pixels
            step *= 1.35
        steps = problem.taps * problem.channels / target.lanes
        tiles = -(-problem.pixels // self.pixels)
        cycles = (
            problem.groups
            * tiles
            * (
                steps * step
                + 10.0 * accumulators
                + (self.panels - 1) * 2.0 * accumulators
                + 20.0 * self.panels
            )
        )
        # Each panel passes over all inputs.
        stream = 4 * (self.panels * problem.x.size + problem.y.size) / bytes_per_cycle(problem, target)
        return Estimate(cycles / CLOCK, stream / CLOCK, 0.5 * min(cycles, stream) / CLOCK)

    def tasks(self, problem: ConvProblem, target: Target) -> int:
        tiles = -(-problem.pixels // self.pixels)
        return problem.groups * -(-tiles // self.tile_chunk)

    def scratch_bytes(self, problem: ConvProblem, target: Target) -> int:
        """The accumulators of a task between two panels."""
        if self.panels == 1:
            return 0
        tiles = min(self.tile_chunk, -(-problem.pixels // self.pixels))
        return tiles * self.pixels * problem.features * target.vector_bytes

    def pack(self, problem: ConvProblem, target: Target, weight: Array, bias: Array | None) -> list[Array]:
        """Weight (g, k, c, kd, kh, kw) to (g, kd, kh, vectors of (kw, c), k, lanes)."""
        g, k, _, kd, kh, _ = weight.shape
        runs = weight.transpose(0, 3, 4, 1, 5, 2).reshape(g, kd, kh, k, -1, target.lanes)
        packed = [np.ascontiguousarray(runs.swapaxes(3, 4))]
        return packed if bias is None else [*packed, np.ascontiguousarray(bias)]

    def apply(self, problem: ConvProblem, target: Target, symbol: str) -> Any:
        from tvm import tirx
        from tvm.tirx.script.builder import ir as T

        from convopt.schedules.primitives.conv_tiles import offsets, unravel
        from convopt.schedules.primitives.emit import kernel
        from convopt.schedules.primitives.few_features_tile import FewFeaturesTile

        axes = position_axes(problem)
        extents = [a.extent for a in axes]
        tiles = -(-prod(extents) // self.pixels)
        chunks = -(-tiles // self.tile_chunk)
        with kernel(symbol, problem.operands) as body, body.task() as task:
            tile = FewFeaturesTile(self, problem, target, body)
            group, first = task // chunks, task % chunks * self.tile_chunk
            count = tirx.min(tiles - first, self.tile_chunk)
            with T.serial(0, self.panels) as panel, T.serial(0, count) as t:
                start = (first + t) * self.pixels
                indices = [
                    unravel(tirx.min(start + i, prod(extents) - 1), extents) for i in range(self.pixels)
                ]
                positions = [offsets(axes, index) for index in indices]
                tile(group, panel, t, positions)
        return body.function
