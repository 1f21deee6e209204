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
from convopt.schedules.pointwise_problem import PointwiseProblem
from convopt.schedules.pool_problem import PoolProblem
from convopt.schedules.reduce import ReduceProblem
from convopt.schedules.resize import ResizeProblem
from convopt.schedules.softmax import SoftmaxProblem
from convopt.targets import CpuTarget, GpuTarget

_RULES: dict[type[Any], tuple[Any, Any]] = {
    PointwiseProblem: (pointwise.default, gpu_pointwise.default),
    PoolProblem: (pool.default, gpu_pool.default),
    ReduceProblem: (reduce.default, gpu_reduce.default),
    ResizeProblem: (resize.default, gpu_resize.default),
    SoftmaxProblem: (softmax.default, gpu_softmax.default),
}


def choose_simple(problem: Any, target: CpuTarget | GpuTarget) -> Any:
    """The schedule; its `why_not` may still refuse."""
    on_cpu, on_gpu = _RULES[type(problem)]
    return on_gpu(problem, target) if isinstance(target, GpuTarget) else on_cpu(problem, target)
