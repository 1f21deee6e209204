"""Offsets for buffers with known lifetimes in one block of memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

ALIGNMENT = 64  # a cache line


@dataclass
class Buffer:
    """`nbytes` that must keep their content from step `first` to step `last`, both included."""

    nbytes: int
    first: int
    last: int
    offset: int = 0

    @property
    def padded(self) -> int:
        return -(-max(self.nbytes, 1) // ALIGNMENT) * ALIGNMENT


def plan(buffers: Sequence[Buffer]) -> int:
    """Sets every buffer's offset; returns the size of the block.

    Largest first, each at the lowest gap that is free over its whole life (Pisarchyk and Lee, "Efficient
    memory management for deep neural net inference", 2020: greedy by size).
    """
    placed: list[Buffer] = []
    for buffer in sorted(buffers, key=lambda b: (-b.nbytes, b.first)):
        offset = 0
        for other in placed:  # in order of offset
            if other.first > buffer.last or other.last < buffer.first:
                continue
            if other.offset - offset >= buffer.padded:
                break
            offset = max(offset, other.offset + other.padded)
        buffer.offset = offset
        placed.append(buffer)
        placed.sort(key=lambda b: b.offset)
    return max((b.offset + b.padded for b in buffers), default=0)


def live_bytes(buffers: Sequence[Buffer]) -> int:
    """The largest sum of buffers that are alive at the same step: no plan can be smaller."""
    change: dict[int, int] = {}
    for buffer in buffers:
        change[buffer.first] = change.get(buffer.first, 0) + buffer.nbytes
        change[buffer.last + 1] = change.get(buffer.last + 1, 0) - buffer.nbytes
    total = peak = 0
    for step in sorted(change):
        total += change[step]
        peak = max(peak, total)
    return peak
