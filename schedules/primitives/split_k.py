"""Split-K: the reduction cut into parts that different blocks sum, for outputs of few tiles.

Deterministic: part z stores float32 partials, and a second kernel adds them in the order of z. Atomic: all
parts add into one zeroed float32 array. Either way bias and activation come once, after the sum, and nothing
is ever summed in 16 bits. Partials are (parts, groups, pixels, features); `apply` functions need tvm.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from convopt.schedules.base import TensorView
from convopt.schedules.conv_problem import ConvProblem

if TYPE_CHECKING:
    from convopt.targets import GpuTarget

REDUCE_THREADS = 256


@dataclass(frozen=True)
class Parts:
    """`tiles` steps of the reduction in `count` parts, all but the last of the same length."""

    tiles: int
    count: int

    @property
    def longest(self) -> int:
        return -(-self.tiles // self.count)

    def why_not(self) -> str | None:
        if self.count > self.tiles:
            return f"{self.count} parts of {self.tiles} steps of the reduction"
        if (self.count - 1) * self.longest >= self.tiles:
            return f"{self.count} parts of {self.longest} of {self.tiles} steps leave the last one empty"
        return None

    def range(self, part: Any) -> tuple[Any, Any]:
        """(first step, number of steps) of a part."""
        first = part * self.longest
        if self.tiles % self.longest == 0:
            return first, self.longest
        from convopt.schedules.primitives.nest import minimum

        return first, minimum(self.longest, self.tiles - first)


def partial_elements(problem: ConvProblem, parts: int) -> int:
    return parts * problem.groups * problem.pixels * problem.features


def workspace_view(elements: int) -> TensorView:
    return TensorView((elements,), (1,), "float32")


def zero_kernel(symbol: str, operands: tuple[TensorView, ...], elements: int) -> Any:
    """A device function that zeroes the workspace, the operand before the last."""
    from convopt.schedules.primitives.gpu_emit import device_kernel, store, when, zeros

    lanes = 4 if elements % 4 == 0 else 1
    threads = elements // lanes
    with device_kernel(symbol, operands, (-(-threads // REDUCE_THREADS), 1, 1), REDUCE_THREADS) as body:
        index = body.block[0] * REDUCE_THREADS + body.thread
        with when(index < threads if threads % REDUCE_THREADS else None):
            store(body.buffers[-2], index * lanes, zeros("float32", lanes), lanes)
    return body.function


def reduce_kernel(
    symbol: str,
    problem: ConvProblem,
    target: GpuTarget,
    operands: tuple[TensorView, ...],
    features: int,
    parts: int,
) -> Any:
    """A device function: y = epilogue(sum of the partials in index order).

    features: the row length of the bias.
    """
    from tvm.tirx.script.builder import ir as T

    from convopt.schedules.primitives.gpu_emit import device_kernel, local, store, unrolled, vector, when
    from convopt.schedules.primitives.gpu_epilogue import FinalOutput, operands_of
    from convopt.schedules.primitives.vector_width import access_width

    lanes = access_width(problem.y, 5)
    width = min(lanes, 4)
    per_group, size = problem.pixels * (problem.features // lanes), problem.pixels * problem.features
    grid = (-(-per_group // REDUCE_THREADS), problem.groups, 1)
    with device_kernel(symbol, operands, grid, REDUCE_THREADS) as body:
        _, _, bias, others, partials, y = operands_of(problem, body.buffers, True)
        output = FinalOutput(problem, target, bias, others, y, features)
        unit, group = body.block[0] * REDUCE_THREADS + body.thread, body.block[1]
        across = problem.features // lanes
        sums = local(lanes)
        with when(unit < per_group if per_group % REDUCE_THREADS else None):
            m, n = unit // across, unit % across * lanes
            start = group * size + m * problem.features + n
            with unrolled(target, lanes) as lane:
                T.buffer_store(sums, T.float32(0), [lane])
            with T.serial(0, parts) as part:
                for lane in range(0, lanes, width):
                    value = vector(partials, start + part * (problem.groups * size) + lane, width)
                    store(sums, lane, vector(sums, lane, width) + value, width)
            output.put(sums, 0, group, m, n, lanes)
    return body.function
