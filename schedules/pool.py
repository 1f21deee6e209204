"""Pooling kernels: `ChannelPool` runs vectors over channels, `PixelPool` over the pixels of a row."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

from convopt.schedules.base import Estimate
from convopt.schedules.pool_problem import PoolProblem
from convopt.schedules.primitives.nest import Tasks, split_tasks, vector_pieces
from convopt.targets import Target

if TYPE_CHECKING:
    from convopt.schedules.pool_rows import PoolRows, Range

VECTOR_RATE = 4e9  # loads with their combination a second, one core; only ranks
MEMORY_BANDWIDTH = 10e9


def default(problem: PoolProblem, target: Target) -> ChannelPool | PixelPool:
    """Channels where both sides have them contiguous, else pixels."""
    channels = ChannelPool()
    return channels if channels.why_not(problem, target) is None else PixelPool()


def _why_no_kernel(problem: PoolProblem) -> str | None:
    if not {problem.x.dtype, problem.y.dtype} <= {"float32", "float16"}:
        return f"pooling of {problem.x.dtype}"
    return None


def _estimate(problem: PoolProblem, target: Target, slowdown: float) -> Estimate:
    item = 2 if problem.x.dtype == "float16" else 4
    loads = problem.y.size * problem.taps / target.lanes
    moved = (problem.x.size + problem.y.size) * item
    return Estimate(compute=slowdown * loads / VECTOR_RATE, memory=moved / MEMORY_BANDWIDTH)


def _tasks(problem: PoolProblem, loops: int) -> Tasks:
    """Over the `loops` outermost of n, c, d, h (c last in memory where there are three)."""
    n, c, od, oh, ow = problem.y.shape
    if loops == 3:
        return split_tasks([n, od, oh], ow * c * 4)
    return split_tasks([n, c, od, oh], ow * 4)


@dataclass(frozen=True)
class ChannelPool:
    """`block` vectors of channels of one output pixel at a time; x and y have contiguous channels."""

    name: ClassVar[str] = "pool-channels"
    block: int = 4

    @classmethod
    def space(cls, problem: PoolProblem, target: Target, level: str = "small") -> Iterator[Self]:
        yield from (cls(block) for block in ((4,) if level == "small" else (1, 2, 4, 8)))

    def why_not(self, problem: PoolProblem, target: Target) -> str | None:
        if problem.x.shape[1] > 1 and (problem.x.strides[1], problem.y.strides[1]) != (1, 1):
            return "channels are not contiguous"
        return _why_no_kernel(problem)

    def cost(self, problem: PoolProblem, target: Target) -> Estimate:
        return _estimate(problem, target, slowdown=max(1.0, target.lanes / problem.x.shape[1]))

    def tasks(self, problem: PoolProblem, target: Target) -> int:
        return _tasks(problem, 3).count if problem.y.size else 0

    def scratch_bytes(self, problem: PoolProblem, target: Target) -> int:
        return 0

    def apply(self, problem: PoolProblem, target: Target, symbol: str) -> Any:
        from convopt.schedules.pool_rows import PoolRows
        from convopt.schedules.primitives.emit import kernel

        tasks = _tasks(problem, 3)
        with kernel(symbol, problem.operands) as body:
            rows = PoolRows(problem, body.buffers)
            with body.task() as task, tasks.indices(task) as (n, od, oh):
                rows.row(od, oh, lambda d, h: self._row(rows, target, (n, od, oh), d, h))
        return body.function

    def _row(self, rows: PoolRows, target: Target, row: tuple[Any, Any, Any], d: Range, h: Range) -> None:
        from tvm.tirx.script.builder import ir as T

        n, od, oh = row
        channels, lanes = rows.problem.x.shape[1], target.lanes
        step = self.block * lanes
        for first, last, inside in rows.spans():
            with T.serial(0, last - first) as index:
                at = (od, oh, first + index)
                taps = (d, h, rows.w_taps(at[2], inside))
                if channels >= step:
                    with T.serial(0, channels // step) as block:
                        pieces = [(block * step + v * lanes, lanes) for v in range(self.block)]
                        self._pixel(rows, n, at, taps, pieces)
                rest = channels % step
                if rest:
                    base = channels - rest
                    pieces = [(base + start, width) for start, width in vector_pieces(rest, lanes)]
                    for width in sorted({w for _, w in pieces}, reverse=True):
                        self._pixel(rows, n, at, taps, [piece for piece in pieces if piece[1] == width])

    def _pixel(
        self, rows: PoolRows, n: Any, at: tuple[Any, Any, Any], taps: tuple[Range, ...], pieces: list[Any]
    ) -> None:
        """The channels of `pieces`, all of one width, of one output pixel."""
        x, y, lanes = rows.problem.x, rows.problem.y, pieces[0][1]

        def load(*tap: Any) -> list[Any]:
            pixel = n * x.strides[0] + rows.offset(at, tap)
            return [rows.load(pixel + c, lanes) for c, _ in pieces]

        values = rows.pool(at, taps, load, lanes, len(pieces))
        pixel = n * y.strides[0] + sum(o * s for o, s in zip(at, y.strides[2:], strict=True))
        for (c, _), value in zip(pieces, values, strict=True):
            rows.store(value, pixel + c, lanes)


@dataclass(frozen=True)
class PixelPool:
    """Vectors along the w of one channel; any strides."""

    name: ClassVar[str] = "pool-pixels"

    @classmethod
    def space(cls, problem: PoolProblem, target: Target, level: str = "small") -> Iterator[Self]:
        yield cls()

    def why_not(self, problem: PoolProblem, target: Target) -> str | None:
        return _why_no_kernel(problem)

    def cost(self, problem: PoolProblem, target: Target) -> Estimate:
        steps = problem.x.strides[4] * problem.strides[2]
        return _estimate(problem, target, slowdown=float(min(steps, 2 * target.lanes)))

    def tasks(self, problem: PoolProblem, target: Target) -> int:
        return _tasks(problem, 4).count if problem.y.size else 0

    def scratch_bytes(self, problem: PoolProblem, target: Target) -> int:
        return 0

    def apply(self, problem: PoolProblem, target: Target, symbol: str) -> Any:
        from convopt.schedules.pool_rows import PoolRows
        from convopt.schedules.primitives.emit import kernel

        tasks = _tasks(problem, 4)
        with kernel(symbol, problem.operands) as body:
            rows = PoolRows(problem, body.buffers)
            with body.task() as task, tasks.indices(task) as (n, c, od, oh):
                rows.row(od, oh, lambda d, h: self._row(rows, target, (n, c, od, oh), d, h))
        return body.function

    def _row(self, rows: PoolRows, target: Target, row: tuple[Any, ...], d: Range, h: Range) -> None:
        from tvm.tirx.script.builder import ir as T

        n, c, od, oh = row
        for first, last, inside in rows.spans():
            if not inside:  # every pixel has taps of its own
                with T.serial(0, last - first) as index:
                    at = (od, oh, first + index)
                    self._pixels(rows, n, c, at, (d, h, rows.w_taps(at[2], inside)), 1)
                continue
            taps = (d, h, rows.w_taps(first, inside))
            extent, lanes = last - first, target.lanes
            if extent >= lanes:
                with T.serial(0, extent // lanes) as block:
                    self._pixels(rows, n, c, (od, oh, first + block * lanes), taps, lanes)
                if extent % lanes:  # over what is done already
                    self._pixels(rows, n, c, (od, oh, last - lanes), taps, lanes)
            else:
                for start, width in vector_pieces(extent, lanes):
                    self._pixels(rows, n, c, (od, oh, first + start), taps, width)

    def _pixels(
        self, rows: PoolRows, n: Any, c: Any, at: tuple[Any, Any, Any], taps: tuple[Range, ...], lanes: int
    ) -> None:
        """`lanes` outputs of a row from `at` on."""
        problem = rows.problem
        x, y = problem.x, problem.y
        step = x.strides[4] * problem.strides[2]

        def load(*tap: Any) -> list[Any]:
            return [rows.load(n * x.strides[0] + c * x.strides[1] + rows.offset(at, tap), lanes, step)]

        (value,) = rows.pool(at, taps, load, lanes, 1)
        pixel = sum(o * s for o, s in zip((n, c, *at), y.strides, strict=True))
        rows.store(value, pixel, lanes, y.strides[4])
