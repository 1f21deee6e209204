"""How often loads hit the L2 cache, from simulating the order in which blocks walk over the tiles.

Blocks are started in their order, as many at a time as the chip holds, and advance together through the
reduction. In a step every running block loads a panel of A (its row of tiles) and one of B (its column);
the cache keeps the panels used last. Rates count panels, weighted by their bytes: what two blocks load in
the same step is a hit for the second. Chiplets with an L2 each take blocks in turn and share nothing.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from convopt.schedules.primitives.swizzle import TileOrder

if TYPE_CHECKING:
    from convopt.targets import GpuTarget


@dataclass(frozen=True)
class Panels:
    """What a tile of the output loads: bytes of a panel of A and of B per step, and the steps."""

    a: int
    b: int
    steps: int


def l2_hit_rate(order: TileOrder, panels: Panels, target: GpuTarget, resident: int) -> float:
    """Hits of all bytes loaded, between 0 and 1. resident: blocks on a compute unit at a time."""
    running = max(1, resident * target.compute_units // target.partitions)
    tiles = [
        (row, column)
        for row, column in map(order.tile, range(order.blocks))
        if row < order.tiles_m and column < order.tiles_n
    ]
    hits = loads = 0
    for chiplet in range(target.partitions):
        own = tiles[chiplet :: target.partitions]
        cache = _Cache(target.l2)
        for first in range(0, len(own), running):
            wave = own[first : first + running]
            for step in range(panels.steps):
                for row, column in wave:
                    for panel, size in (((0, row, step), panels.a), ((1, column, step), panels.b)):
                        loads += size
                        hits += size if cache.touch(panel, size) else 0
    return hits / loads if loads else 0.0


class _Cache:
    """Fully associative, least recently used first out."""

    def __init__(self, capacity: int) -> None:
        self.capacity, self.used = capacity, 0
        self.kept: OrderedDict[tuple[int, int, int], int] = OrderedDict()

    def touch(self, panel: tuple[int, int, int], size: int) -> bool:
        """Whether it was there; it is afterwards."""
        if panel in self.kept:
            self.kept.move_to_end(panel)
            return True
        self.kept[panel] = size
        self.used += size
        while self.used > self.capacity:
            _, freed = self.kept.popitem(last=False)
            self.used -= freed
        return False
