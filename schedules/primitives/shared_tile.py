"""A tile of shared memory that a block of threads fills together: who stores what where.

The arithmetic is written once, for numbers (the bank conflict counter) and for TIR alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from convopt.targets import GpuTarget


@dataclass(frozen=True)
class SharedTile:
    """rows x columns elements, each row followed by `pad` unused ones; `columns` run along the reduction.

    vector: elements of a load from global memory. down: how many lanes go down the rows before the next
    vector of a row is taken; it permutes lanes, so global accesses stay as coalesced as they were, but
    decides which banks are written together.
    """

    rows: int
    columns: int
    pad: int
    vector: int
    down: int
    threads: int

    @property
    def stride(self) -> int:
        return self.columns + self.pad

    @property
    def elements(self) -> int:
        return self.rows * self.stride

    @property
    def vectors(self) -> int:
        return self.rows * self.columns // self.vector

    @property
    def slots(self) -> int:
        """Vectors that each thread loads; the last ones may be missing for some threads."""
        return -(-self.vectors // self.threads)

    @property
    def is_even(self) -> bool:
        return self.vectors % self.threads == 0

    @property
    def store_vector(self) -> int:
        """Elements of a store to shared memory: the most that the padded rows keep aligned."""
        width = self.vector
        while self.stride % width:
            width //= 2
        return width

    def position(self, thread: Any, slot: int) -> tuple[Any, Any]:
        """(row, first column) of a thread's vector."""
        unit = thread + slot * self.threads
        across = self.columns // self.vector
        if self.down == 1:
            return unit // across, (unit % across) * self.vector
        row = (unit // (self.down * across)) * self.down + unit % self.down
        return row, ((unit // self.down) % across) * self.vector


@dataclass(frozen=True)
class StagedOperands:
    """What the arithmetic of a thread works on: the tiles of A and B in `pool`, elements of `dtype`."""

    target: GpuTarget
    pool: Any
    dtype: str
    thread: Any
    a: SharedTile
    b: SharedTile
