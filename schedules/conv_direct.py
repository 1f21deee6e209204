"""Direct convolution on channels-last data: a register tile of pixels by channels, no intermediate matrix.

The tile is `pixels` output positions x `vectors` vectors of output channels, all accumulators in registers. A
step of the reduction loads `vectors` weights and broadcasts one input element per pixel. Panels of weights
(`channel_block` input channels of all taps) are outermost inside a task, so that a panel stays in the cache
while all of the task's pixels pass over it; partial sums wait in y between panels.

    task (group, block of channels, chunk of pixel rows)
      for panel of input channels
        for tile of output channels
          for row, for tile of pixels:  acc = bias or partial sum
            for tap, for c:             acc[i][v] += x[i, c] * w[c, v]
            y = last panel ? epilogue(acc) : acc

1x1 convolutions, Gemm and MatMul are the same loop with one tap and all pixels in one row.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar

from convopt.schedules.base import Estimate
from convopt.schedules.conv_problem import Array, ConvProblem, pack_bias, pack_weight

if TYPE_CHECKING:
    from convopt.targets import Target


@dataclass(frozen=True)
class Axis:
    """One loop over output positions: its extent, and the elements each operand moves per step."""

    extent: int
    x: int
    y: int
    others: tuple[int, ...]


def position_axes(problem: ConvProblem) -> list[Axis]:
    """The loops over output positions, outer to inner, neighbours merged where every operand allows it.

    A dense 1x1 convolution becomes one loop over all its pixels.
    """
    x, y, others = problem.x, problem.y, problem.others
    step = (1, *problem.strides)
    axes = [
        Axis(y.shape[i], x.strides[i] * step[i - 1], y.strides[i], tuple(o.strides[i] for o in others))
        for i in range(1, 5)
        if y.shape[i] != 1
    ] or [Axis(1, 0, 0, (0,) * len(others))]
    merged = [axes[0]]
    for inner in axes[1:]:
        outer = merged[-1]
        pairs = [(outer.x, inner.x), (outer.y, inner.y), *zip(outer.others, inner.others, strict=True)]
        if all(a == b * inner.extent for a, b in pairs):
            merged[-1] = Axis(outer.extent * inner.extent, inner.x, inner.y, inner.others)
        else:
            merged.append(inner)
    return merged


@dataclass(frozen=True)
class DirectConv:
    """pixels x vectors: the register tile. flat: tiles run across rows, with an address per position.

    feature_chunk: tiles of output channels a task takes; row_chunk: rows (flat: tiles of pixels) a task
    takes.
    """

    name: ClassVar[str] = "direct"
    pixels: int
    vectors: int
    channel_block: int
    flat: bool
    feature_chunk: int
    row_chunk: int

    @classmethod
    def space(cls, problem: ConvProblem, target: Target, level: str = "small") -> Iterator[DirectConv]:
        """All register tiles that fit, all channel blocks of a cache-friendly size, rows and flat."""
        axes = position_axes(problem)
        rows, width = prod(a.extent for a in axes[:-1]), axes[-1].extent
        for vectors in range(1, 5):
            pixels = tile_pixels(target, vectors)
            if pixels < 1:
                continue
            features = -(-problem.features // (vectors * target.lanes))
            for block in _channel_blocks(problem, target, vectors):
                for flat in (False, True):
                    if flat and len(axes) == 1:
                        continue
                    count = -(-rows * width // pixels) if flat else rows
                    for row_chunk, feature_chunk in _chunks(problem, count, features, width, pixels, flat):
                        yield cls(pixels, vectors, block, flat, feature_chunk, row_chunk)

    def why_not(self, problem: ConvProblem, target: Target) -> str | None:
        if problem.y.strides[5] != 1:
            return "output channels are not contiguous"
        used = self.pixels * self.vectors + self.vectors + (0 if target.fma_from_memory else 1)
        if used > target.vector_registers:
            return f"{used} vector registers > {target.vector_registers}"
        if problem.channels % self.channel_block:
            return f"{problem.channels} channels are not a multiple of {self.channel_block}"
        if self.channel_block < problem.channels and problem.y.dtype != "float32":
            return "partial sums can't wait in a float16 output"
        return None

    def cost(self, problem: ConvProblem, target: Target) -> Estimate:
        """Seconds by one core at 1 flop a picosecond: ratios count, the clock does not."""
        lanes = target.lanes
        axes = position_axes(problem)
        rows, width = prod(a.extent for a in axes[:-1]), axes[-1].extent
        # Vectors without a channel in the last tile are never computed: the compiler sees that.
        features = -(-problem.features // lanes)
        per_row = rows * width if self.flat else width
        tiles = -(-per_row // self.pixels)
        # Balanced tiles: their pixels are all used, what is lost are slots of a small tile's pipeline.
        pixels = per_row / tiles
        fma = pixels * self.vectors
        loads = pixels + self.vectors
        # Two FMAs and two loads a cycle; 8 independent accumulators hide the FMA's latency.
        cycles = max(fma / 2, (0 if target.fma_from_memory else loads / 2), 4.0)
        step = cycles / (fma / 2)
        reduction = problem.taps * problem.channels
        # Per tile: prologue and epilogue touch each accumulator, and y once more per further panel.
        panels = problem.channels // self.channel_block
        overhead = 1.0 + (8.0 + 4.0 * (panels - 1)) / max(reduction, 1)
        work = problem.groups * problem.pixels * features * lanes * reduction * 2.0
        panel = problem.taps * self.channel_block * self.vectors * lanes * 4
        cache = 1.0 if panel <= target.l1 // 2 else 1.02 if panel <= target.l2 // 2 else 1.3
        flat = 1.03 if self.flat else 1.0
        seconds = work * step * overhead * cache * flat / (lanes * 4 * 2.4e9)
        return Estimate(seconds, 0.0)

    def tasks(self, problem: ConvProblem, target: Target) -> int:
        rows, features = self._counts(problem, target)
        return problem.groups * -(-features // self.feature_chunk) * -(-rows // self.row_chunk)

    def scratch_bytes(self, problem: ConvProblem, target: Target) -> int:
        return 0

    def _counts(self, problem: ConvProblem, target: Target) -> tuple[int, int]:
        """(rows or flat tiles of pixels, tiles of output channels)."""
        axes = position_axes(problem)
        positions = prod(a.extent for a in axes)
        rows = -(-positions // self.pixels) if self.flat else positions // axes[-1].extent
        return rows, -(-problem.features // (self.vectors * target.lanes))

    def pack(self, problem: ConvProblem, target: Target, weight: Array, bias: Array | None) -> list[Array]:
        """The constant operands made from weight (g, k, c, kd, kh, kw) and bias (g, k)."""
        tile = self.vectors * target.lanes
        packed = [pack_weight(weight, self.channel_block, tile)]
        return packed if bias is None else [*packed, pack_bias(bias, tile)]

    def apply(self, problem: ConvProblem, target: Target, symbol: str) -> Any:
        from convopt.schedules.primitives.conv_tiles import direct_kernel

        return direct_kernel(self, problem, target, symbol)


def tile_pixels(target: Target, vectors: int) -> int:
    """The most pixels whose accumulators, weights and (without memory operands) one broadcast fit."""
    free = target.vector_registers - vectors - (0 if target.fma_from_memory else 1)
    # A spare register or two: LLVM loads the next weights early, and spills where none is left.
    return min(free // vectors, 14 if target.fma_from_memory else 13)


def _channel_blocks(problem: ConvProblem, target: Target, vectors: int) -> list[int]:
    """All channels in one panel, or the largest divisors whose panel stays in half of L1 and of L2."""
    blocks = {problem.channels}
    for room in (target.l1 // 2, target.l2 // 4):
        most = room // (problem.taps * vectors * target.vector_bytes) if problem.taps else problem.channels
        fitting = [b for b in range(8, min(most, problem.channels) + 1) if problem.channels % b == 0]
        if fitting and problem.y.dtype == "float32":
            blocks.add(fitting[-1])
    return sorted(blocks)


def _chunks(
    problem: ConvProblem, rows: int, features: int, width: int, pixels: int, flat: bool
) -> Iterator[tuple[int, int]]:
    """Ways to cut the work into tasks: by rows with all channels, or by channels with all rows."""
    fine = 16  # enough tasks to keep several threads evenly busy
    yield max(1, -(-rows // fine)), features
    if features > 1:
        yield rows, max(1, -(-features // fine))
