"""Depthwise convolution on channels-last data: vectors over channels, one register per output pixel.

    task (image, block of output rows, run of channels)
      for tile of columns, for vector of channels:
        acc[i][j] = bias
        for every input vector under the tile:  acc[i][j] += x * w[tap]  for each output that it reaches
        y = epilogue(acc)

Each input vector is loaded once for all outputs of a tile. Kernels with many taps loop over them instead.
Where the input has no border of zeros, the tiles that reach beyond it are copies of the code without the taps
that fall outside.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from convopt.schedules.base import Estimate
from convopt.schedules.conv_direct import CLOCK, L3_BYTES_PER_CYCLE, MEMORY_BYTES_PER_CYCLE
from convopt.schedules.conv_problem import Array, ConvProblem
from convopt.schedules.primitives.tile_runs import Window, tile_runs

if TYPE_CHECKING:
    from convopt.targets import Target

UNROLLED_TAPS = 49  # 7x7: beyond, the code of a tile outgrows the instruction cache
MOST_PRODUCTS = 8192  # of all tiles with and without their borders: 100 KB of code


def memory_seconds(nbytes: int, target: Target) -> float:
    """Of one core that reads and writes so much once: from L3 where it fits, else from memory."""
    per_cycle = L3_BYTES_PER_CYCLE if nbytes <= target.l3 // 4 else MEMORY_BYTES_PER_CYCLE
    return nbytes / per_cycle / CLOCK


@dataclass(frozen=True)
class DepthwiseConv:
    """rows x columns: the output pixels of a tile. channel_chunk: vectors of channels that a task takes."""

    name: ClassVar[str] = "depthwise"
    rows: int
    columns: int
    channel_chunk: int

    @classmethod
    def space(cls, problem: ConvProblem, target: Target) -> Iterator[DepthwiseConv]:
        vectors = -(-problem.groups // target.lanes)
        height, width = problem.y.shape[3:5]
        for rows, columns in ((1, 4), (2, 2), (2, 4), (1, 8), (4, 2), (1, 2), (1, 1)):
            if rows <= height and columns <= width:
                bands = problem.y.shape[1] * problem.y.shape[2] * -(-height // rows)
                yield cls(rows, columns, vectors if bands >= 8 else max(1, vectors * bands // 8))

    def why_not(self, problem: ConvProblem, target: Target) -> str | None:
        if problem.channels != 1 or problem.features != 1:
            return "groups have more than one channel"
        if problem.groups > 1 and (problem.x.strides[0] != 1 or problem.y.strides[0] != 1):
            return "channels are not contiguous"
        if self.rows * self.columns + 4 > target.vector_registers:
            return f"{self.rows * self.columns + 4} vector registers > {target.vector_registers}"
        if self.rows > 1 and problem.taps > UNROLLED_TAPS:
            return f"{problem.taps} taps are not unrolled: one row at a time"
        return None if problem.bordered else self._why_no_border(problem)

    def _why_no_border(self, problem: ConvProblem) -> str | None:
        """Why the problem wants an input with a border of zeros."""
        if problem.taps > UNROLLED_TAPS:
            return f"{problem.taps} taps are not unrolled: they read the border"
        if not Window.of(problem, 0).stays_inside:
            return "the kernel leaves the input's depth: it reads the border"
        rows, columns = (
            sum(run.size for run in tile_runs(Window.of(problem, dim), most))
            for dim, most in ((1, self.rows), (2, self.columns))
        )
        products = rows * columns * problem.taps
        return f"{products} products of border tiles > {MOST_PRODUCTS}" if products > MOST_PRODUCTS else None

    def cost(self, problem: ConvProblem, target: Target) -> Estimate:
        """Loads, multiply-adds or their latency; x and y from beyond L2. Same unit as DirectConv's."""
        sh, sw = problem.strides[1:]
        kd, kh, kw = problem.kernel
        taps, outputs = problem.taps, self.rows * self.columns
        if taps > UNROLLED_TAPS:
            loads = float(taps * (outputs + 1))
        else:
            loads = float(((self.rows - 1) * sh + kh) * ((self.columns - 1) * sw + kw) * kd)
            # What of the weights finds no register beside the sums is loaded for each multiply-add.
            loads += max(0, taps - (target.vector_registers - outputs - 2)) * outputs
        cycles = max((loads + outputs) / 2, taps * outputs / 2)
        # The multiply-adds of an output wait for each other, 4 cycles each; half of that is hidden by the
        # tiles before and behind (measured on Zen 3: 3x3, 5x5 and 7x7 with tiles of 4 and 8 outputs).
        cycles += max(0.0, 4.0 * taps - cycles) / 2
        height, width = problem.y.shape[3:5]
        tiles = -(-height // self.rows) * -(-width // self.columns) * prod(problem.y.shape[1:3])
        vectors = -(-problem.groups // target.lanes)
        compute = tiles * vectors * cycles / CLOCK
        memory = memory_seconds(4 * (problem.x.size + problem.y.size), target)
        return Estimate(compute, memory, 0.1 * min(compute, memory))

    def tasks(self, problem: ConvProblem, target: Target) -> int:
        bands = -(-problem.y.shape[3] // self.rows)
        vectors = -(-problem.groups // target.lanes)
        chunks = -(-vectors // self.channel_chunk)
        return problem.y.shape[1] * problem.y.shape[2] * bands * chunks

    def scratch_bytes(self, problem: ConvProblem, target: Target) -> int:
        return 0

    def pack(self, problem: ConvProblem, target: Target, weight: Array, bias: Array | None) -> list[Array]:
        """Weight (g, 1, 1, kd, kh, kw) to (kd, kh, kw, g)."""
        packed = [np.ascontiguousarray(weight[:, 0, 0].transpose(1, 2, 3, 0))]
        return packed if bias is None else [*packed, np.ascontiguousarray(bias.reshape(-1))]

    def apply(self, problem: ConvProblem, target: Target, symbol: str) -> Any:
        from convopt.schedules.primitives.depthwise_tiles import depthwise_kernel

        return depthwise_kernel(self, problem, target, symbol)
