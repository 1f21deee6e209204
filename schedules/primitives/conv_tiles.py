"""The TIR of the direct convolution: register tiles of pixels by channels. Needs tvm."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

from tvm import tirx
from tvm.tirx.script.builder import ir as T

from convopt.schedules.base import TensorView
from convopt.schedules.conv_problem import ConvProblem
from convopt.schedules.primitives.emit import (
    kernel,
    lanes_at,
    narrowed,
    prefetch,
    reduction,
    register,
    splat,
    steps_of_line,
    widened,
)
from convopt.schedules.primitives.tile_runs import balanced
from convopt.schedules.primitives.vector_math import emit

if TYPE_CHECKING:
    from convopt.schedules.conv_direct import Axis, DirectConv
    from convopt.targets import Target

Position = tuple[Any, Any, tuple[Any, ...]]  # element offsets in x, y and the epilogue's other operands


def offsets(axes: list[Axis], indices: list[Any]) -> Position:
    """The operands' element offsets at a position given per axis."""
    return (
        sum((i * a.x for i, a in zip(indices, axes, strict=True)), 0),
        sum((i * a.y for i, a in zip(indices, axes, strict=True)), 0),
        tuple(
            sum((i * a.others[o] for i, a in zip(indices, axes, strict=True)), 0)
            for o in range(len(axes[0].others))
        ),
    )


def unravel(index: Any, extents: list[int]) -> list[Any]:
    """Row-major coordinates of a flat index."""
    coordinates: list[Any] = []
    for extent in reversed(extents[1:]):
        coordinates.insert(0, index % extent)
        index = index // extent
    return [index, *coordinates]


