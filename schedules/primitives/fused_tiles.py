"""The TIR of a depthwise convolution fused with those around it. Needs tvm."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tvm import tirx
from tvm.tirx.script.builder import ir as T

from convopt.schedules.base import TensorView
from convopt.schedules.conv_problem import ConvProblem
from convopt.schedules.primitives.conv_tiles import Position, Tile, Turn, pieces, store
from convopt.schedules.primitives.depthwise_tiles import DepthwiseTile
from convopt.schedules.primitives.emit import kernel, splat
from convopt.schedules.primitives.tile_runs import TileRun, balanced

if TYPE_CHECKING:
    from convopt.schedules.fused_conv import FusedConv, FusedConvProblem
    from convopt.targets import Target


def fused_kernel(schedule: FusedConv, problem: FusedConvProblem, target: Target, symbol: str) -> Any:
    with kernel(symbol, problem.operands) as body:
        scratch = T.decl_buffer((2**31 - 1,), "float32", data=body.scratch, align=4, layout=None)
        stages = _Stages(schedule, problem, target, body.buffers, scratch)
        with body.task() as task:
            stages(task)
    return body.function


class _Stages:
    def __init__(
        self,
        schedule: FusedConv,
        problem: FusedConvProblem,
        target: Target,
        buffers: list[Any],
        scratch: Any,
    ) -> None:
        self.schedule, self.problem, self.target, self.lanes = schedule, problem, target, target.lanes
        self.scratch, self.channels = scratch, problem.channels
        self.ring_rows, self.ring_width = problem.ring_rows, schedule.input_width(problem)
        self.row_at = schedule.ring_floats(problem)  # the depthwise convolution's row lies behind the ring
        x, *constants, y = buffers
        ends = [x, *[scratch] * (len(problem.stages) - 1), y]
        self.buffers: dict[int, list[Any]] = {}
        for index, stage in enumerate(problem.stages):
            count = len(stage.operands) - 2
            self.buffers[id(stage)] = [ends[index], *constants[:count], ends[index + 1]]
            constants = constants[count:]

    def __call__(self, task: Any) -> None:
        schedule, d = self.schedule, self.problem.depthwise
        height, width = d.y.shape[3:5]
        blocks, chunks = -(-width // schedule.width), -(-height // schedule.row_chunk)
        block, rest = task % blocks, task // blocks
        chunk, image = rest % chunks, rest // chunks
        # The last block ends with the row: what it shares with the one before is computed twice.
        start = tirx.min(block * schedule.width, width - schedule.width)
        first = chunk * schedule.row_chunk
        with T.serial(0, tirx.min(height - first, schedule.row_chunk)) as r:
            if self.problem.expand is not None:
                step = d.strides[1]
                fresh = tirx.Select(r == 0, self.ring_rows, step)
                behind = (first + r) * step + self.ring_rows
                with T.serial(0, fresh) as i:
                    self._expand(self.problem.expand, image, behind - fresh + i, start)
            self._depthwise(image, first + r, start)
            if self.problem.project is not None:
                self._project(self.problem.project, image, first + r, start)

    def _expand(self, stage: ConvProblem, image: Any, index: Any, start: Any) -> None:
        """Row `index`, counted from the pads on, of what the depthwise convolution reads under the block."""
        d = self.problem.depthwise
        height, width = d.x.shape[3:5]
        row, column = index - d.pads[1], start * d.strides[2] - d.pads[2]
        at = index % self.ring_rows * (self.ring_width * self.channels)
        with T.If(tirx.And(row >= 0, row < height)):
            with T.Then():

                def position(i: Any) -> Position:
                    # Columns of the pads are computed from the nearest pixel and overwritten below.
                    inside = tirx.max(0, tirx.min(column + i, width - 1))
                    x_at, _, others = _offsets(stage, image, row, inside)
                    return x_at, at + i * self.channels, others

                self._tiles(stage, self.ring_width, position)
                last = (d.y.shape[4] - self.schedule.width) * d.strides[2] - d.pads[2]
                for i in range(self.ring_width):
                    if i < d.pads[2]:
                        with T.If(column + i < 0), T.Then():
                            self._zeros(at + i * self.channels, self.channels)
                    if last + i >= width:
                        with T.If(column + i >= width), T.Then():
                            self._zeros(at + i * self.channels, self.channels)
            with T.Else():
                self._zeros(at, self.ring_width * self.channels)

    def _zeros(self, at: Any, count: int) -> None:
        with T.serial(0, count // self.lanes) as v:
            self._zero(at + v * self.lanes, self.lanes)
        for first, lanes in pieces(count % self.lanes):
            self._zero(at + count // self.lanes * self.lanes + first, lanes)

    def _zero(self, at: Any, lanes: int) -> None:
        store(self.scratch, at, splat(T.float32(0), lanes), lanes, "float32")

    def _depthwise(self, image: Any, row: Any, start: Any) -> None:
        d, lanes = self.problem.depthwise, self.lanes
        full, tail = divmod(self.channels, lanes)
        tile = _RowTile(self, d, start)
        for first, count, columns in balanced(self.schedule.width, self.schedule.columns):
            with T.serial(0, count) as t:
                corner = (image, 0, row, first + t * columns)
                size = TileRun(0, 1, 1, frozenset()), TileRun(first, count, columns, frozenset())
                with T.serial(0, full) as v:
                    tile(corner, *size, v * lanes, lanes)
                for piece, width in pieces(tail):
                    tile(corner, *size, full * lanes + piece, width)

    def _project(self, stage: ConvProblem, image: Any, row: Any, start: Any) -> None:
        def position(i: Any) -> Position:
            _, y_at, others = _offsets(stage, image, row, start + i)
            return self.row_at + i * self.channels, y_at, others

        self._tiles(stage, self.schedule.width, position)

    def _tiles(self, stage: ConvProblem, pixels: int, position: Any) -> None:
        """The register tiles of a dense stage over a row."""
        tile_schedule = self.schedule.tile(self.problem, stage, self.target)
        dense = (0, 0, 0, 0, 0, 1)  # what is between the stages; Tile reads the channels' stride alone
        x = stage.x if stage is self.problem.expand else TensorView(stage.x.shape, dense)
        y = stage.y if stage is self.problem.project else TensorView(stage.y.shape, dense)
        tile = Tile(tile_schedule, replace(stage, x=x, y=y), self.target, self.buffers[id(stage)])
        with T.serial(0, tile.features) as f:
            for first, count, size in balanced(pixels, tile_schedule.pixels):
                with T.serial(0, count) as t:
                    places = [position(first + t * size + i) for i in range(size)]
                    tile((0, f, 0), places, Turn(t, count))


class _RowTile(DepthwiseTile):
    """Depthwise tiles of one output row, whose columns count from the block's first."""

    def __init__(self, stages: _Stages, problem: ConvProblem, start: Any) -> None:
        super().__init__(problem, stages.buffers[id(problem)])
        self.stages, self.start = stages, start

    def input_at(self, corner: tuple[Any, ...], d: Any, h: Any, w: Any) -> Any:
        image, z, y, x = corner
        stages, problem = self.stages, self.problem
        if stages.problem.expand is None:
            return super().input_at((image, z, y, self.start + x), d, h, w)
        slot = (y * problem.strides[1] + h) % stages.ring_rows
        return (slot * stages.ring_width + x * problem.strides[2] + w) * stages.channels

    def other_at(self, view: TensorView, index: tuple[Any, ...]) -> Any:
        return super().other_at(view, (*index[:3], self.start + index[3]))

    def output_at(self, index: tuple[Any, ...]) -> Any:
        if self.stages.problem.project is None:
            return super().output_at(index)
        return self.stages.row_at + index[3] * self.stages.channels


def _offsets(stage: ConvProblem, image: Any, row: Any, column: Any) -> Position:
    """Element offsets in x, y and the others of a dense stage, at an output pixel."""

    def at(view: TensorView, steps: tuple[int, int] = (1, 1)) -> Any:
        return (
            image * view.strides[1]
            + row * (steps[0] * view.strides[3])
            + column * (steps[1] * view.strides[4])
        )

    return at(stage.x, stage.strides[1:]), at(stage.y), tuple(map(at, stage.others))
