"""Reductions by several threads of a block: which loops, who adds what, and the tree in shared memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from convopt.schedules.base import TensorView
from convopt.schedules.primitives.gpu_nest import THREADS, offsets_of, steps_of
from convopt.schedules.primitives.nest import Loop, loops
from convopt.targets import GpuTarget

Combine = Callable[[Any, Any], Any]
MOST_SERIAL = 32  # elements that one thread reduces alone before several share a result


@dataclass(frozen=True)
class Reduction:
    """Loops over x and the other operands: `kept` ones, a result each, and `reduced` ones.

    A dimension of extent 1 in another operand does not move there.
    """

    kept: tuple[Loop, ...]
    reduced: tuple[Loop, ...]

    @classmethod
    def of(cls, views: Sequence[TensorView], axes: Sequence[int]) -> Reduction:
        """views: x first."""
        shape = views[0].shape
        strides = [
            [0 if v.shape[d] == 1 != shape[d] else v.strides[d] for d in range(len(shape))] for v in views
        ]

        def over(dims: list[int]) -> tuple[Loop, ...]:
            found = loops([shape[d] for d in dims], [[s[d] for d in dims] for s in strides], order_by=0)
            return found or (Loop(1, (0,) * len(views)),)

        return cls(over([d for d in range(len(shape)) if d not in axes]), over(sorted(axes)))

    @property
    def results(self) -> int:
        return steps_of(self.kept)

    @property
    def elements(self) -> int:
        """Of x, per result."""
        return steps_of(self.reduced)

    def threads_per_result(self, target: GpuTarget) -> int:
        """1 where neighbouring threads read neighbouring elements anyway; else a power of two up to a block.

        Reading along the reduced loop wants several threads in a row there, and so do few results.
        """
        crowded = self.results >= target.compute_units * THREADS
        along = abs(self.reduced[-1].strides[0]) <= abs(self.kept[-1].strides[0]) or self.results == 1
        if self.elements <= MOST_SERIAL or (crowded and not along):
            return 1
        width = 1
        while width < THREADS and width * MOST_SERIAL < self.elements:
            width *= 2
        return max(width, 32)


class BlockReduction:
    """Inside a kernel of THREADS threads a block: `width` of them per result. Needs tvm.

    Barriers are reached by all threads of a block, so nothing here may stand under a condition that differs
    between them: threads without a result work on the last one and don't store it.
    """

    def __init__(self, plan: Reduction, width: int, block: Any, thread: Any) -> None:
        from convopt.schedules.primitives.gpu_emit import hold, shared

        self.plan, self.width, self.thread = plan, width, thread
        self.rank = thread % width
        self.result = hold(block * (THREADS // width) + thread // width)
        self.pool = shared(THREADS, "float32") if width > 1 else None
        self.operands = len(plan.kept[0].strides)

    @classmethod
    def grid(cls, plan: Reduction, width: int) -> tuple[int, int, int]:
        return (-(-plan.results // (THREADS // width)), 1, 1)

    def offsets(self) -> list[Any]:
        """Of this thread's result in every operand."""
        from tvm.tirx.script.builder import ir as T

        from convopt.schedules.primitives.gpu_emit import hold

        result = self.result
        if self.plan.results % (THREADS // self.width):
            result = hold(T.min(result, T.int32(self.plan.results - 1)))
        return [hold(o + T.int32(0)) for o in offsets_of(self.plan.kept, result, self.operands)]

    def each(self, offsets: Sequence[Any], visit: Callable[[list[Any]], None]) -> None:
        """`visit(offsets)` for every reduced element that is this thread's."""
        from tvm.tirx.script.builder import ir as T

        from convopt.schedules.primitives.gpu_emit import when

        count = self.plan.elements
        with T.serial(0, -(-count // self.width)) as step:
            flat = step * self.width + self.rank
            with when(flat < count if count % self.width else None):
                inner = offsets_of(self.plan.reduced, flat, self.operands)
                visit([a + b for a, b in zip(offsets, inner, strict=True)])

    def total(self, value: Any, combine: Combine) -> Any:
        """The combination of all `width` threads' values, for each of them."""
        from tvm.tirx.script.builder import ir as T

        from convopt.schedules.primitives.gpu_emit import barrier, hold, when

        if self.pool is None:
            return value
        barrier()  # an earlier total has been read by all
        T.buffer_store(self.pool, value, [self.thread])
        step = self.width // 2
        while step:
            barrier()
            with when(self.rank < step):
                both = combine(self.pool[self.thread], hold(self.pool[self.thread + step], "float32"))
                T.buffer_store(self.pool, both, [self.thread])
            step //= 2
        barrier()
        return hold(self.pool[self.thread - self.rank], "float32")

    @contextmanager
    def storing(self, every_thread: bool = False) -> Any:
        """The block for threads that have a result to store: the first of its threads, or every one."""
        from tvm.tirx.script.builder import ir as T

        from convopt.schedules.primitives.gpu_emit import when

        conditions = [] if every_thread or self.width == 1 else [self.rank == 0]
        if self.plan.results % (THREADS // self.width):
            conditions.append(self.result < self.plan.results)
        both = T.And(*conditions) if len(conditions) == 2 else conditions[0] if conditions else None
        with when(both):
            yield
