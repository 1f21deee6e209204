"""Reductions over any axes: sums, means, extremes, products and norms."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Any, ClassVar

from convopt.schedules.base import FLOAT_BYTES, Estimate, TensorView
from convopt.schedules.reduce_plan import ReducePlan
from convopt.targets import Target

MEMORY_BANDWIDTH = 10e9  # bytes/s of one core; only ranks
VECTOR_RATE = 4e9

# name: what is combined of each element, how, from where on, and what is done to the result
OPS = {
    "sum": ("identity", "add", 0.0, "identity"),
    "mean": ("identity", "add", 0.0, "divide"),
    "max": ("identity", "max", -inf, "identity"),
    "min": ("identity", "min", inf, "identity"),
    "prod": ("identity", "mul", 1.0, "identity"),
    "l1": ("abs", "add", 0.0, "identity"),
    "l2": ("square", "add", 0.0, "sqrt"),
    "sum_square": ("square", "add", 0.0, "identity"),
    "log_sum": ("identity", "add", 0.0, "log"),
}


@dataclass(frozen=True)
class ReduceProblem:
    """y = op of x over `axes`; y has x's rank and extent 1 there. Operands of a kernel: x, y."""

    x: TensorView
    y: TensorView
    axes: tuple[int, ...]
    op: str

    def __post_init__(self) -> None:
        wanted = tuple(1 if d in self.axes else n for d, n in enumerate(self.x.shape))
        if self.y.shape != wanted or self.op not in OPS:
            raise ValueError(f"{self.op} of {self.x.shape} over {self.axes} to {self.y.shape}")

    @property
    def operands(self) -> tuple[TensorView, ...]:
        return (self.x, self.y)


def why_not_float(*views: TensorView) -> str | None:
    """Only floating point is reduced, and there must be elements."""
    for view in views:
        if view.dtype not in FLOAT_BYTES:
            return f"reduction of {view.dtype}"
        if view.size == 0:
            return "no elements"
    return None


def default(problem: ReduceProblem, target: Target) -> Reduce:
    return Reduce()


@dataclass(frozen=True)
class Reduce:
    """Vectors along the contiguous dimension, be it reduced or kept; `vectors` of them in flight if kept."""

    name: ClassVar[str] = "reduce"
    vectors: int = 4

    def why_not(self, problem: ReduceProblem, target: Target) -> str | None:
        return why_not_float(problem.x, problem.y)

    def cost(self, problem: ReduceProblem, target: Target) -> Estimate:
        item = FLOAT_BYTES[problem.x.dtype]
        vectors = problem.x.size / target.lanes
        return Estimate(compute=2 * vectors / VECTOR_RATE, memory=problem.x.size * item / MEMORY_BANDWIDTH)

    def _plan(self, problem: ReduceProblem, target: Target) -> ReducePlan:
        return ReducePlan.of(problem.operands, problem.axes, self.vectors, target)

    def tasks(self, problem: ReduceProblem, target: Target) -> int:
        return self._plan(problem, target).tasks.count

    def scratch_bytes(self, problem: ReduceProblem, target: Target) -> int:
        return 0

    def apply(self, problem: ReduceProblem, target: Target, symbol: str) -> Any:
        from convopt.schedules.primitives.emit import hold, kernel
        from convopt.schedules.primitives.vector_math import VectorMath
        from convopt.schedules.reduce_sweep import Accumulators, Piece, Sweep, load, store

        plan = self._plan(problem, target)
        before, combination, start, after = OPS[problem.op]

        def combine(a: Any, b: Any, lanes: int) -> Any:
            return getattr(VectorMath(lanes), combination)(a, b)

        with kernel(symbol, problem.operands) as body:
            x, y = body.buffers
            with body.task() as task, plan.tasks.indices(task) as index:
                sweep = Sweep(plan, target.lanes, index)
                totals = Accumulators(sweep, start, combine, in_runs=combination == "add")

                def visit(piece: Piece, offsets: list[Any]) -> None:
                    stride = sweep.vector_loop.strides[0]
                    value = load(x, offsets[0], stride, piece.lanes)
                    if before != "identity":
                        value = getattr(VectorMath(piece.lanes), before)(hold(value, piece.lanes))
                    totals.add(piece, value)

                for value, (piece, offsets) in zip(totals.fill(visit), sweep.results(), strict=True):
                    math = VectorMath(piece.lanes)
                    if after == "divide":
                        value = value * math.const(1.0 / plan.reduced_elements)
                    elif after != "identity":
                        value = getattr(math, after)(math.hold(value))
                    store(y, problem.y.dtype, value, offsets[1], plan.kept[-1].strides[1], piece.lanes)
        return body.function
