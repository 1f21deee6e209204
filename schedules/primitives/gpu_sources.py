"""Where the tiles of an implicit GEMM come from: images (the im2col view), packed weights, plain matrices.

A source knows, per vector of a tile, its place in global memory and the condition under which it is inside;
outside it reads zeros. Needs tvm.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from tvm.tirx.script.builder import ir as T

from convopt.schedules.base import TensorView
from convopt.schedules.conv_problem import ConvProblem
from convopt.schedules.primitives.gpu_emit import (
    Bits,
    all_of,
    hold,
    hold_multiple,
    local,
    when,
)
from convopt.schedules.primitives.gpu_nest import indices_of
from convopt.schedules.primitives.shared_tile import SharedTile
from convopt.schedules.primitives.vector_width import ITEMSIZE


class Source(Protocol):
    """One operand of the GEMM as rows (pixels or output channels) by the reduction."""

    buffer: Any
    dtype: str

    def enter(self, rows: Sequence[Any], unit: int) -> None:
        """Prepares the addresses of these rows, one per slot, before the loop over the reduction.

        unit: elements of a load; every row begins at a multiple of it.
        """
        ...

    def at(self, slot: int, k: Any) -> tuple[Any, Any]:
        """(offset, condition or None) of the element at the slot's row and position k of the reduction."""
        ...


