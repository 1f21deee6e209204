"""Softmax and its logarithm over any axes, with the maximum subtracted first."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Any, ClassVar

from convopt.schedules.base import FLOAT_BYTES, Estimate, TensorView
from convopt.schedules.reduce import MEMORY_BANDWIDTH, VECTOR_RATE, why_not_float
from convopt.schedules.reduce_plan import ReducePlan
from convopt.targets import Target

EXP_COST = 16  # vector instructions
SCRATCH_LIMIT = 256 << 10  # bytes; beyond, exponentials are computed twice


@dataclass(frozen=True)
class SoftmaxProblem:
    """y = exp(x) / sum(exp(x)) over `axes`, or its logarithm. Operands of a kernel: x, y, of one shape."""

    x: TensorView
    y: TensorView
    axes: tuple[int, ...]
    logarithm: bool = False

    @property
    def operands(self) -> tuple[TensorView, ...]:
        return (self.x, self.y)


def default(problem: SoftmaxProblem, target: Target) -> Softmax:
    return Softmax()


@dataclass(frozen=True)
class Softmax:
    """Three sweeps: maximum, sum of exponentials, result. Vectors as in `reduce.Reduce`."""

    name: ClassVar[str] = "softmax"
    vectors: int = 2

    def why_not(self, problem: SoftmaxProblem, target: Target) -> str | None:
        return why_not_float(problem.x, problem.y)

    def cost(self, problem: SoftmaxProblem, target: Target) -> Estimate:
        item = FLOAT_BYTES[problem.x.dtype]
        work = (2 * EXP_COST + 8) * problem.x.size / target.lanes
        return Estimate(compute=work / VECTOR_RATE, memory=3 * problem.x.size * item / MEMORY_BANDWIDTH)

    def _plan(self, problem: SoftmaxProblem, target: Target) -> ReducePlan:
        return ReducePlan.of(problem.operands, problem.axes, self.vectors, target)

    def tasks(self, problem: SoftmaxProblem, target: Target) -> int:
        return self._plan(problem, target).tasks.count

    def scratch_bytes(self, problem: SoftmaxProblem, target: Target) -> int:
        """Room for the exponentials of one step between the second and the third sweep."""
        nbytes = 4 * self._plan(problem, target).step_elements
        return nbytes if nbytes <= SCRATCH_LIMIT and not problem.logarithm else 0

    def apply(self, problem: SoftmaxProblem, target: Target, symbol: str) -> Any:
        from tvm.tirx.script.builder import ir as T

        from convopt.schedules.primitives.emit import hold, kernel, splat
        from convopt.schedules.primitives.vector_math import VectorMath
        from convopt.schedules.reduce_sweep import Accumulators, Piece, Sweep, load, store

        plan = self._plan(problem, target).with_scratch()
        y_type = problem.y.dtype
        # Not in y: steps of a task may overlap, so that another thread could read it half done.
        keep = self.scratch_bytes(problem, target) > 0

        def maximum(a: Any, b: Any, lanes: int) -> Any:
            return VectorMath(lanes).max(a, b)

        def add(a: Any, b: Any, lanes: int) -> Any:
            return a + b

        with kernel(symbol, problem.operands) as body:
            x, y = body.buffers
            kept = T.decl_buffer((2**31 - 1,), "float32", data=body.scratch, align=64, layout=None)
            with body.task() as task, plan.tasks.indices(task) as index:
                sweep = Sweep(plan, target.lanes, index)
                sweep.start[2] = 0
                x_stride, y_stride, _ = sweep.vector_loop.strides

                def of(values: list[Any], piece: Piece) -> Any:
                    """The piece's share of a result: its slot's vector, or the scalar repeated."""
                    return splat(values[0], piece.lanes) if plan.along else values[piece.slot]

                def element(piece: Piece, offsets: list[Any]) -> Any:
                    return load(x, offsets[0], x_stride, piece.lanes)

                largest = Accumulators(sweep, -inf, maximum)
                top = largest.fill(lambda piece, at: largest.add(piece, element(piece, at)))
                sums = Accumulators(sweep, 0.0, add, in_runs=True)

                def exponential(piece: Piece, offsets: list[Any]) -> Any:
                    below = hold(element(piece, offsets) - of(top, piece), piece.lanes)
                    return hold(VectorMath(piece.lanes).exp(below), piece.lanes)

                def sum_up(piece: Piece, offsets: list[Any]) -> None:
                    value = exponential(piece, offsets)
                    sums.add(piece, value)
                    if keep:
                        store(kept, "float32", value, offsets[2], 1, piece.lanes)

                total = sums.fill(sum_up)
                scale = []
                for (piece, _), value in zip(sweep.results(), total, strict=True):
                    math = VectorMath(piece.lanes)
                    final = math.log(math.hold(value)) if problem.logarithm else math.reciprocal(value)
                    scale.append(math.hold(final))

                def finish(piece: Piece, offsets: list[Any]) -> None:
                    if problem.logarithm:
                        value = element(piece, offsets) - of(top, piece) - of(scale, piece)
                    elif keep:
                        value = load(kept, offsets[2], 1, piece.lanes) * of(scale, piece)
                    else:
                        value = exponential(piece, offsets) * of(scale, piece)
                    store(y, y_type, value, offsets[1], y_stride, piece.lanes)

                sweep.each(finish)
        return body.function
