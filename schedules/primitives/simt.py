"""Tile arithmetic on plain multiply-adds: a thread computes thread_m x thread_n outputs.

A thread's rows and columns are strided, row = ty + i * (block_m / thread_m), so that the lanes of a wave read
neighbouring rows of shared memory and write neighbouring channels. Both operands are read as vectors along
the reduction.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import lcm
from typing import Any

from convopt.schedules.primitives.shared_tile import StagedOperands


@dataclass(frozen=True)
class SimtTile:
    block_m: int
    block_n: int
    thread_m: int
    thread_n: int
    vector: int  # elements along the reduction that a thread reads at once

    @property
    def across(self) -> int:
        return self.block_n // self.thread_n

    @property
    def down(self) -> int:
        return self.block_m // self.thread_m

    @property
    def threads(self) -> int:
        return self.across * self.down

    @property
    def accumulators(self) -> int:
        return self.thread_m * self.thread_n

    @property
    def registers(self) -> int:
        """32-bit registers of a thread besides addresses: accumulators, a column of A, all of B."""
        return self.accumulators + (self.thread_n + 1) * self.vector

    # The epilogue walks over the block in `strips` of `strip_rows` rows.

    @property
    def strips(self) -> int:
        return self.thread_m

    @property
    def strip_rows(self) -> int:
        return self.down

    def strip_row(self, strip: Any, row: Any) -> Any:
        """The block's row of a strip's row."""
        return strip * self.down + row

    def strip_elements(self, thread: Any, strip: Any) -> list[tuple[Any, Any, Any]]:
        """(accumulator, row in the strip, column) of what a thread has in a strip."""
        row, column = thread // self.across, thread % self.across
        return [(strip * self.thread_n + j, row, column + j * self.across) for j in range(self.thread_n)]

    def strip_stores(self, thread: Any) -> list[tuple[Any, Any, int]]:
        """(row in the strip, column, elements) of a thread's stores to it, for the conflict count."""
        return [(row, column, 1) for _, row, column in self.strip_elements(thread, 0)]

    @property
    def strip_step(self) -> int:
        """Float32 elements that a padded row of the strip must be a multiple of."""
        return 1

    def one_wave(self, lanes: int) -> SimtTile:
        """Whole waves with one output a thread, whose accesses lie as those of every wave and output do."""
        return SimtTile(lcm(lanes, self.across) // self.across, self.across, 1, 1, self.vector)

    def reads(self, stride: int, operand: str, thread: Any) -> list[tuple[Any, int]]:
        """(first element, elements) of a thread's reads of one vector step, for the conflict count.

        stride: elements from row to row of the operand's shared tile.
        """
        ty, tx = thread // self.across, thread % self.across
        first, step, count = (
            (ty, self.down, self.thread_m) if operand == "a" else (tx, self.across, self.thread_n)
        )
        return [((first + i * step) * stride, self.vector) for i in range(count)]

    def emit(self, staged: StagedOperands) -> SimtAccumulators:
        return SimtAccumulators(self, staged)


class SimtAccumulators:
    """The accumulators of a thread and the code that adds to them. Needs tvm."""

    def __init__(self, tile: SimtTile, staged: StagedOperands) -> None:
        from tvm.tirx.script.builder import ir as T

        from convopt.schedules.primitives.gpu_emit import hold_multiple, local, unrolled

        self.tile, self.staged = tile, staged
        self.sums = local(tile.accumulators)
        self.row_a = hold_multiple(staged.thread // tile.across * staged.a.stride, tile.vector)
        self.row_b = hold_multiple(staged.thread % tile.across * staged.b.stride, tile.vector)
        with unrolled(staged.target, tile.accumulators) as i:
            T.buffer_store(self.sums, T.float32(0), [i])
        self.part_a = local(tile.vector, staged.dtype)
        self.part_b = local(tile.vector * tile.thread_n, staged.dtype)

    def multiply_add(self, base_a: Any, base_b: Any) -> None:
        """Adds the product of the tiles that begin at these elements of the pool."""
        from tvm.tirx.script.builder import ir as T

        from convopt.schedules.primitives.gpu_emit import rolled, store, to_float, unrolled, vector

        tile, v, staged = self.tile, self.tile.vector, self.staged
        target, pool, stride_a, stride_b = staged.target, staged.pool, staged.a.stride, staged.b.stride
        with rolled(target, staged.a.columns // v) as step:
            with unrolled(target, tile.thread_n) as j:
                start = base_b + self.row_b + j * (tile.across * stride_b) + step * v
                store(self.part_b, j * v, vector(pool, start, v), v)
            with unrolled(target, tile.thread_m) as i:
                start = base_a + self.row_a + i * (tile.down * stride_a) + step * v
                store(self.part_a, 0, vector(pool, start, v), v)
                with unrolled(target, tile.thread_n) as j, unrolled(target, v) as k:
                    a = to_float(self.part_a[k], staged.dtype)
                    b = to_float(self.part_b[j * v + k], staged.dtype)
                    index = i * tile.thread_n + j
                    T.buffer_store(self.sums, self.sums[index] + a * b, [index])