class ImageRows:
    """The im2col view of a conv's input: row m is an output pixel, k a tap and an input channel."""

    def __init__(self, problem: ConvProblem, buffer: Any, group: Any, block_k: int, exact: bool) -> None:
        """exact: every row is a pixel, none lies beyond the last. block_k: where taps start inside a tile."""
        self.problem, self.buffer, self.dtype = problem, buffer, problem.x.dtype
        self.start = group * problem.x.strides[0] if problem.groups > 1 else 0
        self.block_k, self.exact = block_k, exact
        self.rows: list[tuple[Any, list[Any], Any]] = []

    def enter(self, rows: Sequence[Any], unit: int) -> None:
        x, y = self.problem.x, self.problem.y
        for m in rows:
            n, *outputs = indices_of(m, y.shape[1:5])
            first = [
                o * s - p if s != 1 or p else o
                for o, s, p in zip(outputs, self.problem.strides, self.problem.pads, strict=True)
            ]
            checked = [hold(f) if self._bounds(d) != (False, False) else f for d, f in enumerate(first)]
            offset = self.start + n * x.strides[1]
            for d, f in enumerate(checked):
                offset = offset + f * x.strides[2 + d]
            inside = None if self.exact else m < self.problem.pixels
            self.rows.append((hold_multiple(offset, unit), checked, inside))

    def _bounds(self, d: int) -> tuple[bool, bool]:
        """Whether a window can reach before the first and beyond the last position of dim d."""
        p = self.problem
        reach = (p.y.shape[2 + d] - 1) * p.strides[d] + (p.kernel[d] - 1) * p.dilations[d] - p.pads[d]
        return p.pads[d] > 0, reach >= p.x.shape[2 + d]

    def at(self, slot: int, k: Any) -> tuple[Any, Any]:
        p = self.problem
        offset, first, inside = self.rows[slot]
        conditions = [] if inside is None else [inside]
        if (p.taps * p.channels) % self.block_k:
            conditions.append(k < p.taps * p.channels)
        tap, channel = (0, k) if p.taps == 1 else (k // p.channels, k % p.channels)
        offset = offset + channel * p.x.strides[5]
        for d, r in enumerate(indices_of(tap, p.kernel)):
            step = r * p.dilations[d]
            position = first[d] + step
            before, beyond = self._bounds(d)
            conditions += [position >= 0] if before else []
            conditions += [position < p.x.shape[2 + d]] if beyond else []
            offset = offset + step * p.x.strides[2 + d]
        return offset, all_of(conditions)


class PackedRows:
    """Weights packed as (groups, rows, reduction), both padded by zeros to whole tiles."""

    def __init__(self, buffer: Any, dtype: str, group: Any, rows: int, reduction: int) -> None:
        self.buffer, self.dtype, self.reduction = buffer, dtype, reduction
        self.start = group * (rows * reduction)
        self.offsets: list[Any] = []

    def enter(self, rows: Sequence[Any], unit: int) -> None:
        self.offsets = [hold_multiple(self.start + row * self.reduction, unit) for row in rows]

    def at(self, slot: int, k: Any) -> tuple[Any, Any]:
        return self.offsets[slot] + k, None


class MatrixRows:
    """A matrix (groups, rows, reduction) of any strides."""

    def __init__(self, buffer: Any, view: TensorView, group: Any, exact: tuple[bool, bool]) -> None:
        """exact: whether all rows, and all positions of the reduction, exist."""
        self.buffer, self.view, self.dtype, self.exact = buffer, view, view.dtype, exact
        self.start = group * view.strides[0] if view.shape[0] > 1 else 0
        self.rows: list[tuple[Any, Any]] = []

    def enter(self, rows: Sequence[Any], unit: int) -> None:
        for row in rows:
            offset = hold_multiple(self.start + row * self.view.strides[1], unit)
            self.rows.append((offset, None if self.exact[0] else row < self.view.shape[1]))

    def at(self, slot: int, k: Any) -> tuple[Any, Any]:
        (row, inside), conditions = self.rows[slot], []
        if inside is not None:
            conditions.append(inside)
        if not self.exact[1]:
            conditions.append(k < self.view.shape[2])
        return row + k * self.view.strides[2], all_of(conditions)


class TileLoader:
    """Fills a SharedTile from a source: through registers (`load`, then `store`) or by `copy`."""

    def __init__(
        self, tile: SharedTile, source: Source, thread: Any, first_row: Any, checked_bytes: int = 0
    ) -> None:
        """checked_bytes: of the source's memory, where the device's loads can check it; 0: they can't."""
        self.tile, self.source, self.thread, self.checked_bytes = tile, source, thread, checked_bytes
        self.places = [tile.position(thread, slot) for slot in range(tile.slots)]
        self.registers = local(tile.slots * tile.vector, source.dtype)
        source.enter([first_row + row for row, _ in self.places], tile.vector)

    def _exists(self, slot: int) -> Any:
        last = slot == self.tile.slots - 1 and not self.tile.is_even
        return self.thread + slot * self.tile.threads < self.tile.vectors if last else None

    def load(self, first_k: Any) -> None:
        """Global memory to registers; first_k: the tile's first position of the reduction."""
        v, itemsize = self.tile.vector, ITEMSIZE[self.source.dtype]
        origin = Bits.of(self.source.buffer, self.source.dtype, v)
        kept = Bits.of(self.registers, self.source.dtype, v)
        for slot, (_, column) in enumerate(self.places):
            with when(self._exists(slot)):
                offset, inside = self.source.at(slot, first_k + column)
                if inside is None:
                    kept.put(slot * v, origin.get(offset, v), v)
                    continue
                if self.checked_bytes and v * itemsize % 4 == 0:
                    Bits.words(self.registers, 4 // itemsize).put(slot * v, self._checked(offset, inside), v)
                    continue
                with T.If(inside):
                    with T.Then():
                        kept.put(slot * v, origin.get(offset, v), v)
                    with T.Else():
                        kept.put(slot * v, origin.zeros(v), v)

    def _checked(self, offset: Any, inside: Any) -> Any:
        """A vector's words, by a load that finds out for itself whether it is inside: no branch around it."""
        itemsize = ITEMSIZE[self.source.dtype]
        words = self.tile.vector * itemsize // 4
        return T.call_extern(
            "uint32" if words == 1 else f"uint32x{words}", f"convopt_buffer_load_{4 * words}",
            T.address_of(self.source.buffer[0]), self.checked_bytes, offset * itemsize, inside,
        )  # fmt: skip

    def store(self, pool: Any, base: Any) -> None:
        """Registers to shared memory, the tile's first element at `base`."""
        width = self.tile.store_vector
        kept = Bits.of(self.registers, self.source.dtype, width)
        shared = Bits.of(pool, self.source.dtype, width)
        for slot, (row, column) in enumerate(self.places):
            with when(self._exists(slot)):
                start = base + row * self.tile.stride + column
                for part in range(0, self.tile.vector, width):
                    shared.put(start + part, kept.get(slot * self.tile.vector + part, width), width)

    def copy(self, pool: Any, base: Any, first_k: Any, itemsize: int) -> None:
        """Starts the copies from global to shared memory; outside elements become zeros."""
        width = self.tile.store_vector
        size = width * itemsize
        for slot, (row, column) in enumerate(self.places):
            with when(self._exists(slot)):
                offset, inside = self.source.at(slot, first_k + column)
                start = base + row * self.tile.stride + column
                if inside is not None:  # nothing is read of a copy of 0 bytes, but its address must exist
                    offset = T.Select(inside, offset, 0)
                for part in range(0, self.tile.vector, width):
                    count = size if inside is None else T.Select(inside, size, 0)
                    target, origin = pool[start + part], self.source.buffer[offset + part]
                    T.evaluate(
                        T.call_extern(
                            "int32", f"convopt_copy_{size}", T.address_of(target), T.address_of(origin), count
                        )
                    )
