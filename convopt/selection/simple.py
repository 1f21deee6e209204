"""The schedule of every kernel that is no convolution: each family's own rule, per kind of target."""

from __future__ import annotations

from typing import Any

from convopt.schedules import (
    gpu_pointwise,
    gpu_pool,
    gpu_reduce,
    gpu_resize,
    gpu_softmax,
    pointwise,
    pool,
    reduce,
    resize,
    softmax,
)
from convopt.schedules.gpu_transpose import BLOCK, GpuTranspose, sides
from convopt.schedules.pointwise_problem import PointwiseProblem
from convopt.schedules.pool_problem import PoolProblem
from convopt.schedules.reduce import ReduceProblem
from convopt.schedules.resize import ResizeProblem
from convopt.schedules.softmax import SoftmaxProblem
from convopt.targets import CpuTarget, GpuTarget

LEAST_SIDE = BLOCK // 4  # of a transposition: below it most of a block's threads have nothing to move


def _gpu_copy(problem: PointwiseProblem, target: GpuTarget) -> Any:
    """A transposition through registers where neighbours in the source are none in the destination."""
    found = sides(problem)
    if found is not None and min(found) >= LEAST_SIDE:
        for schedule in (GpuTranspose(True), GpuTranspose(False)):
            if schedule.why_not(problem, target) is None:
                return schedule
    return gpu_pointwise.default(problem, target)


_RULES: dict[type[Any], tuple[Any, Any]] = {
    PointwiseProblem: (pointwise.default, _gpu_copy),
    PoolProblem: (pool.default, gpu_pool.default),
    ReduceProblem: (reduce.default, gpu_reduce.default),
    ResizeProblem: (resize.default, gpu_resize.default),
    SoftmaxProblem: (softmax.default, gpu_softmax.default),
}


def choose_simple(problem: Any, target: CpuTarget | GpuTarget) -> Any:
    """The schedule; its `why_not` may still refuse."""
    on_cpu, on_gpu = _RULES[type(problem)]
    return on_gpu(problem, target) if isinstance(target, GpuTarget) else on_cpu(problem, target)
