"""Tile arithmetic on a matrix unit: a wave computes part_m x part_n outputs as fragments of the unit's shape.

Which lane reads and holds what comes from the unit's table alone (`convopt.targets.matrix_units`). Where a
lane's elements of A and B are neighbours along the reduction, `pack` steps are read as one vector: the unit
sums over k in any order, as long as A and B agree.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from convopt.schedules.primitives.shared_tile import SharedTile, StagedOperands
from convopt.targets.matrix_units import Layout, MatrixUnit

MOST_VECTOR = 8  # elements of 16 bits in a read of shared memory
LDMATRIX_ROW = 8  # elements


def run_of(layout: Layout) -> int:
    """Registers from an aligned one on that are neighbours along the reduction."""
    run = 1
    while run < layout.registers:
        wider = 2 * run
        for first in range(0, layout.registers, wider):
            row, column = layout.at(0, first)
            if any(layout.at(0, first + i) != (row, column + i) for i in range(wider)):
                return run
        run = wider
    return run


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
        run = run_of(self.unit.a)
        pack = 1
        if not self.unit.ldmatrix and run == self.unit.a.registers:
            while 2 * pack * run <= MOST_VECTOR and self.block_k % (2 * pack * self.unit.k) == 0:
                pack *= 2
        return pack

    @property
    def step(self) -> int:
        """Elements of the reduction between two rounds of reads."""
        return self.unit.k * self.pack

    @property
    def vector(self) -> int:
        """Elements of a read of shared memory, which the padded rows must keep aligned."""
        return LDMATRIX_ROW if self.unit.ldmatrix else min(run_of(self.unit.a) * self.pack, MOST_VECTOR)

    @property
    def registers(self) -> int:
        m, n = self.fragments
        read = (m * self.unit.a.registers + n * self.unit.b.registers) * self.pack // 2
        return self.accumulators + read

    def why_not(self) -> str | None:
        unit = self.unit
        n_step = 2 * unit.n if unit.ldmatrix else unit.n  # two fragments of B per ldmatrix
        if self.part_m % unit.m or self.part_n % n_step or self.block_k % unit.k:
            return f"{self.part_m}x{self.part_n}x{self.block_k} is no multiple of {unit.m}x{n_step}x{unit.k}"
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

    def first_row(self, operand: str, thread: Any) -> Any:
        """The shared tile's row where the wave's part begins."""
        wave = thread // self.unit.lanes
        return wave // self.across * self.part_m if operand == "a" else wave % self.across * self.part_n

    def lane_reads(self, operand: str, lane: Any) -> list[tuple[int, Any, Any, int]]:
        """(first register, row, column, elements) of a lane's reads for one fragment (ldmatrix: an address).

        ldmatrix takes four 8x8 matrices, the address of row i of matrix j from lane 8j + i: for A the upper
        and lower rows, then both again 8 further along k; for B both halves of k, then both for the next
        fragment.
        """
        layout = self.unit.a if operand == "a" else self.unit.b
        if self.unit.ldmatrix:
            row, column = lane % 16, lane // 16 * 8
            if operand == "b":
                row, column = lane // 16 * 8 + lane % 8, lane // 8 % 2 * 8
            return [(0, row, column, LDMATRIX_ROW)]
        if self.pack > 1:
            row, column = layout.at(lane, 0)
            return [(0, row, column * self.pack, self.vector)]
        width = min(run_of(layout), MOST_VECTOR)
        return [(r, *layout.at(lane, r), width) for r in range(0, layout.registers, width)]

    def reads(self, tile: SharedTile, operand: str, thread: Any) -> list[tuple[Any, int]]:
        """(first element, elements) of a thread's reads for one fragment, for the conflict count."""
        first = self.first_row(operand, thread)
        found = self.lane_reads(operand, thread % self.unit.lanes)
        return [((first + row) * tile.stride + column, width) for _, row, column, width in found]

    def emit(self, staged: StagedOperands) -> FragmentAccumulators:
        return FragmentAccumulators(self, staged)


