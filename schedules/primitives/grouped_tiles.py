"""The TIR of the convolution in groups of few channels. Needs tvm."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tvm import tirx
from tvm.tirx.script.builder import ir as T

from convopt.schedules.conv_problem import ConvProblem
from convopt.schedules.primitives.conv_tiles import load, pieces, store
from convopt.schedules.primitives.emit import hold, kernel, lanes_at, register, splat
from convopt.schedules.primitives.shuffle import shuffle
from convopt.schedules.primitives.tile_runs import TileRun, Window, tile_runs
from convopt.schedules.primitives.vector_math import emit

if TYPE_CHECKING:
    from convopt.schedules.conv_grouped import GroupedConv
    from convopt.targets import Target

Place = tuple[Any, Any, Any, Any]  # image, depth, row, column of an output


def grouped_kernel(schedule: GroupedConv, problem: ConvProblem, target: Target, symbol: str) -> Any:
    from convopt.schedules.conv_grouped import output_rows, vectors_of

    lanes = target.lanes
    _, _, depth, height, _, _ = problem.y.shape
    full, tail = divmod(problem.groups * problem.features, lanes)
    vectors, rows = vectors_of(problem, target), output_rows(problem)
    row_chunk, channel_chunk = min(schedule.row_chunk, rows), min(schedule.channel_chunk, vectors)
    row_chunks = -(-rows // row_chunk)
    with kernel(symbol, problem.operands) as body:
        tile = GroupedTile(problem, lanes, body.buffers)
        with body.task() as task:
            # Neighbouring tasks share their weights.
            first, row0 = task // row_chunks * channel_chunk, task % row_chunks * row_chunk
            with T.serial(0, tirx.min(rows - row0, row_chunk)) as r:
                row = row0 + r
                place = (row // (depth * height), row // height % depth, row % height)
                for run in tile_runs(Window.of(problem, 2), schedule.columns):
                    with T.serial(0, run.count) as t:
                        corner = (*place, run.start + t * run.size)
                        with T.serial(0, tirx.max(0, tirx.min(full - first, channel_chunk))) as v:
                            tile(corner, run, first + v, 0, lanes)
                        if tail:
                            with T.If(first + channel_chunk > full), T.Then():
                                for start, width in pieces(tail):
                                    tile(corner, run, full, start, width)
    return body.function


class GroupedTile:
    """Emits the tile of some columns of an output row and `width` output channels."""

    def __init__(self, problem: ConvProblem, lanes: int, buffers: list[Any]) -> None:
        self.problem, self.lanes = problem, lanes
        self.x, self.weight, *rest = buffers
        self.bias = rest.pop(0) if problem.bias else None
        *self.others, self.y = rest

    def __call__(self, corner: Place, run: TileRun, vector: Any, first: int, width: int) -> None:
        """The channels are lanes `first` to `first` + `width` of the vector."""
        channel = vector * self.lanes + first
        start = splat(T.float32(0), width)
        if self.bias is not None:
            start = hold(self.bias[lanes_at(channel, width)], width)
        sums = [register(width) for _ in range(run.size)]
        for slot in sums:
            T.buffer_store(slot, start, [lanes_at(0, width)])
        self._reduce(corner, run, sums, vector, first, width)
        self._finish(corner, sums, channel, width)

    def _reduce(
        self, corner: Place, run: TileRun, sums: list[Any], vector: Any, first: int, width: int
    ) -> None:
        from convopt.schedules.conv_grouped import inputs_at_once, taps_at_once

        problem = self.problem
        image, z, y, x = corner
        _, x_n, x_d, x_h, x_w, _ = problem.x.strides
        (kd, kh, kw), (sd, sh, sw), (dd, dh, dw) = problem.kernel, problem.strides, problem.dilations
        pd, ph, pw = problem.pads
        groups, taps = inputs_at_once(problem, width), taps_at_once(problem)
        # The channels of the vector's groups begin here.
        channel0 = (vector * self.lanes + first) // problem.features * problem.channels
        origin = image * x_n + (z * sd - pd) * x_d + (y * sh - ph) * x_h + (x * sw - pw) * x_w + channel0
        (d0, planes), (h0, rows) = self._inside(0, z), self._inside(1, y)

        def step(d: Any, h: Any, w: Any, c: Any) -> None:
            """The products of a kernel row's taps with channel c of each group."""
            row = origin + d * (dd * x_d) + h * (dh * x_h) + w * (dw * x_w)
            weight = (((vector * kd + d) * kh + h) * problem.channels + c) * kw + w
            factors = [
                hold(self.weight[lanes_at((weight + t) * self.lanes + first, width)], width)
                for t in range(taps)
            ]
            for at in Window.of(problem, 2).reached(run.size) if taps > 1 else self._columns(run):
                if at in run.outside:
                    continue
                value = hold(self._spread(row + at * x_w, c, groups, width), width)
                for j, slot in enumerate(sums):
                    for t in range(taps):
                        if j * sw + t * dw == at:
                            product = value * factors[t]
                            here = lanes_at(0, width)
                            T.buffer_store(slot, slot[here] + product, [here])

        # A shuffle's channel is fixed. The loops are inside: one channel's inputs are no longer in registers
        # when the next one's are wanted, where there are more of them than registers.
        for fixed in [None] if groups == 1 else range(problem.channels):
            with T.serial(0, planes) as d, T.serial(0, rows) as h, T.serial(0, kw // taps) as w:
                if fixed is not None:
                    step(d0 + d, h0 + h, w, fixed)
                    continue
                with T.serial(0, problem.channels) as c:
                    step(d0 + d, h0 + h, w, c)

    def _columns(self, run: TileRun) -> list[int]:
        """The inputs of one tap."""
        return [j * self.problem.strides[2] for j in range(run.size)]

    def _inside(self, dim: int, output: Any) -> tuple[Any, Any]:
        """(first, count) of the taps along `dim` that an output at that position has inputs for.

        Also where a border holds zeros for the others: they need not be read, and LLVM, which would unroll a
        loop of constant length, leaves this one.
        """
        window = Window.of(self.problem, dim)
        if window.taps == 1 and window.stays_inside:
            return 0, 1
        start = window.pad - output * window.stride

        def before(distance: Any) -> Any:
            """Taps less than `distance` inputs from the first one."""
            return (tirx.max(distance, 0) + (window.dilation - 1)) // window.dilation

        first = tirx.min(before(start), window.taps)
        return first, tirx.min(before(start + window.inputs), window.taps) - first

    def _spread(self, at: Any, c: Any, groups: int, width: int) -> Any:
        """Channel c of each lane's group; `at`: where the first group's channels begin."""
        problem = self.problem
        if groups == 1:
            return load(self.x, at + c, width, 0)
        held = groups * problem.channels
        vectors = [load(self.x, at + i, min(held, width), 1) for i in range(0, held, width)]
        vectors *= max(1, width // held)  # TVM's Shuffle gives no more lanes than it takes
        return shuffle(vectors, [lane // problem.features * problem.channels + c for lane in range(width)])

    def _finish(self, corner: Place, sums: list[Any], channel: Any, width: int) -> None:
        from convopt.schedules.conv_grouped import channel_step

        problem = self.problem
        image, z, y, x = corner
        for j, slot in enumerate(sums):
            index = (image, z, y, x + j)
            inputs = [slot[lanes_at(0, width)]]
            for view, buffer in zip(problem.others, self.others, strict=True):
                step = channel_step(view)
                assert step is not None, "why_not refuses it"
                at = sum(i * s for i, s in zip(index, view.strides[1:5], strict=True))
                inputs.append(load(buffer, at + channel * step, width, step))
            (result,) = emit(problem.epilogue, inputs, width)
            at = sum(i * s for i, s in zip(index, problem.y.strides[1:5], strict=True))
            store(self.y, at + channel, result, width, problem.y.dtype)
