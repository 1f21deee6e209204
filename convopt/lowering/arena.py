"""Offsets for buffers with known lifetimes in one block of memory."""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Sequence
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

    Each buffer in turn goes to the tightest gap that is free over its whole life (Pisarchyk and Lee,
    "Efficient memory management for deep neural net inference", 2020: greedy by size). No one order of the
    buffers is best for all graphs: several are tried, the smallest block is kept.
    """
    orders: list[Callable[[Buffer], tuple[int, ...]]] = [
        lambda b: (-b.nbytes, b.first),
        lambda b: (-b.nbytes * (b.last - b.first + 1), b.first),
        lambda b: (b.first - b.last, -b.nbytes),
        lambda b: (b.first, -b.nbytes),
        lambda b: (-b.last, -b.nbytes),
    ]
    plans = [_place(sorted(buffers, key=order)) for order in orders]
    size, offsets = min(plans, key=lambda plan: plan[0])
    for buffer in buffers:
        buffer.offset = offsets[id(buffer)]
    return size


def _place(buffers: Sequence[Buffer]) -> tuple[int, dict[int, int]]:
    """(size of the block, offset by the buffer's id), placing the buffers in this order."""
    placed: list[tuple[int, Buffer]] = []  # by offset
    for buffer in buffers:
        best, tightest, end = None, 0, 0
        for offset, other in placed:
            if other.first > buffer.last or other.last < buffer.first:
                continue
            gap = offset - end
            if gap >= buffer.padded and (best is None or gap < tightest):
                best, tightest = end, gap
            end = max(end, offset + other.padded)
        insort(placed, (end if best is None else best, buffer), key=lambda pair: pair[0])
    size = max((offset + b.padded for offset, b in placed), default=0)
    return size, {id(b): offset for offset, b in placed}


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
