"""Sweeps over the elements of one reduction, and the accumulators that they fill. Needs tvm."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from tvm.tirx.script.builder import ir as T

from convopt.schedules.primitives.emit import hold, lanes_at, narrowed, register, splat, widened
from convopt.schedules.primitives.nest import Loop, minimum, power_of_two_below, vector_pieces
from convopt.schedules.reduce_plan import ReducePlan

UNROLL = 4  # vectors in flight along a reduced loop
RUN = 128  # additions one after another before a partial sum is put away

Combine = Callable[[Any, Any, int], Any]  # (a, b, lanes)


@dataclass(frozen=True)
class Piece:
    """A vector at `start` of the loop that the vectors run along; pieces of one slot share an accumulator."""

    slot: int
    start: int
    lanes: int


Visit = Callable[[Piece, list[Any]], None]  # (piece, offset of its first lane in every operand)


class Sweep:
    """All elements of one reduction (plan.along) or of `plan.block` neighbouring ones, as vectors."""

    def __init__(self, plan: ReducePlan, lanes: int, index: Sequence[Any]) -> None:
        """index: of every loop of plan.tasks."""
        self.plan = plan
        self.vector_loop = plan.reduced[-1] if plan.along else plan.kept[-1]
        extent = self.vector_loop.extent if plan.along else plan.block
        self.once: list[Piece] = []  # visited after the steps of the innermost reduced loop
        if plan.along:
            unroll = min(UNROLL, extent // lanes)
            self.every = [Piece(u, u * lanes, lanes) for u in range(unroll)]
            self.step = max(unroll, 1) * lanes
            self.steps = extent // self.step
            start = self.steps * self.step
            slot = 0
            while start < extent:
                width = min(lanes, power_of_two_below(extent - start))
                slot = slot if width == lanes else max(slot, unroll)
                self.once.append(Piece(slot, start, width))
                start, slot = start + width, slot + 1
        else:
            self.step, self.steps = 1, plan.reduced[-1].extent
            self.every = [Piece(n, at, width) for n, (at, width) in enumerate(vector_pieces(extent, lanes))]
        self.start = self._start(index)

    def _start(self, index: Sequence[Any]) -> list[Any]:
        *outer, last = self.plan.kept
        offsets: list[Any] = [0] * len(last.strides)
        for loop, i in zip(outer, index, strict=False):
            offsets = _move(offsets, loop, i)
        at = index[-1]
        if not self.plan.along:
            at = at * self.plan.block
            if last.extent % self.plan.block:  # the last block ends at the extent, over its neighbour
                at = minimum(at, last.extent - self.plan.block)
        return [o if isinstance(o, int) else hold(o, 1, "int32") for o in _move(offsets, last, at)]

    @property
    def pieces(self) -> list[Piece]:
        """One of each slot."""
        return list({piece.slot: piece for piece in (*self.every, *self.once)}.values())

    @property
    def length(self) -> int:
        """Additions to one accumulator, one after another."""
        outer = self.plan.reduced_elements // self.plan.reduced[-1].extent
        return outer * max(self.steps, 1)

    def each(self, visit: Visit, after_run: Callable[[], None] | None = None) -> None:
        """Calls `visit` for every vector, inside the loops over them; `after_run` at most RUN steps apart."""
        *outer, inner = self.plan.reduced
        with ExitStack() as stack:
            offsets = list(self.start)
            for loop in outer:
                offsets = _move(offsets, loop, stack.enter_context(T.serial(0, loop.extent)))

            def run(first: Any, count: int) -> None:
                with T.serial(0, count) as index:
                    at = _move(offsets, inner, (first + index) * self.step)
                    for piece in self.every:
                        visit(piece, _move(at, self.vector_loop, piece.start))
                if after_run is not None:
                    after_run()

            runs, rest = divmod(self.steps, RUN) if after_run is not None else (0, self.steps)
            if runs:
                with T.serial(0, runs) as number:
                    run(number * RUN, RUN)
            if rest:
                run(runs * RUN, rest)
            for piece in self.once:
                visit(piece, _move(offsets, self.vector_loop, piece.start))

    def results(self) -> list[tuple[Piece, list[Any]]]:
        """Where the result of each slot goes: one scalar if along, else a vector for each."""
        if self.plan.along:
            return [(Piece(0, 0, 1), self.start)]
        return [(piece, _move(self.start, self.vector_loop, piece.start)) for piece in self.every]


class Accumulators:
    """A register for every slot of a sweep. Long sums are added up in runs, so that few roundings follow."""

    def __init__(self, sweep: Sweep, identity: float, combine: Combine, in_runs: bool = False) -> None:
        self.sweep, self.identity, self.combine = sweep, identity, combine
        self.in_runs = in_runs and sweep.length > RUN
        self.totals = self._make()
        self.partial = self._make() if self.in_runs else self.totals

    def _make(self) -> dict[int, Any]:
        slots = {piece.slot: register(piece.lanes) for piece in self.sweep.pieces}
        self._clear(slots)
        return slots

    def _clear(self, slots: dict[int, Any]) -> None:
        for piece in self.sweep.pieces:
            lanes = piece.lanes
            T.buffer_store(slots[piece.slot], splat(T.float32(self.identity), lanes), [lanes_at(0, lanes)])

    def add(self, piece: Piece, value: Any) -> None:
        slot, at = self.partial[piece.slot], lanes_at(0, piece.lanes)
        T.buffer_store(slot, self.combine(slot[at], value, piece.lanes), [at])

    def _put_away(self) -> None:
        for piece in self.sweep.pieces:
            at = lanes_at(0, piece.lanes)
            total = self.totals[piece.slot]
            T.buffer_store(total, self.combine(total[at], self.partial[piece.slot][at], piece.lanes), [at])
        self._clear(self.partial)

    def fill(self, visit: Visit) -> list[Any]:
        """Sweeps with `visit`, which adds; the results, as `sweep.results` orders them."""
        self.sweep.each(visit, self._put_away if self.in_runs else None)
        if self.in_runs and self.sweep.once:
            self._put_away()
        totals = [(self.totals[p.slot][lanes_at(0, p.lanes)], p.lanes) for p in self.sweep.pieces]
        if not self.sweep.plan.along:
            return [value for value, _ in totals]
        result: Any = None
        for lanes in sorted({lanes for _, lanes in totals}, reverse=True):
            values = [value for value, width in totals if width == lanes]
            while len(values) > 1:
                pairs = zip(values[::2], values[1::2], strict=False)
                odd = values[-1:] if len(values) % 2 else []
                values = [hold(self.combine(a, b, lanes), lanes) for a, b in pairs] + odd
            value = self._across_lanes(values[0], lanes)
            result = value if result is None else hold(self.combine(result, value, 1), 1)
        return [result]

    def _across_lanes(self, value: Any, lanes: int) -> Any:
        while lanes > 1:
            whole = register(lanes)
            T.buffer_store(whole, value, [lanes_at(0, lanes)])
            lanes //= 2
            low, high = whole[lanes_at(0, lanes)], whole[lanes_at(lanes, lanes)]
            value = hold(self.combine(low, high, lanes), lanes)
        return value


def _move(offsets: Sequence[Any], loop: Loop, index: Any) -> list[Any]:
    return [o + index * s if s else o for o, s in zip(offsets, loop.strides, strict=True)]


def load(buffer: Any, offset: Any, stride: int, lanes: int) -> Any:
    """float32 from any floating-point operand."""
    return widened(buffer[lanes_at(offset, lanes, stride)])


def store(buffer: Any, dtype: str, value: Any, offset: Any, stride: int, lanes: int) -> None:
    """float32 to any floating-point operand."""
    T.buffer_store(buffer, narrowed(value, dtype, lanes), [lanes_at(offset, lanes, stride)])
