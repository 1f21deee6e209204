"""Direct convolution in bfloat16 by AMX: tiles of 16 pixels by 16 channels, summed in float32 (x86).

A tile product (TDPBF16PS, Intel SDM volume 2) multiplies 16 rows of 32 bfloat16 inputs with 16 pairs of
rows of weights: 16x16 sums of 32 products each. A step of the reduction takes two tiles of pixels and one or
two of output channels, so that a tile that is loaded is used twice. The rows of a tile of inputs are read
where they are: pixels at a constant distance in channels-last memory, `chunk` channels of each.

    task (group, chunk of feature tiles, chunk of pairs of pixel tiles)
      for tile of 32 output channels, for block of input channels
        for pair of pixel tiles:  sums = 0 or partial sums
          for tap, for chunk:     sums[i][j] += x[pair i, chunk] * w[chunk, tile j]
          y = last block ? epilogue(sums + bias) : partial sums to scratch

Tiles lie along one row of outputs; `flat` ones run across the rows of the padded image, and the columns
between the rows are computed and not stored. The last tile of a run ends with it and overlaps its neighbour:
no position outside is read, and what is stored twice is equal.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from convopt.schedules.base import Estimate
from convopt.schedules.conv_direct import CLOCK, Axis, position_axes
from convopt.schedules.conv_problem import Array, ConvProblem, pack_bias

if TYPE_CHECKING:
    from convopt.targets import Target

# Intel SDM volume 1, chapter 18: palette 1 has 8 tiles of up to 16 rows of 64 bytes.
ROWS = 16
COLUMNS = 16  # float32 sums of a row
MOST_CHANNELS = 32  # bfloat16 inputs of a row
LEAST_CHANNELS = 8  # a shorter reduction leaves three quarters of a product unused
# Intel Optimization Reference Manual, chapter 20: TDPBF16PS starts every 16 cycles, a tile load from L1
# takes 8. From L2 32 bytes a cycle, measured.
PRODUCT_CYCLES, LOAD_CYCLES, L2_LOAD_CYCLES = 16.0, 8.0, 32.0


@dataclass(frozen=True)
class Run:
    """Positions in a line: `length` steps of `inner`, for each index of the `outer` loops.

    pitch: 0, or the positions from one row of outputs to the next; those beyond the row's `width` are thrown
    away.
    """

    outer: tuple[Axis, ...]
    inner: Axis
    length: int
    pitch: int
    width: int

    @property
    def pixels(self) -> int:
        """Rows of a tile: all tiles of a run have the same, as few as cover it."""
        return -(-self.length // self.tiles)

    @property
    def tiles(self) -> int:
        return -(-self.length // ROWS)

    @property
    def count(self) -> int:
        """Tiles of a group."""
        return prod(axis.extent for axis in self.outer) * self.tiles


def run_of(problem: ConvProblem, flat: bool) -> Run | None:
    """The tiles' lines; None where the rows of the padded image are no multiple of a step apart."""
    if not flat:
        *outer, inner = position_axes(problem)
        return Run(tuple(outer), inner, inner.extent, 0, inner.extent)
    x, y, (sd, sh, sw) = problem.x, problem.y, problem.strides
    down, right = x.strides[3] * sh, x.strides[4] * sw
    if y.shape[3] == 1 or not right or down % right or down // right < y.shape[4]:
        return None
    pitch = down // right
    steps = (x.strides[1], x.strides[2] * sd)
    outer_axes = (
        Axis(y.shape[d], steps[d - 1], y.strides[d], tuple(o.strides[d] for o in problem.others))
        for d in (1, 2)
    )
    inner = Axis(1, right, 0, ())
    return Run(tuple(outer_axes), inner, (y.shape[3] - 1) * pitch + y.shape[4], pitch, y.shape[4])


def chunk_of(channels: int) -> int:
    """Channels of one product: the largest even divisor that a tile's row holds, 0 if there is none."""
    return max((c for c in range(2, MOST_CHANNELS + 1, 2) if channels % c == 0), default=0)


