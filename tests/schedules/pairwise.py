"""A small choice of configurations in which every pair of settings occurs that occurs at all."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from typing import TypeVar

T = TypeVar("T")


def pairwise(candidates: Sequence[T], settings: Callable[[T], Mapping[str, object]]) -> list[T]:
    """Greedy and deterministic: first those that bring many new pairs, at last those that bring one."""
    pairs = [set(combinations(sorted(settings(c).items(), key=str), 2)) for c in candidates]
    order = list(range(len(candidates)))
    random.Random(0).shuffle(order)
    seen: set[object] = set()
    chosen: list[T] = []
    threshold = max(map(len, pairs), default=0)
    while threshold:
        for index in order:
            if len(pairs[index] - seen) >= threshold:
                seen |= pairs[index]
                chosen.append(candidates[index])
        threshold = threshold * 2 // 3
    return chosen
