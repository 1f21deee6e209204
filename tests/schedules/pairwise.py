"""A small choice of configurations in which every pair of settings occurs that occurs at all."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from heapq import heapify, heappop, heappush
from itertools import combinations
from typing import TypeVar

T = TypeVar("T")


def pairwise(candidates: Sequence[T], settings: Callable[[T], Mapping[str, object]]) -> list[T]:
    """Greedy and deterministic: always the one that brings the most pairs not seen yet."""
    pairs = [set(combinations(sorted(settings(c).items(), key=str), 2)) for c in candidates]
    seen: set[object] = set()
    chosen: list[T] = []
    # What a candidate brings only shrinks: the first of the heap that is up to date is the best.
    heap = [(-len(found), index) for index, found in enumerate(pairs)]
    heapify(heap)
    while heap:
        promised, index = heappop(heap)
        brings = len(pairs[index] - seen)
        if brings and brings < -promised:
            heappush(heap, (-brings, index))
        elif brings:
            seen |= pairs[index]
            chosen.append(candidates[index])
    return chosen
