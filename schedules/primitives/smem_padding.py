"""Bank conflicts of shared memory, counted from the lanes' addresses, and the padding that avoids them.

A wave's access runs in phases of 128 bytes (32 lanes of 4 bytes, 16 of 8, 8 of 16). In a phase, lanes that
want different words of one bank wait for each other: the degree is the most words wanted of a bank, 1 being
no conflict. Lanes that want the same word get it together. The addresses are those of the kernel itself:
`SharedTile.position`, the tile arithmetic's `reads` and `strip_stores`, and `store_position`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from convopt.schedules.primitives.shared_tile import SharedTile
from convopt.schedules.primitives.store_order import store_position

PHASE_BYTES = 128
DOWNS = (1, 2, 4, 8, 16, 32)
Lanes = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Banks:
    """`wave` lanes access together; `count` banks of `width` bytes."""

    wave: int
    count: int = 32
    width: int = 4


def conflict_degree(starts: Lanes, size: int, banks: Banks) -> int:
    """Of one access of `size` bytes by each thread of a block, `starts` its first bytes in thread order.

    Threads without an access have a negative start.
    """
    together = min(banks.wave, max(1, PHASE_BYTES // max(size, banks.width)))
    spare = -len(starts) % together
    phases = np.concatenate([starts, np.full(spare, -1)]).reshape(-1, together, 1)
    words = (phases + np.arange(0, size, banks.width)) // banks.width
    words = np.where(phases < 0, -1, words).reshape(len(phases), -1)
    words.sort(axis=1)
    new = np.ones(words.shape, bool)
    new[:, 1:] = words[:, 1:] != words[:, :-1]
    new &= words >= 0
    counts = np.zeros((len(words), banks.count), int)
    np.add.at(counts, (np.nonzero(new)[0], words[new] % banks.count), 1)
    return max(1, int(counts.max()))


@lru_cache(maxsize=4096)
def write_degree(tile: SharedTile, itemsize: int, banks: Banks) -> int:
    """Of filling the tile."""
    threads, width, worst = np.arange(tile.threads), tile.store_vector, 1
    for slot in range(tile.slots):
        row, column = tile.position(threads, slot)
        start = row * tile.stride + column
        exists = threads + slot * tile.threads < tile.vectors
        for part in range(0, tile.vector, width):
            starts = np.where(exists, (start + part) * itemsize, -1)
            worst = max(worst, conflict_degree(starts, width * itemsize, banks))
    return worst


@lru_cache(maxsize=4096)
def read_degree(math: Any, tile: SharedTile, operand: str, itemsize: int, banks: Banks) -> int:
    """Of the tile arithmetic's reads of operand "a" or "b"."""
    reads = math.reads(tile, operand, np.arange(math.threads))
    return max(conflict_degree(start * itemsize, width * itemsize, banks) for start, width in reads)


@lru_cache(maxsize=4096)
def epilogue_degree(math: Any, stride: int, lanes: int, by_rows: bool, banks: Banks) -> int:
    """Of writing a strip of accumulators and reading it back in rows of `stride` float32."""
    threads = np.arange(math.threads)
    worst = max(conflict_degree(4 * (row * stride + column), 4 * n, banks) for row, column, n in _strip(math))
    across = math.block_n // lanes
    units, width = math.strip_rows * across, min(4, lanes)
    seen = set()
    for first in range(0, units, math.threads):
        row, column = store_position(threads + first, math.strip_rows, across, lanes, by_rows)
        # The parts of a vector, and rounds that begin elsewhere, only turn the banks.
        start = row * stride + column
        starts = np.where(threads + first < units, 4 * (start - start[0]), -1)
        if (pattern := starts.tobytes()) not in seen:
            seen.add(pattern)
            worst = max(worst, conflict_degree(starts, 4 * width, banks))
    return worst


@lru_cache(maxsize=256)
def _strip(math: Any) -> list[tuple[Lanes, Lanes, int]]:
    """(rows, columns, elements) of the writes of a strip, by all threads, from thread 0's on.

    Those that differ by where all threads begin only turn the banks: they are listed once.
    """
    stores = math.strip_stores(np.arange(math.threads))
    moved = ((np.asarray(row - row[0]), np.asarray(column - column[0]), n) for row, column, n in stores)
    return list({(row.tobytes(), column.tobytes()): (row, column, n) for row, column, n in moved}.values())


@lru_cache(maxsize=4096)
def padded_tile(tile: SharedTile, math: Any, operand: str, itemsize: int, banks: Banks) -> SharedTile:
    """The tile with the pad and the order of lanes that conflict least in writes and reads together.

    Among equals: the widest stores, then the smallest pad, then the order nearest to the rows'.
    """
    best, least = tile, 1 << 30
    for candidate in _candidates(tile, math.vector, itemsize):
        degree = read_degree(math, candidate, operand, itemsize, banks)
        if degree < least:
            degree = max(degree, write_degree(candidate, itemsize, banks))
        if degree < least:
            best, least = candidate, degree
        if least == 1:
            break
    return best


def _candidates(tile: SharedTile, step: int, itemsize: int) -> Iterator[SharedTile]:
    pads = range(0, PHASE_BYTES // itemsize // 2, step)
    downs = [down for down in DOWNS if tile.rows % down == 0]
    found = [replace(tile, pad=pad, down=down) for pad in pads for down in downs]
    yield from sorted(found, key=lambda t: (-t.store_vector, t.pad, t.down))


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
