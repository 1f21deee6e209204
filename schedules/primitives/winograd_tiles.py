"""The TIR of the Winograd convolution. Needs tvm."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any

from tvm import tirx
from tvm.tirx.script.builder import ir as T

from convopt.schedules.conv_problem import ConvProblem
from convopt.schedules.primitives.conv_tiles import branch, load, pieces, store, sub_vector
from convopt.schedules.primitives.emit import (
    hold,
    kernel,
    lanes_at,
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
    from convopt.schedules.conv_winograd import WinogradConv
    from convopt.targets import Target


def winograd_kernel(schedule: WinogradConv, problem: ConvProblem, target: Target, symbol: str) -> Any:
    with kernel(symbol, problem.operands) as body:
        scratch = T.decl_buffer((2**31 - 1,), "float32", data=body.scratch, align=4, layout=None)
        stages = _Stages(schedule, problem, target, body.buffers, scratch)
        with body.task() as task:
            stages(task)
    return body.function


def combine(coefficients: Sequence[float], vectors: Sequence[Any], lanes: int) -> Any:
    """The sum of the vectors times their coefficients; zeros cost nothing, ones no multiplication."""
    total = None
    # A positive term first: no negation is needed.
    terms = sorted(zip(coefficients, vectors, strict=True), key=lambda pair: pair[0] <= 0)
    for factor, vector in terms:
        if factor == 0:
            continue
        term = vector if abs(factor) == 1 else vector * splat(T.float32(abs(factor)), lanes)
        if total is None:
            total = term if factor > 0 else splat(T.float32(0), lanes) - term
        else:
            total = total + term if factor > 0 else total - term
    return total


def by_edge(condition: Any, action: Callable[[bool], None]) -> None:
    """action(whether the condition holds), decided at run time; None holds never."""
    if condition is None:
        action(False)
        return
    branch(condition, True, lambda: action(True), lambda: action(False))


class _Stages:
    def __init__(
        self,
        schedule: WinogradConv,
        problem: ConvProblem,
        target: Target,
        buffers: list[Any],
        scratch: Any,
    ) -> None:
        from convopt.schedules.conv_winograd import planes_channels

        self.schedule, self.problem, self.lanes = schedule, problem, target.lanes
        self.channels = planes_channels(problem)
        self.transform = schedule.transform(problem)
        self.size, self.stride = self.transform.size, problem.strides[1]
        self.x, self.weight, *rest = buffers
        self.bias = rest.pop(0) if problem.bias else None
        *self.others, self.y = rest
        self.scratch = scratch
        self.batch, self.points = schedule.batch, schedule.points(problem)
        self.tile_k = schedule.vectors * target.lanes
        self.features = schedule.features(problem, target)
        self.v_slab, self.m_slab = schedule.slabs(problem, target)
        self.products_at = self.points * self.v_slab  # M lies behind V

    def __call__(self, task: Any) -> None:
        schedule, (_, images, depth, _, _, _) = self.schedule, self.problem.y.shape
        rows, columns = schedule.blocks(self.problem)
        chunks = -(-self.features // schedule.feature_chunk)
        # Neighbouring tasks share their weights: U is what does not fit L2.
        area, rest = task % (rows * columns), task // (rows * columns)
        image, rest = rest % (images * depth), rest // (images * depth)
        feature0, group = rest % chunks * schedule.feature_chunk, rest // chunks
        row0, column0 = area // columns * schedule.tile_rows, area % columns * schedule.tile_columns
        place = (group, image // depth, image % depth)
        with T.serial(0, self.batch) as t:
            row, column = self._tile_at(row0, column0, t)
            by_edge(self._reads_beyond(row, column), lambda edge: self._input(place, row, column, t, edge))
        count = tirx.min(self.features - feature0, schedule.feature_chunk)
        size = schedule.feature_block
        with T.serial(0, (count + size - 1) // size) as block:
            first = feature0 + block * size
            width = tirx.min(self.features - first, size)
            with T.serial(0, self.points) as point, T.serial(0, width) as i:
                self._products(group, first, point, i)
            with T.serial(0, self.batch) as t, T.serial(0, width) as i:
                row, column = self._tile_at(row0, column0, t)
                by_edge(
                    self._writes_beyond(row, column),
                    lambda edge: self._outputs(place, first + i, i, row, column, t, edge),
                )

    def _tile_at(self, row0: Any, column0: Any, t: Any) -> tuple[Any, Any]:
        """Row and column, among the image's tiles, of the t-th of a block."""
        tile_columns = self.schedule.tile_columns
        return row0 + t // tile_columns, column0 + t % tile_columns

    def _tiles(self) -> tuple[int, int]:
        """Rows and columns of tiles of an image, those that only fill a block included."""
        rows, columns = self.schedule.blocks(self.problem)
        return rows * self.schedule.tile_rows, columns * self.schedule.tile_columns

    def _writes_beyond(self, row: Any, column: Any) -> Any:
        """Whether parts of the tile lie outside the output; None where that is so for no tile."""
        m, extents = self.schedule.m, self.problem.y.shape[3:5]
        if all(count * m <= extent for count, extent in zip(self._tiles(), extents, strict=True)):
            return None
        return tirx.Or((row + 1) * m > extents[0], (column + 1) * m > extents[1])

    def _readable(self, dim: int) -> tuple[int, int]:
        """First and last + 1 of the rows (dim 1) or columns (2) of x that there is memory for."""
        if not self.problem.bordered:
            return 0, self.problem.x.shape[2 + dim]
        before = self.problem.pads[dim]
        return -before, (self.problem.y.shape[2 + dim] - 1) * self.stride + 3 - before

    def _first_read(self, tile: Any, dim: int) -> Any:
        """The row or column of x that the tile begins with."""
        return tile * (self.schedule.m * self.stride) - self.problem.pads[dim]

    def _reads_beyond(self, row: Any, column: Any) -> Any:
        """Whether parts of the tile's input have no memory; None where that is so for no tile."""
        conditions = []
        for dim, tile, count in zip((1, 2), (row, column), self._tiles(), strict=True):
            begin, end = self._readable(dim)
            if self._first_read(0, dim) < begin:
                conditions.append(self._first_read(tile, dim) < begin)
            if self._first_read(count - 1, dim) + self.size > end:
                conditions.append(self._first_read(tile, dim) + self.size > end)
        return reduce(tirx.Or, conditions) if conditions else None

    def _input(self, place: tuple[Any, Any, Any], row: Any, column: Any, t: Any, edge: bool) -> None:
        problem, lanes, size = self.problem, self.lanes, self.size
        group, image, depth = place
        x_g, x_n, x_d, x_h, x_w, _ = problem.x.strides
        plane = depth * problem.strides[0] - problem.pads[0]
        corner = group * x_g + image * x_n + plane * x_d
        y0, x0 = self._first_read(row, 1), self._first_read(column, 2)
        ends = [self._readable(dim) for dim in (1, 2)]

        def element(i: int, j: int, d: Any, channel: Any) -> Any:
            at = corner + d * (problem.dilations[0] * x_d) + (y0 + i) * x_h + (x0 + j) * x_w + channel
            value = widened(self.x[lanes_at(at, lanes)])
            if not edge:
                return value
            inside = [tirx.And(p >= b, p < e) for p, (b, e) in zip((y0 + i, x0 + j), ends, strict=True)]
            return hold(T.if_then_else(tirx.And(*inside), value, splat(T.float32(0), lanes)), lanes)

        with T.serial(0, problem.kernel[0]) as d, T.serial(0, problem.channels // lanes) as c:
            b_t = self.transform.b_t
            half: list[list[Any]] = [[None] * size for _ in range(size)]
            for j in range(size):
                column_values = [element(i, j, d, c * lanes) for i in range(size)]
                for i in range(size):
                    half[i][j] = hold(combine(b_t[i], column_values, lanes), lanes)
            for i in range(size):
                for j in range(size):
                    value = combine(b_t[j], half[i], lanes)
                    at = (i * size + j) * self.v_slab + t * self.channels + d * problem.channels + c * lanes
                    T.buffer_store(self.scratch, value, [lanes_at(at, lanes)])

    def _products(self, group: Any, first: Any, point: Any, i: Any) -> None:
        """M of one point and of the tile of channels `first` + i, where `first` begins a block."""
        lanes, vectors = self.lanes, self.schedule.vectors
        zero, size = lanes_at(0, lanes), self.schedule.feature_block
        panel_size = self.channels * self.tile_k
        blocks = -(-self.features // size)
        panel = (((group * blocks + first // size) * self.points + point) * size + i) * panel_size
        runs = balanced(self.batch, self.schedule.pixels)
        tiles = sum(count for _, count, _ in runs)
        # Each tile asks for its share of the panel that follows in memory, which is the next one used.
        share, stride = -(-panel_size // tiles), -(-self.tile_k // tiles)
        before = 0
        for start, count, pixels in runs:
            with T.serial(0, count) as run:
                t = start + run * pixels
                sums = [[register(lanes) for _ in range(vectors)] for _ in range(pixels)]
                for row in sums:
                    for slot in row:
                        T.buffer_store(slot, splat(T.float32(0), lanes), [zero])

                def ahead(c: Any, count: int, turn: Any = before + run) -> None:
                    prefetch(self.weight, panel + panel_size + turn * share + c * stride, count * stride)

                with reduction(self.channels, ahead, steps_of_line(4 * stride)) as c:
                    for p in range(pixels):
                        value = splat(self.scratch[point * self.v_slab + (t + p) * self.channels + c], lanes)
                        for v in range(vectors):
                            weight = self.weight[lanes_at(panel + c * self.tile_k + v * lanes, lanes)]
                            T.buffer_store(sums[p][v], sums[p][v][zero] + value * weight, [zero])
                for p in range(pixels):
                    for v in range(vectors):
                        at = self._product_at(point, i, t + p, v)
                        T.buffer_store(self.scratch, sums[p][v][zero], [lanes_at(at, lanes)])
            before += count

    def _product_at(self, point: Any, i: Any, t: Any, vector: int) -> Any:
        """Where M of the block's tile of channels i lies."""
        block = self.schedule.feature_block * self.tile_k
        return self.products_at + point * self.m_slab + t * block + i * self.tile_k + vector * self.lanes

    def _outputs(
        self, place: tuple[Any, Any, Any], feature: Any, i: Any, row: Any, column: Any, t: Any, edge: bool
    ) -> None:
        """The tile of channels `feature`, whose products are the i-th of the block."""
        tail = self.problem.features % self.tile_k
        if not tail or self.features == 1:
            self._output(place, feature, i, row, column, t, edge, tail or self.tile_k)
            return
        with T.If(feature == self.features - 1):
            with T.Then():
                self._output(place, feature, i, row, column, t, edge, tail)
            with T.Else():
                self._output(place, feature, i, row, column, t, edge, self.tile_k)

    def _output(
        self,
        place: tuple[Any, Any, Any],
        feature: Any,
        in_block: Any,
        row: Any,
        column: Any,
        t: Any,
        edge: bool,
        width: int,
    ) -> None:
        lanes, m, size, a_t = self.lanes, self.schedule.m, self.size, self.transform.a_t
        height, width_ = self.problem.y.shape[3:5]
        for v in range(-(-width // lanes)):
            half: list[list[Any]] = [[None] * size for _ in range(m)]
            for j in range(size):
                values = [
                    self.scratch[lanes_at(self._product_at(i * size + j, in_block, t, v), lanes)]
                    for i in range(size)
                ]
                for i in range(m):
                    half[i][j] = hold(combine(a_t[i], values, lanes), lanes)
            channel = feature * self.tile_k + v * lanes
            for i in range(m):
                for j in range(m):
                    value = combine(a_t[j], half[i], lanes)
                    if self.bias is not None:
                        at = place[0] * (self.features * self.tile_k) + channel
                        value = value + self.bias[lanes_at(at, lanes)]
                    value = hold(value, lanes)
                    y, x = row * m + i, column * m + j
                    part = min(lanes, width - v * lanes)
                    if not edge:
                        self._finish(place, y, x, channel, value, part)
                    else:
                        with T.If(tirx.And(y < height, x < width_)), T.Then():
                            self._finish(place, y, x, channel, value, part)

    def _finish(
        self, place: tuple[Any, Any, Any], y: Any, x: Any, channel: Any, value: Any, width: int
    ) -> None:
        problem = self.problem
        index = (*place, y, x)
        for first, count in pieces(width):
            part = value if count == self.lanes else sub_vector(value, first, count)
            inputs = [part]
            for view, buffer in zip(problem.others, self.others, strict=True):
                at = sum(p * s for p, s in zip(index, view.strides[:5], strict=True))
                element = at + (channel + first) * view.strides[5]
                inputs.append(load(buffer, element, count, view.strides[5]))
            (result,) = emit(problem.epilogue, inputs, count)
            at = sum(p * s for p, s in zip(index, problem.y.strides[:5], strict=True))
            store(self.y, at + channel + first, result, count, problem.y.dtype)
