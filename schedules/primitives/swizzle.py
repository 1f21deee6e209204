"""Thread-block swizzle: the order in which blocks walk over the tiles of the output.

Blocks that run at the same time share what they read through the L2 cache, so they should cover a compact
area of tiles: groups of X columns by Y rows, X and Y free. With (1, 1) the order is row by row. The grid is
one-dimensional and rounded up to whole groups; blocks outside the tiles do nothing.

The index arithmetic is written once, for numbers (the simulation of `l2_hit_rate`) and for TIR alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class TileOrder:
    """tiles_m x tiles_n output tiles, walked in groups of `group` = (X columns, Y rows)."""

    tiles_m: int
    tiles_n: int
    group: tuple[int, int] = (1, 1)

    @property
    def blocks(self) -> int:
        x, y = self.group
        return -(-self.tiles_n // x) * x * (-(-self.tiles_m // y) * y)

    @property
    def has_surplus(self) -> bool:
        """Some blocks lie outside the tiles."""
        return self.blocks != self.tiles_m * self.tiles_n

    def tile(self, block: Any) -> tuple[Any, Any]:
        """(row, column) of a block's tile; outside the tiles for a surplus block."""
        x, y = self.group
        across = -(-self.tiles_n // x)
        group, inside = block // (x * y), block % (x * y)
        return (group // across) * y + inside // x, (group % across) * x + inside % x
