"""Windows of a pool in TIR: which taps exist, their combination, the divisor. Needs tvm."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from itertools import product
from math import inf, prod
from typing import Any

from tvm.tirx.script.builder import ir as T

from convopt.schedules.pool_problem import PoolProblem
from convopt.schedules.primitives.emit import hold, lanes_at, narrowed, register, splat, widened
from convopt.schedules.primitives.vector_math import VectorMath

UNROLLED_TAPS = 12  # windows up to this size have no loops
UNROLLED_ROW = 8  # and rows of a window up to this length

Load = Callable[[Any, Any, Any], list[Any]]  # taps along d, h, w to one vector per accumulator
Range = tuple[Any, Any]  # taps [low, high), ints where the whole window is inside


class PoolRows:
    """The part of a pool that both schedules share: a row of outputs, window by window. Needs tvm."""

    def __init__(self, problem: PoolProblem, buffers: Sequence[Any]) -> None:
        self.problem = problem
        self.x, self.y = buffers
        self.axes = [problem.axis(d) for d in range(3)]

    def row(
        self, od: Any, oh: Any, middle: Callable[[Range, Range], None], border: Callable[..., None]
    ) -> None:
        """A row of outputs: those whose taps along w all exist by `middle(taps along d, taps along h)`.

        The others one by one: `border(ow, taps along d, h, w)`. Where all taps along d and h exist, too, the
        middle's are fixed, and the code has no loops over them.
        """
        axes, outputs = self.axes[:2], (od, oh)
        fixed = tuple((0, axis.kernel) for axis in axes)
        partial = tuple(
            f if axis.all_inside else axis.taps(o) for axis, o, f in zip(axes, outputs, fixed, strict=True)
        )
        first, last = self.axes[2].inside
        if first < last:
            conditions = [
                condition
                for axis, o in zip(axes, outputs, strict=True)
                if not axis.all_inside
                for condition in (o >= axis.inside[0], o < axis.inside[1])
            ]
            if conditions:
                with T.If(reduce(T.And, conditions)):
                    with T.Then():
                        middle(*fixed)
                    with T.Else():
                        middle(*partial)
            else:
                middle(*fixed)
        count = first + self.axes[2].outputs - last
        if count:
            with T.serial(0, count) as index:
                ow = hold(T.Select(index < first, index, index + (last - first)), 1, "int32")
                border(ow, (*partial, self.axes[2].taps(ow)))

    def pool(
        self, at: tuple[Any, Any, Any], taps: Sequence[Range], load: Load, lanes: int, count: int
    ) -> list[Any]:
        """The result of `count` windows at output `at`, their taps given, as vectors."""
        total = self._combine(taps, load, lanes, count)
        if self.problem.mode == "max":
            return total
        divisor = self._divisor(at, taps)
        if isinstance(divisor, int):
            return [t * splat(T.float32(1.0 / divisor), lanes) for t in total]
        divisor = hold(divisor, 1)
        return [t / splat(divisor, lanes) for t in total]

    def _divisor(self, at: tuple[Any, Any, Any], taps: Sequence[Range]) -> Any:
        """Taps that count, an int where it is the same everywhere."""
        counts = []
        for axis, o, (low, high) in zip(self.axes, at, taps, strict=True):
            if isinstance(high, int):  # the whole window is inside
                counts.append(axis.kernel)
            else:
                counts.append(axis.padded_taps(o) if self.problem.count_include_pad else high - low)
        if all(isinstance(c, int) for c in counts):
            return prod(counts)
        return T.Cast("float32", prod(counts[1:], start=counts[0]))

    def _combine(self, taps: Sequence[Range], load: Load, lanes: int, count: int) -> list[Any]:
        registers = [register(lanes) for _ in range(count)]
        at = [lanes_at(0, lanes)]
        maximum, math = self.problem.mode == "max", VectorMath(lanes)

        def add(values: Sequence[Any], first: bool = False) -> None:
            for slot, value in zip(registers, values, strict=True):
                old = slot[at[0]]
                new = value if first else math.max(math.hold(value), old) if maximum else old + value
                T.buffer_store(slot, new, at)

        sizes = [high if isinstance(high, int) else None for _, high in taps]
        if None not in sizes and prod(s or 0 for s in sizes) <= UNROLLED_TAPS:
            for number, tap in enumerate(product(*(range(s or 0) for s in sizes))):
                add(load(*tap), first=number == 0)
            return [slot[at[0]] for slot in registers]
        for slot in registers:
            T.buffer_store(slot, splat(T.float32(-inf if maximum else 0.0), lanes), at)
        (d_low, d_high), (h_low, h_high), (w_low, w_high) = taps
        with T.serial(0, d_high - d_low) as d, T.serial(0, h_high - h_low) as h:
            if isinstance(w_high, int) and w_high <= UNROLLED_ROW:
                for w in range(w_high):
                    add(load(d_low + d, h_low + h, w))
            else:
                with T.serial(0, w_high - w_low) as w:
                    add(load(d_low + d, h_low + h, w_low + w))
        return [slot[at[0]] for slot in registers]

    def load(self, offset: Any, lanes: int, stride: int = 1) -> Any:
        return widened(self.x[lanes_at(offset, lanes, stride)])

    def store(self, value: Any, offset: Any, lanes: int, stride: int = 1) -> None:
        stored = narrowed(value, self.problem.y.dtype, lanes)
        T.buffer_store(self.y, stored, [lanes_at(offset, lanes, stride)])

    def start(self, n: Any, c: Any, at: Sequence[Any]) -> Any:
        """The offset in x of the first tap of the window of output `at`, computed once."""
        strides = self.problem.x.strides
        spatial = sum(a.start(o) * s for a, o, s in zip(self.axes, at, strides[2:], strict=True))
        return hold(n * strides[0] + c * strides[1] + spatial, 1, "int32")

    def tap(self, taps: Sequence[Any]) -> Any:
        """What these taps add to the offset of the first."""
        strides = self.problem.x.strides[2:]
        return sum(t * a.dilation * s for a, t, s in zip(self.axes, taps, strides, strict=True))
