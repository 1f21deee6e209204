"""What a lane of a matrix unit holds: reading fragments from shared memory, multiplying them. Needs tvm."""

from __future__ import annotations

from typing import Any

from tvm.tirx.script.builder import ir as T

from convopt.schedules.primitives.gpu_emit import hold_multiple, local, rolled, store, unrolled, vector
from convopt.schedules.primitives.matrix_tile import MatrixTile
from convopt.schedules.primitives.shared_tile import StagedOperands


class FragmentAccumulators:
    """The accumulators of a lane and the code that adds to them."""

    def __init__(self, tile: MatrixTile, staged: StagedOperands) -> None:
        self.tile, self.staged, self.target = tile, staged, staged.target
        self.sums = local(tile.accumulators)
        lane, unit = staged.thread % tile.unit.lanes, tile.unit
        self.origin: dict[str, list[tuple[int, Any, int]]] = {}
        for operand, shared in (("a", staged.a), ("b", staged.b)):
            first = tile.first_row(operand, staged.thread) * shared.stride
            # The unit's own load takes one address of all lanes: where the fragment begins.
            reads = [(0, 0, 0, tile.vector)] if unit.opaque else tile.lane_reads(operand, lane)
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
        unit, pool = self.tile.unit, self.staged.pool
        stride, size, count, part = (
            (self.staged.a.stride, unit.m, self.per_a, self.part_a)
            if operand == "a"
            else (self.staged.b.stride, unit.n, self.per_b, self.part_b)
        )
        for register, origin, width in self.origin[operand]:
            start = base + origin + fragment * (size * stride)
            if unit.opaque:
                places = T.address_of(part[fragment * count]), T.address_of(pool[start])
                T.evaluate(T.call_extern("int32", f"{unit.helper}_load_{operand}", *places, stride))
            elif unit.ldmatrix:
                target = T.address_of(part[fragment * count])
                T.evaluate(T.call_extern("int32", "convopt_ldmatrix_x4", target, T.address_of(pool[start])))
            else:
                store(part, fragment * count + register, vector(pool, start, width), width)

    def multiply_add(self, base_a: Any, base_b: Any) -> None:
        """Adds the product of the tiles that begin at these elements of the pool."""
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
