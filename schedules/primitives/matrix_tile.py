"""Tile arithmetic on a matrix unit: a wave computes part_m x part_n outputs as fragments of the unit's shape.

Which lane reads and holds what comes from the unit's table alone (`convopt.targets.matrix_units`). Where a
lane's elements of A and B are neighbours along the reduction, `pack` steps are read as one vector: the unit
sums over k in any order, as long as A and B agree. A unit whose layouts are opaque loads fragments from
shared memory and stores them there itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from convopt.schedules.primitives.shared_tile import StagedOperands
from convopt.targets.matrix_units import MatrixUnit

if TYPE_CHECKING:
    from convopt.schedules.primitives.fragment_accumulators import FragmentAccumulators

MOST_BYTES = 16  # in a read of shared memory, and in a row of ldmatrix
WMMA_STORE_ROW = 4  # float32: rows of 16 bytes, CUDA C++ programming guide, store_matrix_sync


@dataclass(frozen=True)
class MatrixTile:
    unit: MatrixUnit
    block_m: int
    block_n: int
    block_k: int
    part_m: int
    part_n: int

    @property
    def across(self) -> int:
        """Waves side by side along the output channels."""
        return self.block_n // self.part_n

    @property
    def threads(self) -> int:
        return self.block_m // self.part_m * self.across * self.unit.lanes

    @property
    def fragments(self) -> tuple[int, int]:
        """Fragments of a wave along m and n."""
        return self.part_m // self.unit.m, self.part_n // self.unit.n

    @property
    def accumulators(self) -> int:
        return self.fragments[0] * self.fragments[1] * self.unit.c.registers

    @cached_property
    def pack(self) -> int:
        """Steps of the unit that one read of a lane serves."""
        run = 0 if self.unit.opaque else self.unit.a.run
        pack = 1
        if not self._by_rows and run == self.unit.a.registers:
            while 2 * pack * run <= self.most_vector and self.block_k % (2 * pack * self.unit.k) == 0:
                pack *= 2
        return pack

    @property
    def most_vector(self) -> int:
        """Elements of the widest read of shared memory."""
        return MOST_BYTES // self.unit.itemsize

    @property
    def _by_rows(self) -> bool:
        """Whether the unit's own load reads whole rows of fragments, 16 bytes of each at a time."""
        return self.unit.ldmatrix or self.unit.opaque

    @property
    def step(self) -> int:
        """Elements of the reduction between two rounds of reads."""
        return self.unit.k * self.pack

    @property
    def vector(self) -> int:
        """Elements of a read of shared memory, which the padded rows must keep aligned."""
        return self.most_vector if self._by_rows else min(self.unit.a.run * self.pack, self.most_vector)

    @property
    def registers(self) -> int:
        m, n = self.fragments
        read = (m * self.unit.a.registers + n * self.unit.b.registers) * self.pack
        return self.accumulators + read * self.unit.itemsize // 4

    @property
    def granule(self) -> tuple[int, int, int]:
        """What part_m, part_n and block_k are multiples of: a fragment, of B two per ldmatrix."""
        unit = self.unit
        return unit.m, 2 * unit.n if unit.ldmatrix else unit.n, unit.k

    def why_not(self) -> str | None:
        m, n, k = self.granule
        if self.part_m % m or self.part_n % n or self.block_k % k:
            return f"{self.part_m}x{self.part_n}x{self.block_k} is no multiple of {m}x{n}x{k}"
        return None

    # The epilogue walks over the block in `strips` of `strip_rows` rows: a row of fragments of every wave.

    @property
    def strips(self) -> int:
        return self.fragments[0]

    @property
    def strip_rows(self) -> int:
        return self.block_m // self.part_m * self.unit.m

    def strip_row(self, strip: Any, row: Any) -> Any:
        """The block's row of a strip's row."""
        return row // self.unit.m * self.part_m + strip * self.unit.m + row % self.unit.m

    def strip_elements(self, thread: Any, strip: Any) -> list[tuple[Any, Any, Any]]:
        """(accumulator, row in the strip, column) of what a thread has in a strip."""
        wave, lane = thread // self.unit.lanes, thread % self.unit.lanes
        down, right = wave // self.across * self.unit.m, wave % self.across * self.part_n
        count, found = self.unit.c.registers, []
        for fragment in range(self.fragments[1]):
            for register in range(count):
                row, column = self.unit.c.at(lane, register)
                index = (strip * self.fragments[1] + fragment) * count + register
                found.append((index, down + row, right + fragment * self.unit.n + column))
        return found

    def strip_fragments(self, thread: Any, strip: Any) -> list[tuple[Any, Any, Any]]:
        """(first accumulator, first row in the strip, first column) of a wave's fragments in a strip."""
        wave, count = thread // self.unit.lanes, self.unit.c.registers
        down, right = wave // self.across * self.unit.m, wave % self.across * self.part_n
        first = strip * self.fragments[1]
        return [((first + j) * count, down, right + j * self.unit.n) for j in range(self.fragments[1])]

    def strip_stores(self, thread: Any) -> list[tuple[Any, Any, int]]:
        """(row in the strip, column, elements) of a thread's stores to it, for the conflict count.

        Of a unit with opaque layouts what nvcc makes of wmma's store for sm_75 to sm_90: pairs of the two
        halves of 8 columns, rows as in mma.m16n8k16.
        """
        if not self.unit.opaque:
            return [(row, column, 1) for _, row, column in self.strip_elements(thread, 0)]
        row, column = thread % self.unit.lanes // 4, thread % 4 * 2
        return [
            (down + row + i, right + column + j, 2)
            for _, down, right in self.strip_fragments(thread, 0)
            for i in (0, 8)
            for j in (0, 8)
        ]

    @property
    def strip_step(self) -> int:
        """Float32 elements that a padded row of the strip must be a multiple of."""
        return WMMA_STORE_ROW if self.unit.opaque else 1

    def first_row(self, operand: str, thread: Any) -> Any:
        """The shared tile's row where the wave's part begins."""
        wave = thread // self.unit.lanes
        return wave // self.across * self.part_m if operand == "a" else wave % self.across * self.part_n

    def lane_reads(self, operand: str, lane: Any) -> list[tuple[int, Any, Any, int]]:
        """(first register, row, column, elements) of a lane's reads for one fragment (ldmatrix: an address).

        ldmatrix takes four matrices of 8 rows of 16 bytes, the address of row i of matrix j from lane 8j + i:
        for A the upper and lower rows, then both again further along k; for B both halves of k, then both for
        the next fragment. nvcc makes the same of wmma's loads from sm_75 on.
        """
        layout, half = self.unit.a if operand == "a" else self.unit.b, self.most_vector
        if self._by_rows:
            row, column = lane % 16, lane // 16 * half
            if operand == "b":
                row, column = lane // 16 * 8 + lane % 8, lane // 8 % 2 * half
            return [(0, row, column, half)]
        if self.pack > 1:
            row, column = layout.at(lane, 0)
            return [(0, row, column * self.pack, self.vector)]
        width = min(layout.run, self.most_vector)
        return [(r, *layout.at(lane, r), width) for r in range(0, layout.registers, width)]

    def one_wave(self, lanes: int) -> MatrixTile:
        """A wave with the fewest fragments, whose accesses lie as those of every wave and fragment do."""
        m, n, _ = self.granule
        return MatrixTile(self.unit, m, n, self.block_k, m, n)

    def reads(self, stride: int, operand: str, thread: Any) -> list[tuple[Any, int]]:
        """(first element, elements) of a thread's reads for one fragment, for the conflict count.

        stride: elements from row to row of the operand's shared tile.
        """
        first = self.first_row(operand, thread)
        found = self.lane_reads(operand, thread % self.unit.lanes)
        return [((first + row) * stride + column, width) for _, row, column, width in found]

    def emit(self, staged: StagedOperands) -> FragmentAccumulators:
        from convopt.schedules.primitives.fragment_accumulators import FragmentAccumulators

        return FragmentAccumulators(self, staged)
