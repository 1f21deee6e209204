"""Pooling kernels: `ChannelPool` runs vectors over channels, `PixelPool` over the pixels of a row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from convopt.schedules.base import FLOAT_BYTES, Estimate
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
    if not {problem.x.dtype, problem.y.dtype} <= FLOAT_BYTES.keys():
        return f"pooling of {problem.x.dtype}"
    return None


def _estimate(problem: PoolProblem, target: Target, slowdown: float) -> Estimate:
    item = FLOAT_BYTES[problem.x.dtype]
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
        from tvm.tirx.script.builder import ir as T

        from convopt.schedules.pool_rows import PoolRows
        from convopt.schedules.primitives.emit import kernel

        tasks = _tasks(problem, 3)
        with kernel(symbol, problem.operands) as body:
            rows = PoolRows(problem, body.buffers)
            with body.task() as task, tasks.indices(task) as (n, od, oh):
                first, last = rows.axes[2].inside
                width = (0, problem.kernel[2])

                def middle(d: Range, h: Range) -> None:
                    with T.serial(0, last - first) as index:
                        self._channels(rows, target, n, (od, oh, first + index), (d, h, width))

                def border(ow: Any, taps: tuple[Range, ...]) -> None:
                    self._channels(rows, target, n, (od, oh, ow), taps)

                rows.row(od, oh, middle, border)
        return body.function

    def _channels(
        self, rows: PoolRows, target: Target, n: Any, at: tuple[Any, Any, Any], taps: tuple[Range, ...]
    ) -> None:
        """All channels of one output pixel."""
        from tvm.tirx.script.builder import ir as T

        channels, lanes = rows.problem.x.shape[1], target.lanes
        step = self.block * lanes
        if channels >= step:
            with T.serial(0, channels // step) as block:
                self._pixel(rows, n, block * step, at, taps, [v * lanes for v in range(self.block)], lanes)
        rest = channels % step
        pieces = list(vector_pieces(rest, lanes)) if rest else []
        for width in sorted({width for _, width in pieces}, reverse=True):
            starts = [start for start, w in pieces if w == width]
            self._pixel(rows, n, channels - rest, at, taps, starts, width)

    def _pixel(
        self, rows: PoolRows, n: Any, c: Any, at: tuple[Any, Any, Any], taps: tuple[Range, ...],
        starts: list[int], lanes: int,
    ) -> None:  # fmt: skip
        """Vectors of `lanes` channels from c + each of `starts` on, at one output pixel."""
        strides = rows.problem.y.strides
        window = rows.start(n, c, at)

        def load(*tap: Any) -> list[Any]:
            return [rows.load(window + (rows.tap(tap) + start), lanes) for start in starts]

        values = rows.pool(at, taps, load, lanes, len(starts))
        pixel = sum(o * s for o, s in zip((n, c, *at), strides, strict=True))
        for start, value in zip(starts, values, strict=True):
            rows.store(value, pixel + start, lanes)


@dataclass(frozen=True)
class PixelPool:
    """Vectors along the w of one channel; any strides."""

    name: ClassVar[str] = "pool-pixels"

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
                rows.row(
                    od,
                    oh,
                    lambda d, h: self._middle(rows, target, (n, c, od, oh), d, h),
                    lambda ow, taps: self._pixels(rows, n, c, (od, oh, ow), taps, 1),
                )
        return body.function

    def _middle(self, rows: PoolRows, target: Target, row: tuple[Any, ...], d: Range, h: Range) -> None:
        from tvm.tirx.script.builder import ir as T

        n, c, od, oh = row
        first, last = rows.axes[2].inside
        taps = (d, h, (0, rows.problem.kernel[2]))
        extent, lanes = last - first, target.lanes
        if extent < lanes:
            for start, width in vector_pieces(extent, lanes):
                self._pixels(rows, n, c, (od, oh, first + start), taps, width)
            return
        with T.serial(0, -(-extent // lanes)) as block:
            start = block * lanes
            if extent % lanes:  # the last vector ends at the extent, over its neighbour
                start = T.min(start, extent - lanes)
            self._pixels(rows, n, c, (od, oh, first + start), taps, lanes)

    def _pixels(
        self, rows: PoolRows, n: Any, c: Any, at: tuple[Any, Any, Any], taps: tuple[Range, ...], lanes: int
    ) -> None:
        """`lanes` outputs of a row from `at` on."""
        problem = rows.problem
        x, y = problem.x, problem.y
        step = x.strides[4] * problem.strides[2]

        window = rows.start(n, c, at)

        def load(*tap: Any) -> list[Any]:
            return [rows.load(window + rows.tap(tap), lanes, step)]

        (value,) = rows.pool(at, taps, load, lanes, 1)
        pixel = sum(o * s for o, s in zip((n, c, *at), y.strides, strict=True))
        rows.store(value, pixel, lanes, y.strides[4])