class FragmentAccumulators:
    """The accumulators of a lane and the code that adds to them. Needs tvm."""

    def __init__(self, tile: MatrixTile, staged: StagedOperands) -> None:
        from tvm.tirx.script.builder import ir as T

        from convopt.schedules.primitives.gpu_emit import hold_multiple, local, unrolled

        self.tile, self.staged, self.target = tile, staged, staged.target
        self.sums = local(tile.accumulators)
        lane, unit = staged.thread % tile.unit.lanes, tile.unit
        self.origin: dict[str, list[tuple[int, Any, int]]] = {}
        for operand, shared in (("a", staged.a), ("b", staged.b)):
            first = tile.first_row(operand, staged.thread) * shared.stride
            reads = tile.lane_reads(operand, lane)
            self.origin[operand] = [
                (register, hold_multiple(first + row * shared.stride + column, width), width)
                for register, row, column, width in reads
            ]
        self.per_a, self.per_b = unit.a.registers * tile.pack, unit.b.registers * tile.pack
        self.part_a = local(tile.fragments[0] * self.per_a, staged.dtype)
        self.part_b = local(tile.fragments[1] * self.per_b, staged.dtype)
        with unrolled(self.target, tile.accumulators) as i:
            T.buffer_store(self.sums, T.float32(0), [i])

    def _read(self, operand: str, fragment: Any, base: Any) -> None:
        """One fragment (two of B for ldmatrix) from shared memory, its reduction from `base` on."""
        from tvm.tirx.script.builder import ir as T

        from convopt.schedules.primitives.gpu_emit import store, vector

        unit, pool = self.tile.unit, self.staged.pool
        stride, size, count, part = (
            (self.staged.a.stride, unit.m, self.per_a, self.part_a)
            if operand == "a"
            else (self.staged.b.stride, unit.n, self.per_b, self.part_b)
        )
        for register, origin, width in self.origin[operand]:
            start = base + origin + fragment * (size * stride)
            if unit.ldmatrix:
                target = T.address_of(part[fragment * count])
                T.evaluate(T.call_extern("int32", "convopt_ldmatrix_x4", target, T.address_of(pool[start])))
            else:
                store(part, fragment * count + register, vector(pool, start, width), width)

    def multiply_add(self, base_a: Any, base_b: Any) -> None:
        """Adds the product of the tiles that begin at these elements of the pool."""
        from convopt.schedules.primitives.gpu_emit import rolled, unrolled

        tile, unit = self.tile, self.tile.unit
        m, n = tile.fragments
        together = 2 if unit.ldmatrix else 1
        # nvcc keeps the fragments of two steps in registers; others load those of all steps at the start.
        around = unrolled if self.target.kind == "cuda" else rolled
        with around(self.target, self.staged.a.columns // tile.step) as step:
            with unrolled(self.target, m) as i:
                self._read("a", i, base_a + step * tile.step)
            with unrolled(self.target, n // together) as j:
                self._read("b", j * together, base_b + step * tile.step)
            for sub in range(tile.pack):
                with unrolled(self.target, m) as i, unrolled(self.target, n) as j:
                    a = i * self.per_a + sub * unit.a.registers
                    b = j * self.per_b + sub * unit.b.registers
                    self._multiply((i * n + j) * unit.c.registers, a, b)

    def _multiply(self, c: Any, a: Any, b: Any) -> None:
        from tvm.tirx.script.builder import ir as T

        from convopt.schedules.primitives.gpu_emit import store, vector

        unit = self.tile.unit
        if self.target.kind != "rocm":
            places = [T.address_of(x[i]) for x, i in ((self.sums, c), (self.part_a, a), (self.part_b, b))]
            T.evaluate(T.call_extern("int32", f"{unit.helper}_{self.staged.dtype}", *places))
            return
        count = unit.c.registers
        operands = [
            vector(self.part_a, a, unit.a.registers),
            vector(self.part_b, b, unit.b.registers),
            vector(self.sums, c, count),
        ]
        # MFMA's last three: whether and how blocks of A are broadcast or lanes permuted. Neither.
        control = [T.int32(0)] * 3 if unit.name.startswith("mfma") else []
        name = dict(unit.llvm)[self.staged.dtype]
        store(self.sums, c, T.call_llvm_pure_intrin(f"float32x{count}", name, *operands, *control), count)
