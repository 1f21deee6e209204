"""How a reduction walks its operands: which loops stay, which are reduced, and where the vectors lie."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod

from convopt.schedules.base import TensorView
from convopt.schedules.primitives.nest import Loop, Tasks, loops, split_tasks
from convopt.targets import Target


@dataclass(frozen=True)
class ReducePlan:
    """Loops over x and the other operands; `along`: the vectors run along the innermost reduced loop.

    Otherwise they run across it, along the innermost loop that stays, `block` elements of it in a task (the
    last block moved back to end at the extent).
    """

    kept: tuple[Loop, ...]
    reduced: tuple[Loop, ...]
    along: bool
    block: int

    @classmethod
    def of(cls, views: Sequence[TensorView], axes: Sequence[int], vectors: int, target: Target) -> ReducePlan:
        """views: x first; where another has extent 1 on a reduced axis, it does not move there."""
        shape = views[0].shape
        strides = [
            [0 if v.shape[d] == 1 != shape[d] else v.strides[d] for d in range(len(shape))] for v in views
        ]

        def over(dims: list[int]) -> tuple[Loop, ...]:
            return loops([shape[d] for d in dims], [[s[d] for d in dims] for s in strides], order_by=0)

        still = (0,) * len(views)
        kept = over([d for d in range(len(shape)) if d not in axes]) or (Loop(1, still),)
        reduced = over(sorted(axes)) or (Loop(1, still),)
        nearer = kept[-1].extent == 1 or abs(reduced[-1].strides[0]) < abs(kept[-1].strides[0])
        along = nearer and (reduced[-1].extent >= target.lanes or kept[-1].extent == 1)
        return cls(kept, reduced, along, min(vectors * target.lanes, kept[-1].extent))

    def with_scratch(self) -> ReducePlan:
        """With one operand more: dense memory for the elements of one step of a task.

        Its offset counts from the start of the step, not of the first loop.
        """
        step = 1 if self.along else self.block
        reduced = []
        for loop in reversed(self.reduced):
            reduced.append(Loop(loop.extent, (*loop.strides, step)))
            step *= loop.extent
        *outer, last = self.kept
        kept = [Loop(loop.extent, (*loop.strides, 0)) for loop in outer]
        kept.append(Loop(last.extent, (*last.strides, 0 if self.along else 1)))
        return replace(self, kept=tuple(kept), reduced=tuple(reversed(reduced)))

    @property
    def step_elements(self) -> int:
        """Elements of x that one step of a task reads."""
        return self.reduced_elements * (1 if self.along else self.block)

    @property
    def reduced_elements(self) -> int:
        return prod(loop.extent for loop in self.reduced)

    @cached_property
    def tasks(self) -> Tasks:
        extents = [loop.extent for loop in self.kept]
        if not self.along:
            extents[-1] = -(-extents[-1] // self.block)
        return split_tasks(extents, 4 * self.step_elements)