def direct_kernel(
    schedule: DirectConv,
    problem: ConvProblem,
    target: Target,
    symbol: str,
    operands: tuple[TensorView, ...],
    make_tile: Callable[..., Any],
) -> Any:
    """The loops around tiles of `make_tile(schedule, problem, target, buffers)`."""
    from convopt.schedules.conv_direct import position_axes

    axes = position_axes(problem)
    lanes, vectors = target.lanes, schedule.vectors
    tile_k = lanes * vectors
    features = -(-problem.features // tile_k)
    feature_chunks = -(-features // schedule.feature_chunk)
    extents = [a.extent for a in axes]
    rows = -(-prod(extents) // schedule.pixels) if schedule.flat else prod(extents[:-1])
    row_chunk = min(rows, schedule.row_chunk)
    row_chunks = -(-rows // schedule.row_chunk)
    panels = problem.channels // schedule.channel_block
    with kernel(symbol, operands) as body:
        tile = make_tile(schedule, problem, target, body.buffers)
        with body.task() as task:
            group, rest = task // (feature_chunks * row_chunks), task % (feature_chunks * row_chunks)
            # Neighbouring tasks share their weights where rows are many, their pixels where rows are few.
            feature0 = rest // row_chunks * schedule.feature_chunk
            row0 = rest % row_chunks * schedule.row_chunk
            feature_count = tirx.min(features - feature0, schedule.feature_chunk)
            row_count = tirx.min(rows - row0, schedule.row_chunk)
            panel_loop, feature_loop = T.serial(0, panels), T.serial(0, feature_count)
            with panel_loop as panel, feature_loop as f, T.serial(0, row_count) as r:
                place, row = (group, feature0 + f, panel), row0 + r
                if schedule.flat:
                    # Positions past the end repeat the last one: the same value is stored twice.
                    last, first = prod(extents) - 1, row * schedule.pixels
                    indices = [unravel(tirx.min(first + i, last), extents) for i in range(schedule.pixels)]
                    tile(place, [offsets(axes, index) for index in indices], Turn(r, row_chunk))
                runs = [] if schedule.flat else balanced(extents[-1], schedule.pixels)
                in_row = sum(count for _, count, _ in runs)
                for number, (start, count, size) in enumerate(runs):
                    before = runs[0][1] if number else 0
                    outer = unravel(row, extents[:-1]) if len(extents) > 1 else []
                    with T.serial(0, count) as t:
                        first = start + t * size
                        positions = [offsets(axes, [*outer, first + i]) for i in range(size)]
                        tile(place, positions, Turn(r * in_row + before + t, row_chunk * in_row))
    return body.function


@dataclass(frozen=True)
class Turn:
    """The how-manieth tile it is of those that pass over one panel of weights."""

    index: Any
    count: int

    def share(self, weights: int) -> int:
        """Of so many weights, what each of the tiles asks for."""
        return -(-weights // self.count)


class Tile:
    """Emits one register tile at given positions."""

    def __init__(
        self, schedule: DirectConv, problem: ConvProblem, target: Target, buffers: list[Any]
    ) -> None:
        self.schedule, self.problem, self.lanes, self.l2 = schedule, problem, target.lanes, target.l2
        self.x, self.weight, *rest = buffers
        self.bias = rest.pop(0) if problem.bias else None
        *self.others, self.y = rest
        self.features = -(-problem.features // (target.lanes * schedule.vectors))

    def __call__(self, place: tuple[Any, Any, Any], positions: list[Position], turn: Turn) -> None:
        group, feature, panel = place
        problem, schedule, lanes = self.problem, self.schedule, self.lanes
        vectors, tile_k = schedule.vectors, schedule.vectors * lanes
        panels = problem.channels // schedule.channel_block
        channel0 = feature * tile_k
        sums = [[register(lanes) for _ in range(vectors)] for _ in positions]

        def start() -> None:
            for i in range(len(positions)):
                for v in range(vectors):
                    if self.bias is not None:
                        at = (group * self.features + feature) * tile_k + v * lanes
                        value = self.bias[lanes_at(at, lanes)]
                    else:
                        value = splat(T.float32(0), lanes)
                    T.buffer_store(sums[i][v], value, [lanes_at(0, lanes)])

        def each_width(action: Callable[[int], None]) -> None:
            """The last tile of channels may be narrower than the others."""
            tail = problem.features % tile_k
            if not tail or self.features == 1:
                action(tail or tile_k)
            else:
                is_last = feature == self.features - 1
                branch(is_last, True, lambda: action(tail), lambda: action(tile_k))

        def resume() -> None:
            each_width(lambda width: self._load_partial(group, channel0, positions, sums, width))

        def finish(last: bool) -> None:
            each_width(lambda width: self._store(group, channel0, positions, sums, width, last))

        branch(panel == 0, panels > 1, start, resume)
        self.reduce(place, positions, sums, turn)
        branch(panel == panels - 1, panels > 1, lambda: finish(True), lambda: finish(False))

    def panel_at(self, place: tuple[Any, Any, Any]) -> Any:
        """Where the weights of a tile of channels begin (see `pack_weight`)."""
        group, feature, panel = place
        panels = self.problem.channels // self.schedule.channel_block
        return ((group * panels + panel) * self.features + feature) * self.panel_size

    @property
    def panel_size(self) -> int:
        """Elements."""
        return self.problem.taps * self.schedule.channel_block * self.schedule.vectors * self.lanes

    def exceeds_l2(self, itemsize: int) -> bool:
        """Weights that L2 can't hold come from beyond it while the panel before them is used."""
        panels = self.problem.channels // self.schedule.channel_block
        return itemsize * self.features * panels * self.panel_size > self.l2 // 2

    def ask_for_next_panel(self, base: Any, turn: Turn, step: Any, count: int, per_step: int) -> None:
        """The tile's share of the next panel, of which it asks for a part in `count` steps from `step` on.

        per_step: weights that a step reads.
        """
        share, stride = turn.share(self.panel_size), turn.share(per_step)
        prefetch(self.weight, base + self.panel_size + turn.index * share + step * stride, count * stride)

    def reduce(
        self, place: tuple[Any, Any, Any], positions: list[Position], sums: list[list[Any]], turn: Turn
    ) -> None:
        group, _, panel = place
        problem, schedule, lanes = self.problem, self.schedule, self.lanes
        tile_k, block = schedule.vectors * lanes, schedule.channel_block
        x_group, (x_d, x_h, x_w, x_c) = problem.x.strides[0], problem.x.strides[2:]
        kd, kh, kw = problem.kernel
        dd, dh, dw = problem.dilations
        pd, ph, pw = problem.pads
        origin = group * x_group + panel * block * x_c - pd * x_d - ph * x_h - pw * x_w
        base = self.panel_at(place)
        # A kernel row whose pixels touch is one run of floats: longer loops for stems with 1 or 3 channels.
        merged = block == problem.channels and dw * x_w == block * x_c
        overlaps = merged and kw > problem.strides[2]
        if merged:
            kw, block = 1, kw * block
        # Pixels come from beyond L2 while the tile before them is computed, once or per tile of channels:
        # worth 4 to 30% with up to 16 of these, and 2 to 6% lost with more (1x1 convolutions, Zen 3).
        streams = problem.taps == 1 and block == problem.x.strides[4] and self.features <= 16
        large = self.exceeds_l2(4)
        with T.serial(0, kd) as d, T.serial(0, kh) as h, T.serial(0, kw) as w:
            row = ((d * kh + h) * kw + w) * block

            def ahead(c: Any, count: int) -> None:
                if streams:
                    at = positions[0][0] + origin + (block + c) * len(positions)
                    prefetch(self.x, at, count * len(positions))
                elif overlaps:
                    # LLVM unrolls such short loops, sees that neighbouring pixels share inputs, and keeps
                    # more of them than there are registers. What a prefetch may touch is loaded again.
                    prefetch(self.x, positions[0][0] + origin + (h + kh) * x_h + c)
                if large:
                    self.ask_for_next_panel(base, turn, row + c, count, tile_k)

            asks = streams or overlaps or large
            group = steps_of_line(4 * turn.share(tile_k)) if large else 8
            if overlaps or lanes == 4:  # NEON: LLVM loads four steps of each pixel as one vector, and spills
                group = 1
            with reduction(block, ahead if asks else None, group) as c:
                tap = origin + d * (dd * x_d) + h * (dh * x_h) + w * (dw * x_w) + c * x_c
                step = base + (row + c) * tile_k
                for i, (x_at, _, _) in enumerate(positions):
                    value = widened(splat(self.x[x_at + tap], lanes))
                    for v in range(schedule.vectors):
                        at = lanes_at(0, lanes)
                        product = value * self.weight[lanes_at(step + v * lanes, lanes)]
                        T.buffer_store(sums[i][v], sums[i][v][at] + product, [at])

    def _load_partial(
        self, group: Any, channel0: Any, positions: list[Position], sums: list[list[Any]], width: int
    ) -> None:
        """The sums so far, from y; never a lane past the last channel, which may be past the buffer's end."""
        for i, (_, y_at, _) in enumerate(positions):
            for v in range(self.schedule.vectors):
                inside = max(0, min(self.lanes, width - v * self.lanes))
                if inside < self.lanes:  # else what the register held before stays alive, and others spill
                    T.buffer_store(sums[i][v], splat(T.float32(0), self.lanes), [lanes_at(0, self.lanes)])
                for first, count in pieces(inside):
                    at = y_at + group * self.problem.y.strides[0] + channel0 + v * self.lanes + first
                    T.buffer_store(sums[i][v], self.y[lanes_at(at, count)], [lanes_at(first, count)])

    def _store(
        self,
        group: Any,
        channel0: Any,
        positions: list[Position],
        sums: list[list[Any]],
        width: int,
        last: bool,
    ) -> None:
        problem, lanes = self.problem, self.lanes
        for i, (_, y_at, others_at) in enumerate(positions):
            for v in range(-(-width // lanes)):
                total = sums[i][v][lanes_at(0, lanes)]
                for first, count in pieces(min(lanes, width - v * lanes)):
                    part = total if count == lanes else sub_vector(total, first, count)
                    channel = channel0 + v * lanes + first
                    if last:
                        inputs = [part]
                        for view, buffer, at in zip(problem.others, self.others, others_at, strict=True):
                            element = at + group * view.strides[0] + channel * view.strides[5]
                            inputs.append(load(buffer, element, count, view.strides[5]))
                        (part,) = emit(problem.epilogue, inputs, count)
                    store(self.y, y_at + group * problem.y.strides[0] + channel, part, count, problem.y.dtype)


def pieces(count: int) -> list[tuple[int, int]]:
    """`count` lanes as power-of-two runs: 11 -> [(0, 8), (8, 2), (10, 1)]."""
    runs, first = [], 0
    for width in (64, 32, 16, 8, 4, 2, 1):
        while count - first >= width:
            runs.append((first, width))
            first += width
    return runs


def sub_vector(value: Any, first: int, count: int) -> Any:
    return tirx.Shuffle([value], [tirx.const(first + i, "int32") for i in range(count)])


def load(buffer: Any, index: Any, lanes: int, stride: int) -> Any:
    """`lanes` elements as float32; stride 0 repeats one element."""
    if stride == 0:
        return widened(splat(buffer[index], lanes))
    return widened(buffer[lanes_at(index, lanes, stride)])


def store(buffer: Any, index: Any, value: Any, lanes: int, dtype: str) -> None:
    T.buffer_store(buffer, narrowed(value, dtype, lanes), [lanes_at(index, lanes)])


def branch(condition: Any, both: bool, then: Callable[[], None], otherwise: Callable[[], None]) -> None:
    """`then` or `otherwise`, decided at run time only where both can happen."""
    if not both:
        then()
        return
    with T.If(condition):
        with T.Then():
            then()
        with T.Else():
            otherwise()
