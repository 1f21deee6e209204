"""What the GPU kernels without tiles share: a flat index to offsets of several strided operands."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from convopt.schedules.primitives.nest import Loop

THREADS = 256  # per block: what every device takes, and enough waves to hide a load
MOST_INDEX = 2**31 - 1  # indices are int32


def blocks_of(threads: int) -> tuple[int, int, int]:
    """A grid of blocks of THREADS that has as many threads."""
    return (-(-threads // THREADS), 1, 1)


def indices_of(flat: Any, extents: Sequence[int]) -> list[Any]:
    """Row-major indices of a flat index inside the extents, the last one's fastest; 0 of an extent of 1."""
    found: list[Any] = []
    further = sum(extent != 1 for extent in extents)
    for extent in reversed(extents):
        if extent == 1:
            found.append(0)
            continue
        further -= 1
        found.append(flat % extent if further else flat)
        flat = flat // extent if further else flat
    return list(reversed(found))


def offsets_of(loops: Sequence[Loop], flat: Any, operands: int) -> list[Any]:
    """Each operand's offset, in elements, at step `flat` of the loops."""
    offsets: list[Any] = [0] * operands
    for loop, index in zip(loops, indices_of(flat, [loop.extent for loop in loops]), strict=True):
        offsets = [o + index * s if s else o for o, s in zip(offsets, loop.strides, strict=True)]
    return offsets


def steps_of(loops: Sequence[Loop]) -> int:
    return prod(loop.extent for loop in loops)
