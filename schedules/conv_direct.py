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
from functools import lru_cache
from itertools import islice
from math import gcd, prod
from typing import TYPE_CHECKING, Any, ClassVar

from convopt.schedules.base import Estimate
from convopt.schedules.conv_problem import Array, ConvProblem, pack_bias, pack_weight
from convopt.schedules.primitives.nest import CACHE_LINE

if TYPE_CHECKING:
    from convopt.targets import Target


CLOCK = 2.4e9
# One core of a server CPU, measured with long 1x1 convolutions: from L2, from L3, and from memory.
L2_BYTES_PER_CYCLE = 28.0
WAY_BYTES = 64 << 10
L3_BYTES_PER_CYCLE, MEMORY_BYTES_PER_CYCLE = 16.0, 3.5


# Eight accumulators cover the multiply-add's latency and nothing else: tiles of 2x4 lost up to 12% to 6x2 and
# 4x3 with 96 to 384 channels, more where another thread shares the core (measured on Zen 3).
BARE_LATENCY = 1.04
# A group's few channels of each pixel lie a pixel apart, in few sets of L1: against GroupedConv, which reads
# whole pixels, 1.2 to 1.9 times what the estimates say (measured on Zen 3, groups of 8 and 16 channels).
SCATTERED = 1.25

# Loads' worth of a 16-bit input's broadcast and conversion: measured on Zen 3, tiles of 6x2, 4x3 and 2x4.
WIDENING = 3.0

# Tiles. A row of so many is not cut into tasks, but into tiles of even size: none computes a pixel twice. 7x7
# pixels in 9 tiles of 5 or 6 instead of 6 took 0.77 to 0.94 times as long (1x1 convolutions, Zen 3).
LONG_ROW = 16


@dataclass(frozen=True)
class Axis:
    """One loop over output positions: its extent, and the elements each operand moves per step."""

    extent: int
    x: int
    y: int
    others: tuple[int, ...]


@lru_cache(maxsize=4096)
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


