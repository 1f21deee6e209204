"""Loop nests over several strided operands: which loops, cut into tasks how, covered by vectors how."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from math import prod
from typing import Any

CACHE_LINE = 64  # bytes
GRAIN = 16 << 10  # bytes of output that make a task worth handing to a thread


@dataclass(frozen=True)
class Loop:
    """`strides[i]` is what one step of this loop adds to operand i's offset, in elements."""

    extent: int
    strides: tuple[int, ...]


def loops(shape: Sequence[int], strides: Sequence[Sequence[int]], order_by: int) -> tuple[Loop, ...]:
    """The fewest loops over `shape`, outermost first by the stride of operand `order_by`.

    strides: per operand, one per dimension. Dimensions of extent 1 vanish; neighbours that every operand
    walks in one go become one loop.
    """
    found = [Loop(n, tuple(s[d] for s in strides)) for d, n in enumerate(shape) if n != 1]
    found.sort(key=lambda loop: -abs(loop.strides[order_by]))
    merged: list[Loop] = []
    for loop in found:
        if merged and merged[-1].strides == tuple(s * loop.extent for s in loop.strides):
            merged[-1] = Loop(merged[-1].extent * loop.extent, loop.strides)
        else:
            merged.append(loop)
    return tuple(merged)


@dataclass(frozen=True)
class Tasks:
    """The outer loops of a nest, flattened: task t runs `chunk` steps of loop `depth` at fixed outer indices.

    The last chunk is moved back to end at the extent and overlaps its neighbour: every chunk is full, and
    what is computed twice is equal.
    """

    extents: tuple[int, ...]
    depth: int
    chunk: int

    @property
    def chunks(self) -> int:
        return -(-self.extents[self.depth] // self.chunk)

    @property
    def count(self) -> int:
        return prod(self.extents[: self.depth]) * self.chunks if prod(self.extents) else 0

    def decode(self, task: Any) -> tuple[list[Any], Any]:
        """The indices of the loops outside `depth`, and where this task's chunk of `depth` starts."""
        start = task % self.chunks * self.chunk if self.chunks > 1 else 0
        if self.extents[self.depth] % self.chunk:
            start = minimum(start, self.extents[self.depth] - self.chunk)
        rest, outer = task // self.chunks, list[Any]()
        for extent in reversed(self.extents[: self.depth]):
            outer.append(rest % extent)
            rest = rest // extent
        return list(reversed(outer)), start

    @contextmanager
    def indices(self, task: Any) -> Iterator[list[Any]]:
        """The loops that a task runs; yields the index of every loop of the nest."""
        from tvm.tirx.script.builder import ir as T

        outer, start = self.decode(task)
        with ExitStack() as stack:
            extents = (self.chunk, *self.extents[self.depth + 1 :])
            steps = [stack.enter_context(T.serial(0, n)) for n in extents]
            yield [*outer, start + steps[0], *steps[1:]]


def minimum(a: Any, b: Any) -> Any:
    if isinstance(a, int) and isinstance(b, int):
        return min(a, b)
    from tvm.tirx.script.builder import ir as T

    return T.min(a, b)


def split_tasks(extents: Sequence[int], step_bytes: int, multiple: int = 1, grain: int = GRAIN) -> Tasks:
    """Tasks of at least `grain` bytes where the nest has them; one innermost step touches `step_bytes`.

    multiple: a chunk of the innermost loop is a multiple of this, unless the loop is shorter.
    """
    extents = tuple(extents) or (1,)
    if prod(extents) == 0:
        return Tasks(extents, 0, 1)
    inner = step_bytes
    for depth in range(len(extents) - 1, -1, -1):
        if inner * extents[depth] >= grain or depth == 0:
            chunk = max(-(-grain // inner), 1)
            if depth == len(extents) - 1:
                chunk = -(-chunk // multiple) * multiple
            chunk = max(min(chunk, extents[depth]), 1)
            # chunks of nearly the same size, so that little is done twice
            even = -(-extents[depth] // max(1, extents[depth] // chunk))
            even = -(-even // multiple) * multiple if depth == len(extents) - 1 else even
            return Tasks(extents, depth, max(min(even, extents[depth]), 1))
        inner *= extents[depth]
    raise AssertionError("unreachable: depth 0 always returns")


def power_of_two_below(n: int) -> int:
    """The largest power of two that is at most n, n >= 1."""
    return 1 << (n.bit_length() - 1)


def vector_pieces(extent: int, lanes: int) -> Iterator[tuple[int, int]]:
    """(start, lanes) of the vectors that cover `extent`, the last one moved back to end there.

    Less than `lanes` elements are covered by two overlapping vectors of a smaller power of two.
    """
    lanes = min(lanes, power_of_two_below(extent))
    for start in range(0, extent - lanes + 1, lanes):
        yield start, lanes
    if extent % lanes:
        yield extent - lanes, lanes