@dataclass(frozen=True)
class AmxConv:
    """tiles: of output channels side by side, 1 or 2. pixels_outer: feature tiles are the inner loop.

    channel_block: input channels whose weights stay in the cache while all pixels of a task pass over them.
    feature_chunk, pair_chunk: blocks of 16*tiles channels, and pairs of pixel tiles, that a task takes.
    """

    name: ClassVar[str] = "amx"
    flat: bool
    tiles: int
    channel_block: int
    pixels_outer: bool
    feature_chunk: int
    pair_chunk: int

    @classmethod
    def space(cls, problem: ConvProblem, target: Target) -> Iterator[AmxConv]:
        chunk = chunk_of(problem.channels)
        if problem.arithmetic != "bfloat16" or not chunk:
            return
        tiles = 1 if problem.features <= COLUMNS else 2
        features = -(-problem.features // (COLUMNS * tiles))
        step = problem.taps * COLUMNS * tiles * 2
        blocks = {problem.channels}
        for room in (target.l1 * 3 // 4, target.l2 // 2):
            fitting = [
                b
                for b in range(chunk, problem.channels + 1, chunk)
                if problem.channels % b == 0 and b * step <= room
            ]
            blocks.update(fitting[-1:])
        for flat in (False, True):
            run = run_of(problem, flat)
            if run is None:
                continue
            pairs = -(-run.count // 2)
            for pair_chunk in sorted({-(-pairs // n) for n in (1, 2, 4, 8, 16)}):
                for feature_chunk in sorted({-(-features // n) for n in (1, 2, 4, 8, 16)}):
                    for block in sorted(blocks):
                        yield cls(flat, tiles, block, False, feature_chunk, pair_chunk)
                    yield cls(flat, tiles, problem.channels, True, feature_chunk, pair_chunk)

    def why_not(self, problem: ConvProblem, target: Target) -> str | None:
        if target.bf16 != "amx":
            return f"{target.name} has no AMX"
        if problem.arithmetic != "bfloat16" or problem.x.dtype != "bfloat16":
            return "its products are float32"
        if problem.x.strides[5] != 1 or problem.y.strides[5] != 1:
            return "channels are not contiguous"
        chunk = chunk_of(problem.channels)
        if chunk < LEAST_CHANNELS:
            return f"{problem.channels} input channels have no even divisor from {LEAST_CHANNELS} to 32"
        if problem.channels % self.channel_block or self.channel_block % chunk:
            return f"blocks of {self.channel_block} channels don't divide into rows of {chunk}"
        if run_of(problem, self.flat) is None:
            return "rows of the image are no multiple of a step apart"
        if not problem.taps:
            return "nothing to sum"
        return None

    def cost(self, problem: ConvProblem, target: Target) -> Estimate:
        """Cycles at 2.4 GHz of products or of the loads that feed them, and of what surrounds a tile."""
        run = run_of(problem, self.flat)
        assert run is not None
        pairs, features = self._counts(problem, run)
        steps = problem.taps * (problem.channels // chunk_of(problem.channels))
        panel = problem.taps * self.channel_block * COLUMNS * self.tiles * 2
        resident = panel * (min(self.feature_chunk, features) if self.pixels_outer else 1)
        weights = LOAD_CYCLES if resident <= target.l1 * 3 // 4 else L2_LOAD_CYCLES
        if resident > target.l2 // 2:
            weights *= 2
        products = 2 * self.tiles * PRODUCT_CYCLES
        step = max(products, 2 * LOAD_CYCLES + self.tiles * weights)
        blocks = problem.channels // self.channel_block
        around = 2 * self.tiles * (blocks * 2 * LOAD_CYCLES * 2 + run.pixels * 4.0)
        cycles = problem.groups * pairs * features * (steps * step + around)
        traffic = 2 * (problem.x.size + problem.y.size) / 16.0
        return Estimate(cycles / CLOCK, traffic / CLOCK, 0.5 * min(cycles, traffic) / CLOCK)

    def _counts(self, problem: ConvProblem, run: Run) -> tuple[int, int]:
        """(pairs of pixel tiles, blocks of output channels) of a group."""
        return -(-run.count // 2), -(-problem.features // (COLUMNS * self.tiles))

    def tasks(self, problem: ConvProblem, target: Target) -> int:
        run = run_of(problem, self.flat)
        assert run is not None
        pairs, features = self._counts(problem, run)
        return problem.groups * -(-pairs // self.pair_chunk) * -(-features // self.feature_chunk)

    def scratch_bytes(self, problem: ConvProblem, target: Target) -> int:
        """The sums of one pair of tiles, or of all of a task's where they wait for the next channels.

        The emulated tiles lie behind them.
        """
        waiting = self.pair_chunk if self.channel_block < problem.channels else 1
        return (waiting + (1 if target.emulated else 0)) * 2 * self.tiles * ROWS * COLUMNS * 4

    def pack(self, problem: ConvProblem, target: Target, weight: Array, bias: Array | None) -> list[Array]:
        """Weight (g, k, c, kd, kh, kw) to (g, k block, c block, taps, chunks, tiles, chunk/2, 16, 2).

        In bfloat16. A tile's row holds pairs of input channels for 16 output channels: what TDPBF16PS wants.
        """
        import ml_dtypes

        g, k, c, *taps = weight.shape
        tile, chunk, block = COLUMNS * self.tiles, chunk_of(c), self.channel_block
        blocks = -(-k // tile)
        padded = np.zeros((g, blocks * tile, c, *taps), np.float32)
        padded[:, :k] = weight
        split = padded.reshape(
            g, blocks, self.tiles, COLUMNS, c // block, block // chunk, chunk // 2, 2, prod(taps)
        )
        order = split.transpose(0, 1, 4, 8, 5, 2, 6, 3, 7)
        packed = [np.ascontiguousarray(order).astype(ml_dtypes.bfloat16)]
        return packed if bias is None else [*packed, pack_bias(bias, tile)]

    def apply(self, problem: ConvProblem, target: Target, symbol: str) -> Any:
        from convopt.schedules.primitives.amx_tiles import amx_kernel

        return amx_kernel(self, problem, target, symbol)
