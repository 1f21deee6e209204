"""The TIR of the convolution by shifted products. Needs tvm."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tvm import tirx
from tvm.tirx.script.builder import ir as T

from convopt.schedules.conv_problem import ConvProblem
from convopt.schedules.primitives.conv_tiles import load, pieces, store
from convopt.schedules.primitives.emit import (
    KernelBody,
    hold,
    kernel,
    lanes_at,
    prefetch,
    reduction,
    register,
    splat,
    widened,
)
from convopt.schedules.primitives.tile_runs import balanced
from convopt.schedules.primitives.vector_math import emit

if TYPE_CHECKING:
    from convopt.schedules.conv_shifted import ShiftedConv
    from convopt.targets import Target

Place = tuple[Any, Any, Any]  # group, image, depth


def shifted_kernel(schedule: ShiftedConv, problem: ConvProblem, target: Target, symbol: str) -> Any:
    with kernel(symbol, problem.operands) as body:
        stages = _Stages(schedule, problem, target, body)
        with body.task() as task:
            stages(task)
    return body.function


class _Stages:
    def __init__(self, schedule: ShiftedConv, problem: ConvProblem, target: Target, body: KernelBody) -> None:
        self.schedule, self.problem, self.lanes = schedule, problem, target.lanes
        self.x, self.weight, *rest = body.buffers
        self.bias = rest.pop(0) if problem.bias else None
        *self.others, self.y = rest
        self.scratch = T.decl_buffer((2**31 - 1,), "float32", data=body.scratch, align=4, layout=None)
        self.rows, self.width = schedule.rows(problem), schedule.width(problem)
        self.columns = schedule.columns(problem, target)
        self.tile = schedule.vectors * target.lanes
        # The image's columns among those of a row of M: from `left` on, `inside` of them.
        self.left = min(problem.pads[2], self.width)
        self.inside = max(0, min(problem.x.shape[4], self.width - self.left))

    def __call__(self, task: Any) -> None:
        _, images, depth, height, _, _ = self.problem.y.shape
        chunks = -(-height // self.schedule.row_chunk)
        first, rest = task % chunks * self.schedule.row_chunk, task // chunks
        image, group = rest % (images * depth), rest // (images * depth)
        place = (group, image // depth, image % depth)
        count = tirx.min(height - first, self.schedule.row_chunk)
        with T.serial(0, count + (self.rows - self.schedule.row_chunk)) as row:
            source = first + row - self.problem.pads[1]
            with T.If(tirx.And(source >= 0, source < self.problem.x.shape[3])):
                with T.Then():
                    self._clear(row, 0, self.left)
                    self._products(place, row, source)
                    self._clear(row, self.left + self.inside, self.width)
                with T.Else():
                    self._clear(row, 0, self.width)
        with T.serial(0, count) as row, T.serial(0, self.problem.y.shape[4]) as column:
            self._sums(place, first, row, column)

    def _at(self, row: Any, column: Any) -> Any:
        """Where the products of a pixel lie."""
        return (row * self.width + column) * self.columns

    def _clear(self, row: Any, begin: int, end: int) -> None:
        if begin == end:
            return
        with T.serial(0, (end - begin) * self.columns // self.lanes) as i:
            at = self._at(row, begin) + i * self.lanes
            T.buffer_store(self.scratch, splat(T.float32(0), self.lanes), [lanes_at(at, self.lanes)])

    def _products(self, place: Place, row: Any, source: Any) -> None:
        """M of one row of the image."""
        group, image, depth = place
        x_g, x_n, x_d, x_h, _, _ = self.problem.x.strides
        start = group * x_g + image * x_n + depth * x_d + source * x_h
        full, tail = divmod(self.columns // self.lanes, self.schedule.vectors)
        tiles = full + (1 if tail else 0)
        panel = self.problem.channels * self.tile

        def row_of_tiles(tile: Any, vectors: int) -> None:
            base = (group * tiles + tile) * panel
            for first, count, pixels in balanced(self.inside, self.schedule.pixels):
                with T.serial(0, count) as run:
                    self._tile(start, first + run * pixels, pixels, base, row, tile, vectors)

        if self.inside == 0:
            return
        if full:
            with T.serial(0, full) as tile:
                row_of_tiles(tile, self.schedule.vectors)
        if tail:
            row_of_tiles(full, tail)

    def _tile(
        self, start: Any, column: Any, pixels: int, base: Any, row: Any, tile: Any, vectors: int
    ) -> None:
        lanes, zero = self.lanes, lanes_at(0, self.lanes)
        _, _, _, x_h, x_w, x_c = self.problem.x.strides
        sums = [[register(lanes) for _ in range(vectors)] for _ in range(pixels)]
        for slot in (slot for of_pixel in sums for slot in of_pixel):
            T.buffer_store(slot, splat(T.float32(0), lanes), [zero])

        def ahead(c: Any, count: int) -> None:
            """The pixels below, which come next from beyond L2."""
            prefetch(self.x, start + x_h + column * x_w + c * pixels * x_c, count * pixels * x_c)

        with reduction(self.problem.channels, ahead) as c:
            for i in range(pixels):
                value = widened(splat(self.x[start + (column + i) * x_w + c * x_c], lanes))
                for v in range(vectors):
                    weight = self.weight[lanes_at(base + c * self.tile + v * lanes, lanes)]
                    T.buffer_store(sums[i][v], sums[i][v][zero] + value * weight, [zero])
        for i in range(pixels):
            for v in range(vectors):
                at = self._at(row, self.left + column + i) + tile * self.tile + v * lanes
                T.buffer_store(self.scratch, sums[i][v][zero], [lanes_at(at, lanes)])

    def _sums(self, place: Place, first: Any, row: Any, column: Any) -> None:
        problem = self.problem
        (group, image, depth), (_, kh, kw), (_, dh, dw) = place, problem.kernel, problem.dilations
        index = (group, image, depth, first + row, column)
        for k, count in pieces(problem.features):
            total = None
            for h in range(kh):
                for w in range(kw):
                    at = self._at(row + h * dh, column + w * dw) + (h * kw + w) * problem.features + k
                    part = self.scratch[lanes_at(at, count)]
                    total = part if total is None else total + part
            if self.bias is not None:
                total = total + self.bias[lanes_at(group * problem.features + k, count)]
            inputs = [hold(total, count)]
            for view, buffer in zip(problem.others, self.others, strict=True):
                at = sum(i * s for i, s in zip(index, view.strides[:5], strict=True))
                inputs.append(load(buffer, at + k * view.strides[5], count, view.strides[5]))
            (result,) = emit(problem.epilogue, inputs, count)
            at = sum(i * s for i, s in zip(index, problem.y.strides[:5], strict=True))
            store(self.y, at + k, result, count, problem.y.dtype)
