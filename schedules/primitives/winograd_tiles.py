"""The TIR of the Winograd convolution. Needs tvm."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tvm import tirx
from tvm.tirx.script.builder import ir as T

from convopt.schedules.conv_problem import ConvProblem
from convopt.schedules.primitives.conv_tiles import balanced, load, pieces, store, sub_vector
from convopt.schedules.primitives.emit import hold, kernel, lanes_at, register, splat, widened
from convopt.schedules.primitives.vector_math import emit

if TYPE_CHECKING:
    from convopt.schedules.conv_winograd import WinogradConv
    from convopt.targets import Target


def winograd_kernel(schedule: WinogradConv, problem: ConvProblem, target: Target, symbol: str) -> Any:
    from convopt.schedules.conv_winograd import TRANSFORMS

    with kernel(symbol, problem.operands) as body:
        scratch = T.decl_buffer((2**31 - 1,), "float32", data=body.scratch, align=4, layout=None)
        stages = _Stages(schedule, problem, target, body.buffers, scratch, TRANSFORMS[schedule.m])
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


class _Stages:
    def __init__(
        self,
        schedule: WinogradConv,
        problem: ConvProblem,
        target: Target,
        buffers: list[Any],
        scratch: Any,
        transform: Any,
    ) -> None:
        self.schedule, self.problem, self.lanes = schedule, problem, target.lanes
        self.transform, self.size = transform, transform.size
        self.x, self.weight, *rest = buffers
        self.bias = rest.pop(0) if problem.bias else None
        *self.others, self.y = rest
        self.scratch = scratch
        self.rows, self.columns = schedule.tiles(problem)
        self.batch = schedule.tile_rows * self.columns
        self.points = self.size**2
        self.tile_k = schedule.vectors * target.lanes
        self.features = -(-problem.features // self.tile_k)
        self.products_at = self.points * self.batch * problem.channels  # M lies behind V

    def __call__(self, task: Any) -> None:
        _, images, depth, _, _, _ = self.problem.y.shape
        blocks = -(-self.rows // self.schedule.tile_rows)
        row0 = task % blocks * self.schedule.tile_rows
        image, group = task // blocks % (images * depth), task // (blocks * images * depth)
        place = (group, image // depth, image % depth)
        with T.serial(0, self.batch) as t:
            self._each_edge(row0, t, lambda y, x, edge: self._input(place, y, x, t, edge))
        with T.serial(0, self.features) as feature:
            self._products(group, feature)
            with T.serial(0, self.batch) as t:
                self._each_edge(row0, t, lambda y, x, edge: self._outputs(place, feature, y, x, t, edge))

    def _each_edge(self, row0: Any, t: Any, action: Any) -> None:
        """action(tile row, tile column, whether parts of the tile may be outside), decided at run time."""
        row, column = row0 + t // self.columns, t % self.columns
        height, width = self.problem.y.shape[3:5]
        m = self.schedule.m
        exact = height % m == 0 and width % m == 0 and self.rows % self.schedule.tile_rows == 0
        if exact:
            action(row, column, False)
            return
        inside = tirx.And((row + 1) * m <= height, (column + 1) * m <= width)
        with T.If(inside):
            with T.Then():
                action(row, column, False)
            with T.Else():
                action(row, column, True)

    def _input(self, place: tuple[Any, Any, Any], row: Any, column: Any, t: Any, edge: bool) -> None:
        problem, lanes, size = self.problem, self.lanes, self.size
        group, image, depth = place
        x_g, x_n, x_d, x_h, x_w, _ = problem.x.strides
        height, width = problem.y.shape[3] + 2, problem.y.shape[4] + 2  # with the padding that is read
        corner = group * x_g + image * x_n + (depth - problem.pads[0]) * x_d
        y0, x0 = row * self.schedule.m, column * self.schedule.m

        def element(i: int, j: int, channel: Any) -> Any:
            at = corner + (y0 + i - problem.pads[1]) * x_h + (x0 + j - problem.pads[2]) * x_w + channel
            value = widened(self.x[lanes_at(at, lanes)])
            if not edge:
                return value
            known = tirx.And(y0 + i < height, x0 + j < width)
            return hold(T.if_then_else(known, value, splat(T.float32(0), lanes)), lanes)

        with T.serial(0, problem.channels // lanes) as c:
            b_t = self.transform.b_t
            half: list[list[Any]] = [[None] * size for _ in range(size)]
            for j in range(size):
                column_values = [element(i, j, c * lanes) for i in range(size)]
                for i in range(size):
                    half[i][j] = hold(combine(b_t[i], column_values, lanes), lanes)
            for i in range(size):
                for j in range(size):
                    value = combine(b_t[j], half[i], lanes)
                    at = ((i * size + j) * self.batch + t) * problem.channels + c * lanes
                    T.buffer_store(self.scratch, value, [lanes_at(at, lanes)])

    def _products(self, group: Any, feature: Any) -> None:
        problem, lanes, vectors = self.problem, self.lanes, self.schedule.vectors
        zero = lanes_at(0, lanes)
        with T.serial(0, self.points) as point:
            panel = ((group * self.features + feature) * self.points + point) * problem.channels * self.tile_k
            for start, count, size in balanced(self.batch, self.schedule.pixels):
                with T.serial(0, count) as run:
                    first = start + run * size
                    sums = [[register(lanes) for _ in range(vectors)] for _ in range(size)]
                    for row in sums:
                        for slot in row:
                            T.buffer_store(slot, splat(T.float32(0), lanes), [zero])
                    with T.serial(0, problem.channels) as c:
                        for i in range(size):
                            at = (point * self.batch + first + i) * problem.channels + c
                            value = splat(self.scratch[at], lanes)
                            for v in range(vectors):
                                weight = self.weight[lanes_at(panel + c * self.tile_k + v * lanes, lanes)]
                                T.buffer_store(sums[i][v], sums[i][v][zero] + value * weight, [zero])
                    for i in range(size):
                        for v in range(vectors):
                            at = self._product_at(point, first + i, v)
                            T.buffer_store(self.scratch, sums[i][v][zero], [lanes_at(at, lanes)])

    def _product_at(self, point: Any, t: Any, vector: int) -> Any:
        return self.products_at + (point * self.batch + t) * self.tile_k + vector * self.lanes

    def _outputs(
        self, place: tuple[Any, Any, Any], feature: Any, row: Any, column: Any, t: Any, edge: bool
    ) -> None:
        tail = self.problem.features % self.tile_k
        if not tail or self.features == 1:
            self._output(place, feature, row, column, t, edge, tail or self.tile_k)
            return
        with T.If(feature == self.features - 1):
            with T.Then():
                self._output(place, feature, row, column, t, edge, tail)
            with T.Else():
                self._output(place, feature, row, column, t, edge, self.tile_k)

    def _output(
        self, place: tuple[Any, Any, Any], feature: Any, row: Any, column: Any, t: Any, edge: bool, width: int
    ) -> None:
        lanes, m, size, a_t = self.lanes, self.schedule.m, self.size, self.transform.a_t
        height, width_ = self.problem.y.shape[3:5]
        for v in range(-(-width // lanes)):
            half: list[list[Any]] = [[None] * size for _ in range(m)]
            for j in range(size):
                values = [
                    self.scratch[lanes_at(self._product_at(i * size + j, t, v), lanes)] for i in range(size)
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
