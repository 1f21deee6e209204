"""Convolution in groups of few channels: a vector of output channels holds several groups, or a part of one.

    task (run of vectors of output channels, run of output rows)
      for row, for tile of columns, for vector of output channels:
        acc[j] = bias
        for kernel plane, for kernel row, for input channel c of a group:
          for input column under the tile:
            e[lane] = x[column, c of the lane's group]      one shuffle, or a broadcast where a group fills it
            acc[j] += e * w[tap]   for each output j that the column reaches, lane by lane its own group's w
        y = epilogue(acc)

No lane computes for nothing, and an input that is spread over a vector once serves all taps of a kernel row.
The vectors of one tile read neighbouring channels: all of a cache line is used while it is there.
Where the input has no border of zeros, kernel rows beyond it are left out, and so are the columns that
border tiles reach beyond it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from convopt.schedules.base import Estimate, TensorView
from convopt.schedules.conv_depthwise import memory_seconds
from convopt.schedules.conv_direct import CLOCK, L2_BYTES_PER_CYCLE, L3_BYTES_PER_CYCLE
from convopt.schedules.conv_problem import Array, ConvProblem, pack_bias
from convopt.schedules.primitives.tile_runs import Window, balanced

if TYPE_CHECKING:
    from convopt.targets import Target

UNROLLED_COLUMNS = 7  # of a kernel row: beyond, its weights find no registers beside the sums
MOST_COLUMNS, MOST_STRIDED_COLUMNS = 14, 9  # wider tiles spill, whatever the number of registers


@dataclass(frozen=True)
class GroupedConv:
    """columns: output pixels of a tile, of one vector of output channels each.

    channel_chunk: vectors of output channels that a task takes; row_chunk: output rows of it.
    """

    name: ClassVar[str] = "grouped"
    columns: int
    channel_chunk: int
    row_chunk: int

    @classmethod
    def space(cls, problem: ConvProblem, target: Target) -> Iterator[GroupedConv]:
        if _why_not_shape(problem, target.lanes) is not None:
            yield cls(1, 1, 1)  # for its reason
            return
        width = problem.y.shape[4]
        rows, vectors = output_rows(problem), vectors_of(problem, target)
        limit = min(MOST_COLUMNS if problem.strides[2] == 1 else MOST_STRIDED_COLUMNS, width)
        most = max(
            n
            for n in range(1, limit + 1)
            if n == 1 or _registers(n, problem, target) <= target.vector_registers
        )
        per_vector = problem.taps * problem.channels * target.vector_bytes
        chunks = {vectors, -(-vectors // 2), *(max(1, target.l2 // part // per_vector) for part in (4, 16))}
        for columns in sorted(
            {most, -(-width // -(-width // most)), min(8, most), min(6, most), min(4, most)}
        ):
            for channel_chunk in sorted({min(chunk, vectors) for chunk in chunks}):
                for row_chunk in sorted({1, -(-rows // 16), -(-rows // 4), rows}):
                    yield cls(columns, channel_chunk, row_chunk)

    def why_not(self, problem: ConvProblem, target: Target) -> str | None:
        if (reason := _why_not_shape(problem, target.lanes)) is not None:
            return reason
        used = _registers(self.columns, problem, target)
        if used > target.vector_registers:
            return f"{used} vector registers > {target.vector_registers}"
        if taps_at_once(problem) < problem.kernel[2] and not Window.of(problem, 2).stays_inside:
            return f"{problem.kernel[2]} taps in a row are not unrolled: they read the border"
        return None

    def cost(self, problem: ConvProblem, target: Target) -> Estimate:
        """Two multiply-adds a cycle, their sum with the shuffles three, two loads; weights from L1 or L2.

        The multiply-adds of an output wait for each other, 4 cycles each.
        """
        taps, window = taps_at_once(problem), Window.of(problem, 2)
        steps = problem.taps * problem.channels // taps
        shuffles = inputs_at_once(problem, target.lanes) > 1
        vectors = vectors_of(problem, target)
        per_vector = problem.taps * problem.channels * target.vector_bytes
        weights = min(self.channel_chunk, vectors) * per_vector
        cycles = 0.0
        for _, count, size in balanced(problem.y.shape[4], self.columns):
            products = taps * size
            spread = len(window.reached(size)) if taps > 1 else size
            step = max(products / 2, (spread + taps) / 2, 4.0 * taps)
            if shuffles:
                step = max(step, (products + spread) / 3)
            if weights > target.l1 // 2:
                step = max(step, taps * target.vector_bytes / L2_BYTES_PER_CYCLE)
            cycles += count * (steps * step + 2.0 * size + 10)
        compute = output_rows(problem) * vectors * cycles / CLOCK
        memory = memory_seconds(4 * (problem.x.size + problem.y.size), target)
        if weights > target.l2 // 2:  # read anew for every row
            memory += output_rows(problem) * vectors * per_vector / L3_BYTES_PER_CYCLE / CLOCK
        return Estimate(compute, memory, 0.1 * min(compute, memory))

    def tasks(self, problem: ConvProblem, target: Target) -> int:
        chunks = -(-vectors_of(problem, target) // self.channel_chunk)
        return chunks * -(-output_rows(problem) // self.row_chunk)

    def scratch_bytes(self, problem: ConvProblem, target: Target) -> int:
        return 0

    def pack(self, problem: ConvProblem, target: Target, weight: Array, bias: Array | None) -> list[Array]:
        """Weight (g, k, c, kd, kh, kw) to (vectors of g*k, kd, kh, c, kw, lanes), zeros in the last one."""
        g, k, c, *taps = weight.shape
        vectors, lanes = vectors_of(problem, target), target.lanes
        padded = np.zeros((vectors * lanes, c, *taps), np.float32)
        padded[: g * k] = weight.reshape(g * k, c, *taps)
        split = padded.reshape(vectors, lanes, c, *taps)
        packed = [np.ascontiguousarray(split.transpose(0, 3, 4, 2, 5, 1))]
        return packed if bias is None else [*packed, pack_bias(bias.reshape(1, -1), lanes)]

    def apply(self, problem: ConvProblem, target: Target, symbol: str) -> Any:
        from convopt.schedules.primitives.grouped_tiles import grouped_kernel

        return grouped_kernel(self, problem, target, symbol)


def output_rows(problem: ConvProblem) -> int:
    """Of all images."""
    _, images, depth, height, _, _ = problem.y.shape
    return images * depth * height


def vectors_of(problem: ConvProblem, target: Target) -> int:
    """Vectors of output channels of all groups, the last one perhaps in part."""
    return -(-problem.groups * problem.features // target.lanes)


def taps_at_once(problem: ConvProblem) -> int:
    """Taps of a kernel row whose products are unrolled: all, or one."""
    return problem.kernel[2] if problem.kernel[2] <= UNROLLED_COLUMNS else 1


def inputs_at_once(problem: ConvProblem, lanes: int) -> int:
    """Groups that `lanes` neighbouring output channels belong to."""
    return max(1, lanes // problem.features)


def _registers(columns: int, problem: ConvProblem, target: Target) -> int:
    """Sums, the taps of a kernel row and an input; all inputs where no loop parts the channels.

    LLVM loads the next input early; several of them where each is shuffled, or a stride has them serve fewer
    taps.
    """
    taps, shuffles = taps_at_once(problem), inputs_at_once(problem, target.lanes) > 1
    inputs = 4 if shuffles or problem.strides[2] > 1 else 2
    alone = problem.kernel[0] * problem.kernel[1] * (problem.kernel[2] // taps) == 1
    if alone and problem.channels > 1 and shuffles:
        inputs = len(Window.of(problem, 2).reached(columns))
    return columns + taps + inputs


def _why_not_shape(problem: ConvProblem, lanes: int) -> str | None:
    """What the configuration has no part in."""
    channels, features = problem.channels, problem.features
    if problem.groups == 1 or channels == features == 1:
        return "there are no groups of channels"
    if problem.taps * channels == 0:  # a phase of a transposed convolution
        return "there are no products"
    if features % lanes and lanes % features:
        return f"{features} output channels of a group neither fill vectors of {lanes} nor divide them"
    if features < lanes and (channels & (channels - 1) or channels > 2 * features):
        return f"{channels} inputs for {features} output channels can't be spread by one shuffle"
    for text, view in (("input", problem.x), ("output", problem.y)):
        if channel_step(view) != 1:
            return f"{text} channels are not contiguous"
    if any(channel_step(view) is None for view in problem.others):
        return "an operand's groups are not as far from each other as its channels"
    return None


def channel_step(view: TensorView) -> int | None:
    """Elements from one channel to the next, over all groups; None where groups have a step of their own."""
    groups, per_group = view.strides[0], view.strides[5]
    if view.shape[5] == 1:
        return groups
    return per_group if groups == view.shape[5] * per_group else None
