"""What can be said of a device's kernels without running them: one row per launch, for tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from convopt.codegen.device import DeviceCode, DeviceKernel, Extents
from convopt.schedules.base import TensorView, row_major
from convopt.schedules.conv_problem import ConvProblem
from convopt.schedules.gpu_gemm_problem import GemmProblem
from convopt.schedules.gpu_implicit_gemm import ImplicitGemm
from convopt.schedules.gpu_report import KernelReport
from convopt.schedules.im2col import Im2colProblem
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
    The rest are computed for tiled schedules and None for others (see `schedules.gpu_report`), with the
    schedule's padding or swizzle and without: conflict_degree, the most words of a bank of shared memory
    wanted at once in the main loop; epilogue_conflict_degree, behind it; l2_hit_rate, of the loads.
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
    epilogue_conflict_degree: int | None
    epilogue_conflict_degree_unpadded: int | None
    l2_hit_rate: float | None
    l2_hit_rate_unswizzled: float | None
    flop: int | None
    bytes: int | None


def rows_of(
    schedule: Any, problem: Any, label: str, constant_bytes: int, code: DeviceCode, target: GpuTarget
) -> list[KernelRow]:
    """constant_bytes: of the call's weights and tables."""
    report = None
    if isinstance(schedule, ImplicitGemm) and isinstance(problem, ConvProblem):
        report = KernelReport.of(schedule, problem, target)
    main = max(code.kernels, key=lambda kernel: kernel.shared)  # what the report speaks of
    rows = []
    for position, kernel in enumerate(code.kernels):
        known = report if kernel is main else None
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
                max(known.conflicts.writes, known.conflicts.reads) if known else None,
                max(known.unpadded.writes, known.unpadded.reads) if known else None,
                known.conflicts.epilogue if known else None,
                known.unpadded.epilogue if known else None,
                known.l2_hit_rate if known else None,
                known.unswizzled if known else None,
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
    if isinstance(problem, GemmProblem):
        return (problem.x, problem.b, *problem.others, problem.y)
    if isinstance(problem, ConvProblem):
        return (problem.x, *problem.others, problem.y)
    if isinstance(problem, Im2colProblem):
        matrix = row_major((problem.x.shape[0], problem.rows, problem.columns), problem.x.dtype)
        return (problem.x, matrix)
    if isinstance(problem, ResizeProblem):
        return (problem.x, problem.y)
    views: Sequence[TensorView] = problem.operands
    return views


def _moved(view: TensorView) -> int:
    """Bytes of the elements that the view has, repeated ones once."""
    item = ITEM_BYTES.get(view.dtype) or np.dtype(view.dtype).itemsize
    return item * prod(n for n, s in zip(view.shape, view.strides, strict=True) if s or n == 0)
