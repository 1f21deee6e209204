"""Bank conflicts of shared memory, counted from the lanes' addresses, and the padding that avoids them.

A wave's access runs in phases of 128 bytes (32 lanes of 4 bytes, 16 of 8, 8 of 16). In a phase, lanes that
want different words of one bank wait for each other: the degree is the most words wanted of a bank, 1 being
no conflict. Lanes that want the same word get it together. The addresses are those of the kernel itself:
`SharedTile.position`, the tile arithmetic's `reads` and `strip_stores`, and `store_position`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import lru_cache
from math import lcm
from typing import Any

import numpy as np

from convopt.schedules.primitives.shared_tile import SharedTile
from convopt.schedules.primitives.store_order import store_position

PHASE_BYTES = 128
MISSING = -1 << 62
DOWNS = (1, 2, 4, 8, 16, 32)
Lanes = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Banks:
    """`wave` lanes access together; `count` banks of `width` bytes."""

    wave: int
    count: int = 32
    width: int = 4

    def together(self, size: int) -> int:
        """Lanes of a phase of accesses of `size` bytes."""
        return min(self.wave, max(1, PHASE_BYTES // max(size, self.width)))


def conflict_degree(starts: Lanes, size: int, banks: Banks) -> int:
    """Of accesses of `size` bytes by each thread of a block, `starts` their first bytes, threads last.

    Threads without an access have a negative start. Phases that lie whole words apart only turn the banks:
    one of them is counted.
    """
    together = banks.together(size)
    spare = -starts.shape[-1] % together
    if spare:
        starts = np.concatenate([starts, np.full((*starts.shape[:-1], spare), -1)], axis=-1)
    phases = starts.reshape(-1, together)
    turned = phases - phases[:, :1] // banks.width * banks.width
    turned[phases < 0] = MISSING
    return max(_phase_degree(phase, size, banks) for phase in set(map(tuple, turned.tolist())))


@lru_cache(maxsize=1 << 14)
def _phase_degree(starts: tuple[int, ...], size: int, banks: Banks) -> int:
    at = range(0, size, banks.width)
    words = {(start + i) // banks.width for start in starts if start != MISSING for i in at}
    return max(Counter(word % banks.count for word in words).values(), default=1)


def write_degree(tile: SharedTile, itemsize: int, banks: Banks) -> int:
    """Of filling the tile."""
    together, across = banks.together(tile.store_vector * itemsize), tile.columns // tile.vector
    # Behind so many rows the lanes repeat themselves, whoever of the block's whole waves it is.
    rows = lcm(together, tile.down * across) // across
    if tile.threads % together == 0 and rows < tile.rows and rows * tile.stride * itemsize % banks.width == 0:
        tile = replace(tile, rows=rows, threads=rows * across)
    return _write_degree(tile, itemsize, banks)


@lru_cache(maxsize=4096)
def _write_degree(tile: SharedTile, itemsize: int, banks: Banks) -> int:
    width = tile.store_vector
    unit = np.arange(tile.slots * tile.threads)
    row, column = tile.position(unit, 0)
    start = (row * tile.stride + column) * itemsize
    parts = itemsize * np.arange(0, tile.vector, width)[:, None, None]
    starts = np.where(unit < tile.vectors, start, -1).reshape(tile.slots, tile.threads)
    return conflict_degree(np.where(starts < 0, -1, starts + parts), width * itemsize, banks)


def read_degree(math: Any, tile: SharedTile, operand: str, itemsize: int, banks: Banks) -> int:
    """Of the tile arithmetic's reads of operand "a" or "b"."""
    if tile.stride * itemsize % banks.width == 0:  # rows further down only turn the banks
        math = math.one_wave(banks.wave)
    return _read_degree(math, tile.stride, operand, itemsize, banks)


@lru_cache(maxsize=4096)
def _read_degree(math: Any, stride: int, operand: str, itemsize: int, banks: Banks) -> int:
    reads = math.reads(stride, operand, np.arange(math.threads))
    return max(conflict_degree(start * itemsize, width * itemsize, banks) for start, width in reads)


def epilogue_degree(math: Any, stride: int, lanes: int, by_rows: bool, banks: Banks) -> int:
    """Of writing a strip of accumulators and reading it back in rows of `stride` float32."""
    rows, across = math.strip_rows, math.block_n // lanes
    together = banks.together(4 * min(4, lanes))
    # Behind so many rows or columns the lanes repeat themselves.
    if by_rows:
        rows = min(rows, lcm(together, across) // across)
    else:
        across = min(across, lcm(together, rows) // rows)
    wave = math.one_wave(banks.wave)
    back = _read_back_degree(rows, across, stride if rows > 1 else 0, lanes, by_rows, banks)
    # Rows that are all the banks longer lie in the same banks.
    return max(
        _strip_degree(wave, stride - (stride - wave.block_n) // banks.count * banks.count, banks), back
    )


@lru_cache(maxsize=4096)
def _strip_degree(math: Any, stride: int, banks: Banks) -> int:
    rows, columns, width = _strip(math)
    return conflict_degree(4 * (rows * stride + columns), 4 * width, banks)


@lru_cache(maxsize=256)
def _strip(math: Any) -> tuple[Lanes, Lanes, int]:
    """Rows and columns of the stores to a strip, (stores, threads), and the elements of each."""
    rows, columns, widths = zip(*math.strip_stores(np.arange(math.threads)), strict=True)
    return np.stack(np.broadcast_arrays(*rows)), np.stack(columns), widths[0]


@lru_cache(maxsize=4096)
def _read_back_degree(rows: int, across: int, stride: int, lanes: int, by_rows: bool, banks: Banks) -> int:
    row, column = store_position(np.arange(rows * across), rows, across, lanes, by_rows)
    # The other parts of a vector only turn the banks.
    return conflict_degree(4 * (row * stride + column), 4 * min(4, lanes), banks)


@lru_cache(maxsize=4096)
def padded_tile(tile: SharedTile, math: Any, operand: str, itemsize: int, banks: Banks) -> SharedTile:
    """The tile with the pad and the order of lanes that conflict least in writes and reads together.

    Among equals: the widest stores, then the smallest pad, then the order nearest to the rows'.
    """
    best, least = tile, 1 << 30
    padded = [replace(tile, pad=pad) for pad in range(0, PHASE_BYTES // itemsize // 2, math.vector)]
    for rows in sorted(padded, key=lambda t: (-t.store_vector, t.pad)):
        reads = read_degree(math, rows, operand, itemsize, banks)
        for down in DOWNS:
            if reads >= least:
                break
            if tile.rows % down == 0:
                candidate = replace(rows, down=down)
                degree = max(reads, write_degree(candidate, itemsize, banks))
                if degree < least:
                    best, least = candidate, degree
        if least == 1:
            break
    return best


@lru_cache(maxsize=4096)
def epilogue_pad(math: Any, lanes: int, by_rows: bool, banks: Banks) -> int:
    """Float32 elements behind each row of the epilogue's strip: the least conflicts, then the smallest pad.

    Vector reads keep their alignment; for some lane layouts no pad reaches degree 1.
    """
    best, least = 0, 1 << 30
    for pad in range(0, banks.count + 1, max(math.strip_step, min(4, lanes))):
        degree = epilogue_degree(math, math.block_n + pad, lanes, by_rows, banks)
        if degree < least:
            best, least = pad, degree
        if least == 1:
            break
    return best
