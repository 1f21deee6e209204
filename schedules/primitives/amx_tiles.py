"""The TIR of the AMX convolution. Needs tvm."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tvm import tirx
from tvm.tirx.script.builder import ir as T

from convopt.schedules.conv_amx import COLUMNS, ROWS, chunk_of, run_of
from convopt.schedules.conv_problem import ConvProblem, with_narrow_weight
from convopt.schedules.primitives.conv_tiles import branch, load, offsets, pieces, store, sub_vector, unravel
from convopt.schedules.primitives.emit import kernel, lanes_at
from convopt.schedules.primitives.tile_unit import INPUTS, SUMS, WEIGHTS, AmxUnit, EmulatedUnit, TileUnit
from convopt.schedules.primitives.vector_math import emit

if TYPE_CHECKING:
    from convopt.schedules.conv_amx import AmxConv
    from convopt.targets import Target


def amx_kernel(schedule: AmxConv, problem: ConvProblem, target: Target, symbol: str) -> Any:
    run = run_of(problem, schedule.flat)
    assert run is not None  # by why_not
    tile_k = COLUMNS * schedule.tiles
    features, pairs = -(-problem.features // tile_k), -(-run.count // 2)
    feature_chunks, pair_chunks = -(-features // schedule.feature_chunk), -(-pairs // schedule.pair_chunk)
    blocks = problem.channels // schedule.channel_block
    with kernel(symbol, with_narrow_weight(problem)) as body:
        size = schedule.scratch_bytes(problem, target) // 4
        scratch = T.decl_buffer((size,), "float32", data=body.scratch, align=4, layout=None)
        unit: TileUnit = AmxUnit()
        if target.emulated:
            unit = EmulatedUnit(scratch, size - 2 * schedule.tiles * ROWS * COLUMNS, target.lanes)
        pair = _Pair(schedule, problem, target, body.buffers, scratch, unit)
        unit.start(run.pixels, chunk_of(problem.channels))
        with body.task() as task:
            group, rest = task // (feature_chunks * pair_chunks), task % (feature_chunks * pair_chunks)
            feature0 = rest // pair_chunks * schedule.feature_chunk
            pair0 = rest % pair_chunks * schedule.pair_chunk
            feature_count = tirx.min(features - feature0, schedule.feature_chunk)
            pair_count = tirx.min(pairs - pair0, schedule.pair_chunk)
            if schedule.pixels_outer:
                with T.serial(0, pair_count) as p, T.serial(0, feature_count) as f:
                    pair(group, feature0 + f, 0, pair0 + p, 0)
            else:
                outer, middle = T.serial(0, feature_count), T.serial(0, blocks)
                with outer as f, middle as block, T.serial(0, pair_count) as p:
                    pair(group, feature0 + f, block, pair0 + p, p if blocks > 1 else 0)
        unit.finish()
    return body.function


class _Pair:
    """Emits the sums of two tiles of pixels by one block of output channels."""

    def __init__(
        self,
        schedule: AmxConv,
        problem: ConvProblem,
        target: Target,
        buffers: list[Any],
        scratch: Any,
        unit: TileUnit,
    ) -> None:
        self.schedule, self.problem, self.lanes = schedule, problem, min(target.lanes, COLUMNS)
        self.x, self.weight, *rest = buffers
        self.bias = rest.pop(0) if problem.bias else None
        *self.others, self.y = rest
        self.scratch, self.unit = scratch, unit
        run = run_of(problem, schedule.flat)
        assert run is not None
        self.run, self.chunk = run, chunk_of(problem.channels)
        self.tile_k = COLUMNS * schedule.tiles
        self.features = -(-problem.features // self.tile_k)
        self.blocks = problem.channels // schedule.channel_block

    def __call__(self, group: Any, feature: Any, block: Any, pair: Any, waiting: Any) -> None:
        run, unit = self.run, self.unit
        # The last tile is computed twice where their number is odd.
        tiles = [tirx.min(pair * 2 + i, run.count - 1) for i in range(2)]
        places = [self._place(tile) for tile in tiles]
        sums_at = waiting * (2 * self.schedule.tiles * ROWS * COLUMNS)
        cells = [(i, j) for i in range(2) for j in range(self.schedule.tiles)]

        def resume() -> None:
            for i, j in cells:
                unit.load(self._sum(i, j), self.scratch, sums_at + self._cell(i, j), COLUMNS)

        def start() -> None:
            for i, j in cells:
                unit.zero(self._sum(i, j))

        branch(block == 0, self.blocks > 1, start, resume)
        self._reduce(group, feature, block, [x_at for _, _, x_at in places])
        for i, j in cells:
            unit.store(self._sum(i, j), self.scratch, sums_at + self._cell(i, j), COLUMNS)

        def finish() -> None:
            for i, (outer, start, _) in enumerate(places):
                with T.serial(0, run.pixels) as row:
                    self._row(group, feature, outer, start + row, sums_at + self._cell(i, 0) + row * COLUMNS)

        if self.blocks > 1:
            with T.If(block == self.blocks - 1), T.Then():
                finish()
        else:
            finish()

    def _sum(self, i: int, j: int) -> int:
        return SUMS + i * 2 + j if self.schedule.tiles == 2 else SUMS + i

    def _cell(self, i: int, j: int) -> int:
        return (i * self.schedule.tiles + j) * ROWS * COLUMNS

    def _place(self, tile: Any) -> tuple[list[Any], Any, Any]:
        """(outer indices, first position in the run, its offset in x) of a tile."""
        run = self.run
        line, number = tile // run.tiles, tile % run.tiles
        start = tirx.min(number * run.pixels, run.length - run.pixels)
        outer = unravel(line, [axis.extent for axis in run.outer]) if run.outer else []
        x_at = sum((i * axis.x for i, axis in zip(outer, run.outer, strict=True)), 0) + start * run.inner.x
        return outer, start, x_at

    def _reduce(self, group: Any, feature: Any, block: Any, x_at: list[Any]) -> None:
        problem, schedule, unit, chunk = self.problem, self.schedule, self.unit, self.chunk
        x_group, (x_d, x_h, x_w, _) = problem.x.strides[0], problem.x.strides[2:]
        (kd, kh, kw), (dd, dh, dw), (pd, ph, pw) = problem.kernel, problem.dilations, problem.pads
        chunks = schedule.channel_block // chunk
        tile = chunk * COLUMNS  # elements of a tile of weights
        origin = group * x_group + block * schedule.channel_block - pd * x_d - ph * x_h - pw * x_w
        base = ((group * self.features + feature) * self.blocks + block) * (problem.taps * chunks)
        with T.serial(0, kd) as d, T.serial(0, kh) as h, T.serial(0, kw) as w, T.serial(0, chunks) as c:
            tap = origin + d * (dd * x_d) + h * (dh * x_h) + w * (dw * x_w) + c * chunk
            step = (base + ((d * kh + h) * kw + w) * chunks + c) * (schedule.tiles * tile)
            for j in range(schedule.tiles):
                unit.load(WEIGHTS + j, self.weight, step + j * tile, 2 * COLUMNS)
            for i in range(2):
                unit.load(INPUTS + i, self.x, x_at[i] + tap, self.run.inner.x)
                for j in range(schedule.tiles):
                    unit.multiply(self._sum(i, j), INPUTS + i, WEIGHTS + j)

    def _row(self, group: Any, feature: Any, outer: list[Any], position: Any, sums_at: Any) -> None:
        """One pixel's output channels from the sums; nothing for a position between the rows."""
        run, problem = self.run, self.problem
        if not run.pitch:
            self._pixel(group, feature, offsets([*run.outer, run.inner], [*outer, position]), sums_at)
            return
        row, column = position // run.pitch, position % run.pitch
        with T.If(column < run.width), T.Then():
            y_at, others_at = (
                sum((i * axis.y for i, axis in zip(outer, run.outer, strict=True)), 0),
                [
                    sum((i * axis.others[o] for i, axis in zip(outer, run.outer, strict=True)), 0)
                    for o in range(len(problem.others))
                ],
            )
            y_at = y_at + row * problem.y.strides[3] + column * problem.y.strides[4]
            moved = tuple(
                at + row * view.strides[3] + column * view.strides[4]
                for at, view in zip(others_at, problem.others, strict=True)
            )
            self._pixel(group, feature, (0, y_at, moved), sums_at)

    def _pixel(self, group: Any, feature: Any, place: tuple[Any, Any, Any], sums_at: Any) -> None:
        tail = self.problem.features % self.tile_k
        if not tail or self.features == 1:
            self._channels(group, feature, place, sums_at, tail or self.tile_k)
            return
        branch(
            feature == self.features - 1,
            True,
            lambda: self._channels(group, feature, place, sums_at, tail),
            lambda: self._channels(group, feature, place, sums_at, self.tile_k),
        )

    def _channels(
        self, group: Any, feature: Any, place: tuple[Any, Any, Any], sums_at: Any, width: int
    ) -> None:
        """The epilogue on `width` channels of a pixel."""
        problem, lanes = self.problem, self.lanes
        _, y_at, others_at = place
        for v in range(-(-width // lanes)):
            tile, lane = divmod(v * lanes, COLUMNS)
            total = self.scratch[lanes_at(sums_at + tile * ROWS * COLUMNS + lane, lanes)]
            if self.bias is not None:
                at = (group * self.features + feature) * self.tile_k + v * lanes
                total = total + self.bias[lanes_at(at, lanes)]
            for first, count in pieces(min(lanes, width - v * lanes)):
                part = total if count == lanes else sub_vector(total, first, count)
                channel = feature * self.tile_k + v * lanes + first
                inputs = [part]
                for view, buffer, at in zip(problem.others, self.others, others_at, strict=True):
                    element = at + group * view.strides[0] + channel * view.strides[5]
                    inputs.append(load(buffer, element, count, view.strides[5]))
                (part,) = emit(problem.epilogue, inputs, count)
                at = y_at + group * problem.y.strides[0] + channel
                store(self.y, at, part, count, problem.y.dtype)
