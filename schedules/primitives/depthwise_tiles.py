"""The TIR of the depthwise convolution. Needs tvm."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tvm import tirx
from tvm.tirx.script.builder import ir as T

from convopt.schedules.base import TensorView
from convopt.schedules.conv_problem import ConvProblem
from convopt.schedules.primitives.conv_tiles import load, pieces, store
from convopt.schedules.primitives.emit import hold, kernel, lanes_at, register, splat
from convopt.schedules.primitives.tile_runs import TileRun, Window, tile_runs
from convopt.schedules.primitives.vector_math import emit

if TYPE_CHECKING:
    from convopt.schedules.conv_depthwise import DepthwiseConv
    from convopt.targets import Target


def depthwise_kernel(schedule: DepthwiseConv, problem: ConvProblem, target: Target, symbol: str) -> Any:
    lanes, groups = target.lanes, problem.groups
    depth = problem.y.shape[2]
    full, tail = groups // lanes, groups % lanes
    vectors = full + (1 if tail else 0)
    chunks = -(-vectors // schedule.channel_chunk)
    bands = tile_runs(Window.of(problem, 1), schedule.rows)
    columns = tile_runs(Window.of(problem, 2), schedule.columns)
    band_count = sum(run.count for run in bands)
    with kernel(symbol, problem.operands) as body:
        tile = DepthwiseTile(problem, body.buffers)
        with body.task() as task:
            chunk, rest = task % chunks, task // chunks
            band, image = rest % band_count, rest // band_count
            first = chunk * schedule.channel_chunk
            before = 0
            for rows in bands:
                # A few kinds of bands, decided once per task.
                index = band - before
                before += rows.count
                with T.If(tirx.And(index >= 0, index < rows.count)), T.Then():
                    origin = (image // depth, image % depth, rows.start + index * rows.size)
                    for run in columns:
                        with T.serial(0, run.count) as t:
                            corner = (*origin, run.start + t * run.size)
                            with T.serial(
                                0, tirx.max(0, tirx.min(full - first, schedule.channel_chunk))
                            ) as v:
                                tile(corner, rows, run, (first + v) * lanes, lanes)
                            if tail:
                                with T.If(chunk == chunks - 1), T.Then():
                                    for piece, width_ in pieces(tail):
                                        tile(corner, rows, run, full * lanes + piece, width_)
    return body.function


class DepthwiseTile:
    """Emits tiles; where their operands lie can be overridden."""

    def __init__(self, problem: ConvProblem, buffers: list[Any]) -> None:
        self.problem = problem
        self.x, self.weight, *rest = buffers
        self.bias = rest.pop(0) if problem.bias else None
        *self.others, self.y = rest

    def __call__(
        self, corner: tuple[Any, ...], rows: TileRun, columns: TileRun, channel: Any, lanes: int
    ) -> None:
        """A tile of the runs `rows` and `columns`, which begins at `corner`: (image, depth, row, column)."""
        from convopt.schedules.conv_depthwise import UNROLLED_TAPS

        sums = [[register(lanes) for _ in range(columns.size)] for _ in range(rows.size)]
        start = splat(T.float32(0), lanes)
        if self.bias is not None:
            start = hold(self.bias[lanes_at(channel, lanes)], lanes)
        for row in sums:
            for slot in row:
                T.buffer_store(slot, start, [lanes_at(0, lanes)])
        if self.problem.taps > UNROLLED_TAPS:
            self._looped(corner, sums, channel, lanes)
        else:
            self._unrolled(corner, sums, channel, lanes, rows.outside, columns.outside)
        self._finish(corner, sums, channel, lanes)

    def input_at(self, corner: tuple[Any, ...], d: Any, h: Any, w: Any) -> Any:
        """Where x is at the offset (d, h, w) from the tile's first tap: its channel 0."""
        problem, (_, s_n, s_d, s_h, s_w, _) = self.problem, self.problem.x.strides
        image, z, y, x = corner
        return (
            image * s_n
            + (z * problem.strides[0] - problem.pads[0] + d) * s_d
            + (y * problem.strides[1] - problem.pads[1] + h) * s_h
            + (x * problem.strides[2] - problem.pads[2] + w) * s_w
        )

    def other_at(self, view: TensorView, index: tuple[Any, ...]) -> Any:
        return sum(p * s for p, s in zip(index, view.strides[1:5], strict=True))

    def output_at(self, index: tuple[Any, ...]) -> Any:
        return self.other_at(self.problem.y, index)

    def _input(self, corner: tuple[Any, ...], d: Any, h: Any, w: Any, channel: Any, lanes: int) -> Any:
        return load(self.x, self.input_at(corner, d, h, w) + channel, lanes, 1)

    def _weight(self, d: Any, h: Any, w: Any, channel: Any, lanes: int) -> Any:
        _, kh, kw = self.problem.kernel
        return self.weight[lanes_at(((d * kh + h) * kw + w) * self.problem.groups + channel, lanes)]

    def _unrolled(
        self,
        corner: tuple[Any, ...],
        sums: list[list[Any]],
        channel: Any,
        lanes: int,
        rows_outside: frozenset[int],
        columns_outside: frozenset[int],
    ) -> None:
        kd, kh, kw = self.problem.kernel
        _, sh, sw = self.problem.strides
        dd, dh, dw = self.problem.dilations
        rows, columns = len(sums), len(sums[0])
        zero = lanes_at(0, lanes)
        for d in range(kd):
            # Input offset -> the outputs (i, j) that it reaches, and through which tap.
            reached: dict[tuple[int, int], list[tuple[int, int, int, int]]] = {}
            for i in range(rows):
                for j in range(columns):
                    for h in range(kh):
                        for w in range(kw):
                            at = (i * sh + h * dh, j * sw + w * dw)
                            if at[0] not in rows_outside and at[1] not in columns_outside:
                                reached.setdefault(at, []).append((i, j, h, w))
            for (h_at, w_at), uses in sorted(reached.items()):
                value = hold(self._input(corner, d * dd, h_at, w_at, channel, lanes), lanes)
                for i, j, h, w in uses:
                    product = value * self._weight(d, h, w, channel, lanes)
                    T.buffer_store(sums[i][j], sums[i][j][zero] + product, [zero])

    def _looped(self, corner: tuple[Any, ...], sums: list[list[Any]], channel: Any, lanes: int) -> None:
        kd, kh, kw = self.problem.kernel
        _, sh, sw = self.problem.strides
        dd, dh, dw = self.problem.dilations
        zero = lanes_at(0, lanes)
        with T.serial(0, kd) as d, T.serial(0, kh) as h, T.serial(0, kw) as w:
            weight = hold(self._weight(d, h, w, channel, lanes), lanes)
            for i, row in enumerate(sums):
                for j, slot in enumerate(row):
                    value = self._input(corner, d * dd, h * dh + i * sh, w * dw + j * sw, channel, lanes)
                    T.buffer_store(slot, slot[zero] + value * weight, [zero])

    def _finish(self, corner: tuple[Any, ...], sums: list[list[Any]], channel: Any, lanes: int) -> None:
        problem = self.problem
        image, z, y, x = corner
        for i, row in enumerate(sums):
            for j, slot in enumerate(row):
                index = (image, z, y + i, x + j)
                inputs = [slot[lanes_at(0, lanes)]]
                for view, buffer in zip(problem.others, self.others, strict=True):
                    at = self.other_at(view, index) + channel * view.strides[0]
                    inputs.append(load(buffer, at, lanes, view.strides[0]))
                (result,) = emit(problem.epilogue, inputs, lanes)
                store(self.y, self.output_at(index) + channel, result, lanes, problem.y.dtype)