Part = tuple[int, int, int, bool]  # a DirectConv's fields but the last two


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
    def space(cls, problem: ConvProblem, target: Target) -> Iterator[DirectConv]:
        """All register tiles that fit, cache-sized panels, rows and flat, and ways to cut the tasks."""
        for part in cls.parts(problem, target):
            yield from cls.cuts(part, problem, target)

    @classmethod
    def parts(cls, problem: ConvProblem, target: Target) -> Iterator[Part]:
        """What many configurations share: all but how the tasks are cut."""
        rows, width = _rows_and_width(problem)
        for vectors in (2, 3, 4, 1):  # the likely ones first: selection compares the others with them
            pixels = tile_pixels(target, vectors)
            if pixels < 1:
                continue
            for block in _channel_blocks(problem, target, vectors):
                for flat in (False, True):
                    if not flat and rows == 1 and width > LONG_ROW * pixels:
                        continue  # only flat tiles can be cut into tasks
                    yield pixels, vectors, block, flat

    @classmethod
    def cuts(cls, part: Part, problem: ConvProblem, target: Target) -> Iterator[DirectConv]:
        """The configurations of a part."""
        pixels, vectors, block, flat = part
        rows, width = _rows_and_width(problem)
        features = -(-problem.features // (vectors * target.lanes))
        count = -(-rows * width // pixels) if flat else rows
        for row_chunk in _row_chunks(problem, target, block, count, pixels if flat else width):
            for feature_chunk in sorted({-(-features // n) for n in (1, 2, 4, 16)}):
                yield cls(*part, feature_chunk, row_chunk)

    def why_not(self, problem: ConvProblem, target: Target) -> str | None:
        if problem.y.strides[5] != 1:
            return "output channels are not contiguous"
        used = self.pixels * self.vectors + self.vectors + (0 if target.fma_from_memory else 1)
        if used > target.vector_registers:
            return f"{used} vector registers > {target.vector_registers}"
        if problem.channels % self.channel_block:
            return f"{problem.channels} channels are not a multiple of {self.channel_block}"
        if self.channel_block < problem.channels and problem.y.dtype != "float32":
            return f"partial sums can't wait in a {problem.y.dtype} output"
        return None

    def cost(self, problem: ConvProblem, target: Target) -> Estimate:
        """Seconds on one core at 2.4 GHz: cycles of the tiles, bytes from beyond L2. It ranks, no more.

        Two multiply-adds and two loads a cycle; the multiply-add's latency of 4 needs 8 accumulators.
        """
        compute = _tile_cycles(self.pixels, self.vectors, self.channel_block, self.flat, problem, target)
        traffic = self.traffic(problem, target) / bytes_per_cycle(problem, target)
        return Estimate(compute / CLOCK, traffic / CLOCK, 0.5 * min(compute, traffic) / CLOCK)

    @staticmethod
    def least_seconds(part: Part, problem: ConvProblem, target: Target) -> float:
        """What `cost` is at least, however the tasks are cut."""
        return _least_seconds(*part, problem, target)

    def traffic(self, problem: ConvProblem, target: Target) -> float:
        """Bytes from beyond L2: a task's inputs, once if they stay there, else for each tile of channels."""
        rows, features = self._counts(problem, target)
        unit = self.pixels if self.flat else _rows_and_width(problem)[1]
        covered = min(self.row_chunk * unit, problem.pixels)
        step = _step(problem)
        halo = 1.0 if problem.taps == 1 else 1.0 + (problem.kernel[1] - 1) / max(self.row_chunk, 1) / step
        inputs = covered * step * halo * self.channel_block * 4
        chunk = min(self.feature_chunk, features)
        panel = problem.taps * self.channel_block * self.vectors * target.vector_bytes
        passes = 1 if inputs / reached_sets(problem, self.channel_block) + panel <= target.l2 // 2 else chunk
        weights = chunk * panel
        if panel > target.l2 // 2:  # read anew for every tile of pixels
            weights = int(weights * covered / self.pixels)
        panels = problem.channels // self.channel_block
        per_task = panels * (
            inputs * passes + weights
        ) + covered * chunk * self.vectors * target.vector_bytes * (2 * panels - 1)
        return problem.groups * -(-features // self.feature_chunk) * -(-rows // self.row_chunk) * per_task

    def tasks(self, problem: ConvProblem, target: Target) -> int:
        rows, features = self._counts(problem, target)
        return problem.groups * -(-features // self.feature_chunk) * -(-rows // self.row_chunk)

    def scratch_bytes(self, problem: ConvProblem, target: Target) -> int:
        return 0

    def _counts(self, problem: ConvProblem, target: Target) -> tuple[int, int]:
        """(rows or flat tiles of pixels, tiles of output channels)."""
        rows, width = _rows_and_width(problem)
        if self.flat:
            rows = -(-rows * width // self.pixels)
        return rows, -(-problem.features // (self.vectors * target.lanes))

    def pack(self, problem: ConvProblem, target: Target, weight: Array, bias: Array | None) -> list[Array]:
        """The constant operands made from weight (g, k, c, kd, kh, kw) and bias (g, k)."""
        tile = self.vectors * target.lanes
        packed = [pack_weight(weight, self.channel_block, tile)]
        return packed if bias is None else [*packed, pack_bias(bias, tile)]

    def apply(self, problem: ConvProblem, target: Target, symbol: str) -> Any:
        from convopt.schedules.primitives.conv_tiles import Tile, direct_kernel

        return direct_kernel(self, problem, target, symbol, problem.operands, Tile)


def tile_step(
    pixels: float, vectors: int, panel_bytes: float, target: Target, widening: float = 1.0
) -> float:
    """Cycles of a step of a register tile: two multiply-adds and two loads a cycle, a latency of 4.

    panel_bytes: of the weights that pass by. widening: loads' worth of an input's broadcast.
    """
    multiply_adds = pixels * vectors
    loads = 0.0 if target.fma_from_memory else (widening * pixels + vectors) / 2
    step = max(multiply_adds / 2, loads, 4.0)
    if vectors == 1 and not target.fma_from_memory:
        step *= 1.2  # 4.4 to 5.5 cycles for 7 pixels, with 64 and 256 channels (measured on Zen 3)
    if multiply_adds <= 8:
        step *= BARE_LATENCY
    if panel_bytes > target.l1 * 3 // 4:
        step = max(step, vectors * target.vector_bytes / L2_BYTES_PER_CYCLE)
    return step


def around_tile(pixels: float, vectors: int) -> float:
    """Cycles before and after the steps of a register tile.

    Measured on Zen 3, weights in L1: 8 around a tile of 2x4, 13 around 5x2, 20 around 6x2.
    """
    return max(6.0, 3 * pixels * vectors - 16)


@lru_cache(maxsize=4096)
def _tile_cycles(
    pixels: int, vectors: int, channel_block: int, flat: bool, problem: ConvProblem, target: Target
) -> float:
    """Cycles of all register tiles, whatever the cut into tasks: many configurations share them."""
    rows, width = _rows_and_width(problem)
    tiles = -(-rows * width // pixels) if flat else rows * -(-width // pixels)
    covered = rows * width / tiles if not flat else pixels
    features, tail = divmod(problem.features, vectors * target.lanes)
    # Vectors without a channel in the last tile are never computed: the compiler sees that.
    kinds = [(features, vectors), (1 if tail else 0, -(-tail // target.lanes))]
    panels = problem.channels // channel_block
    panel = problem.taps * channel_block * vectors * target.vector_bytes
    compute = 0.0
    for count, used in kinds:
        widening = WIDENING if problem.x.dtype != "float32" and problem.arithmetic == "float32" else 1.0
        step = tile_step(covered, used, panel * used / vectors, target, widening)
        around = around_tile(covered, used) * panels
        compute += count * tiles * (problem.taps * problem.channels * step + around)
    if problem.groups > 1 and 4 * problem.channels <= 2 * CACHE_LINE:
        compute *= SCATTERED
    return compute * problem.groups * (1.03 if flat else 1.0)


@lru_cache(maxsize=4096)
def _least_seconds(
    pixels: int, vectors: int, channel_block: int, flat: bool, problem: ConvProblem, target: Target
) -> float:
    """With each input and weight read once, each output written and its partial sums moved."""
    compute = _tile_cycles(pixels, vectors, channel_block, flat, problem, target)
    rows, width = _rows_and_width(problem)
    features = -(-problem.features // (vectors * target.lanes)) * vectors * target.vector_bytes
    panels = problem.channels // channel_block
    inputs = rows * width * _step(problem) * problem.channels * 4
    weights = problem.taps * problem.channels * features
    moved = inputs + weights + rows * width * features * (2 * panels - 1)
    traffic = problem.groups * moved / bytes_per_cycle(problem, target)
    return (max(compute, traffic) + 0.5 * min(compute, traffic)) / CLOCK


@lru_cache(maxsize=4096)
def _rows_and_width(problem: ConvProblem) -> tuple[int, int]:
    """The innermost loop's extent and the product of the others'."""
    axes = position_axes(problem)
    return prod(a.extent for a in axes[:-1]), axes[-1].extent


def tile_pixels(target: Target, vectors: int) -> int:
    """The most pixels whose accumulators, weights and (without memory operands) one broadcast fit."""
    # Without memory operands one register holds the broadcast; with them LLVM wants one to spare.
    free = target.vector_registers - vectors - 1
    # A spare register or two: LLVM loads the next weights early, and spills where none is left.
    if target.fma_from_memory:
        return min(free // vectors, 14)
    # One vector of channels: LLVM keeps each broadcast in a register of its own, beside its accumulator, and
    # with 8 pixels a sum goes through memory in every step: 9.3 cycles instead of 4.4 (measured on Zen 3).
    return min(free // vectors, 13 if vectors > 1 else (target.vector_registers - 2) // 2)


def _channel_blocks(problem: ConvProblem, target: Target, vectors: int) -> list[int]:
    """All channels in one panel, or the largest divisors whose panel stays in half of L1 and of L2."""
    blocks = {problem.channels}
    for room in (target.l1 // 2, target.l2 // 4):
        most = room // (problem.taps * vectors * target.vector_bytes) if problem.taps else problem.channels
        if problem.y.dtype == "float32":
            downwards = range(min(most, problem.channels), 7, -1)
            blocks.update(b for b in islice((b for b in downwards if problem.channels % b == 0), 1))
    return sorted(blocks)


@lru_cache(maxsize=4096)
def bytes_per_cycle(problem: ConvProblem, target: Target) -> float:
    """From beyond L2: from L3 where inputs and outputs leave it room, else from memory."""
    touched = 4 * (problem.x.size + problem.y.size)
    return L3_BYTES_PER_CYCLE if touched <= target.l3 // 4 else MEMORY_BYTES_PER_CYCLE


@lru_cache(maxsize=4096)
def reached_sets(problem: ConvProblem, block: int) -> float:
    """The part of L2's sets that `block` channels of each pixel fall into: 1/4 for 128 of 512 channels.

    Pixels a power of two apart begin in the same few sets; what part of a cache holds them is
    block / gcd(pixel, way), where a way of L2 has 64 KiB (512 KiB in 8 ways, 1 MiB in 16).
    """
    # A stride over a kernel one pixel wide leaves out what lies between.
    step = problem.strides[2] if problem.kernel[2] == 1 else 1
    pixel = 4 * abs(problem.x.strides[4]) * step
    return min(1.0, 4 * block / gcd(pixel, WAY_BYTES)) if pixel else 1.0


@lru_cache(maxsize=4096)
def _step(problem: ConvProblem) -> int:
    """Input pixels that an output pixel adds; 1 without taps, as in a phase of a transposed convolution."""
    return max(1, prod(min(s, k) for s, k in zip(problem.strides, problem.kernel, strict=True)))


def _row_chunks(problem: ConvProblem, target: Target, block: int, rows: int, unit: int) -> list[int]:
    """Rows (of `unit` pixels) that a task takes: all, a sixteenth, and what keeps its inputs in L2 or L1."""
    step = _step(problem)
    row_bytes = int(unit * step * block * 4 / reached_sets(problem, block))
    fitting = (max(1, room // row_bytes) for room in (target.l2 // 3, target.l1 // 2))
    return sorted({min(rows, chunk) for chunk in (rows, -(-rows // 16), -(-rows // 4), *fitting)})
