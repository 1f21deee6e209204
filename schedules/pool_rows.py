"""Windows of a pool in TIR: which taps exist, their combination, the divisor. Needs tvm."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import product
from math import inf, prod
from typing import Any

from tvm.tirx.script.builder import ir as T

from convopt.schedules.pool_problem import PoolProblem
from convopt.schedules.primitives.emit import hold, lanes_at, register, splat

UNROLLED_TAPS = 32  # windows up to this size have no loops
UNROLLED_ROW = 16  # and rows of a window up to this length

Load = Callable[[Any, Any, Any], list[Any]]  # taps along d, h, w to one vector per accumulator
Range = tuple[Any, Any]  # taps [low, high), ints where the whole window is inside


class PoolRows:
    """The part of a pool that both schedules share: a row of outputs, window by window. Needs tvm."""

    def __init__(self, problem: PoolProblem, buffers: Sequence[Any]) -> None:
        self.problem = problem
        self.x, self.y = buffers
        self.axes = [problem.axis(d) for d in range(3)]

    def row(self, od: Any, oh: Any, emit_row: Callable[[Range, Range], None]) -> None:
        """`emit_row(taps along d, taps along h)`, with fixed taps where the window is inside."""
        fixed = (0, self.problem.kernel[0]), (0, self.problem.kernel[1])
        outside = [(a, o) for a, o in zip(self.axes, (od, oh), strict=False) if not a.all_inside]
        if not outside:
            emit_row(*fixed)
            return
        partial = tuple(
            f if a.all_inside else a.taps(o) for a, o, f in zip(self.axes, (od, oh), fixed, strict=False)
        )
        conditions = [c for a, o in outside for c in (o >= a.inside[0], o < a.inside[1])]
        inside = conditions[0]
        for condition in conditions[1:]:
            inside = T.And(inside, condition)
        with T.If(inside):
            with T.Then():
                emit_row(*fixed)
            with T.Else():
                emit_row(*partial)

    def spans(self) -> Iterator[tuple[int, int, bool]]:
        """(first, last, inside) of the outputs of a row: left border, middle, right border."""
        axis = self.axes[2]
        first, last = axis.inside
        for begin, end, inside in ((0, first, False), (first, last, True), (last, axis.outputs, False)):
            if begin < end:
                yield begin, end, inside

    def w_taps(self, ow: Any, inside: bool) -> Range:
        return (0, self.problem.kernel[2]) if inside else self.axes[2].taps(ow)

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
        maximum = self.problem.mode == "max"

        def add(values: Sequence[Any], first: bool = False) -> None:
            for slot, value in zip(registers, values, strict=True):
                old = slot[at[0]]
                new = value if first else T.max(old, value) if maximum else old + value
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
        value = self.x[lanes_at(offset, lanes, stride)]
        if self.problem.x.dtype == "float32":
            return value
        return T.Cast("float32" if lanes == 1 else f"float32x{lanes}", value)

    def store(self, value: Any, offset: Any, lanes: int, stride: int = 1) -> None:
        kind = self.problem.y.dtype
        if kind != "float32":
            value = T.Cast(kind if lanes == 1 else f"{kind}x{lanes}", value)
        T.buffer_store(self.y, value, [lanes_at(offset, lanes, stride)])

    def offset(self, at: Sequence[Any], taps: Sequence[Any]) -> Any:
        """The offset in x of these taps of the window of output `at`, without image and channel."""
        return sum(
            (axis.start(o) + tap * axis.dilation) * stride
            for axis, stride, o, tap in zip(self.axes, self.problem.x.strides[2:], at, taps, strict=True)
        )
