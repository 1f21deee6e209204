"""What can be said of a device's kernels without running them: one row per launch, for tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from convopt.codegen.device import DeviceCode, DeviceKernel, Extents
from convopt.schedules.base import TensorView
from convopt.schedules.conv_problem import ConvProblem
from convopt.schedules.pointwise_problem import ITEM_BYTES, PointwiseProblem
from convopt.schedules.pool_problem import PoolProblem
from convopt.schedules.primitives.occupancy import Launch
from convopt.schedules.reduce import ReduceProblem
from convopt.schedules.resize import ResizeProblem
from convopt.schedules.softmax import SoftmaxProblem
from convopt.targets import GpuTarget


@dataclass(frozen=True)
class KernelRow:
    """One launch. flop and bytes are the kernel call's, at its first launch; None at the others.

    flop: 2 per multiply-add of a convolution, else 1 per operation on an element (an exponential is one).
    bytes: every element of the operands moved once, constants included.
    occupancy: waves that a compute unit holds against those that it has slots for; None without registers.
    The rest are the schedule's models of its shared memory and its block order, None where it has none:
    conflict_degree, the most lanes that ask one bank for different words at once, with its padding and
    without; l2_hit_rate, of the loads, with its swizzle and without.
    """

    symbol: str
    schedule: str
    label: str
    grid: Extents
    block: Extents
    registers: int | None
    shared: int
    spills: int | None
    occupancy: float | None
    conflict_degree: int | None
    conflict_degree_unpadded: int | None
    l2_hit_rate: float | None
    l2_hit_rate_unswizzled: float | None
    flop: int | None
    bytes: int | None


def rows_of(
    schedule: Any, problem: Any, label: str, constant_bytes: int, code: DeviceCode, target: GpuTarget
) -> list[KernelRow]:
    """constant_bytes: of the call's weights and tables."""
    models = schedule.models(problem, target) if hasattr(schedule, "models") else None
    main = max(code.kernels, key=lambda kernel: kernel.shared)  # what the models speak of
    rows = []
    for position, kernel in enumerate(code.kernels):
        known = models if kernel is main else None
        first = position == 0
        rows.append(
            KernelRow(
                kernel.symbol,
                schedule.name,
                label,
                kernel.grid,
                kernel.block,
                kernel.registers,
                kernel.shared,
                kernel.spills,
                _occupancy(kernel, target),
                known.conflict_degree if known else None,
                known.conflict_degree_unpadded if known else None,
                known.l2_hit_rate if known else None,
                known.l2_hit_rate_unswizzled if known else None,
                flop(problem) if first else None,
                constant_bytes + sum(map(_moved, _views(problem))) if first else None,
            )
        )
    return rows


def _occupancy(kernel: DeviceKernel, target: GpuTarget) -> float | None:
    if kernel.registers is None:
        return None
    threads = prod(kernel.block)
    return Launch(prod(kernel.grid), threads, max(kernel.registers, 1), kernel.shared).occupancy(target)


def flop(problem: Any) -> int:
    if isinstance(problem, ConvProblem):
        return problem.flops
    if isinstance(problem, PointwiseProblem):
        return sum(op.name != "const" for op in problem.expression.ops) * problem.outputs[0].size
    if isinstance(problem, PoolProblem):
        return problem.taps * problem.y.size
    if isinstance(problem, ReduceProblem):
        return int(problem.x.size)
    if isinstance(problem, SoftmaxProblem):
        return int(5 * problem.x.size)  # maximum, difference, exponential, sum, product
    if isinstance(problem, ResizeProblem) and problem.mode == "linear":
        return int(2 * problem.taps ** len(problem.axes) * problem.y.size)
    return 0


def _views(problem: Any) -> Sequence[TensorView]:
    """The operands that are no constants."""
    if isinstance(problem, ConvProblem):
        return (problem.x, *problem.others, problem.y)
    if isinstance(problem, ResizeProblem):
        return (problem.x, problem.y)
    views: Sequence[TensorView] = problem.operands
    return views


def _moved(view: TensorView) -> int:
    """Bytes of the elements that the view has, repeated ones once."""
    item = ITEM_BYTES.get(view.dtype) or np.dtype(view.dtype).itemsize
    return item * prod(n for n, s in zip(view.shape, view.strides, strict=True) if s or n == 0)
