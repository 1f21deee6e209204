"""Convolutions and matrix products on GPUs whose right operand is computed by the model, not packed before.

The implicit GEMM reads it where it lies, if its reduction is one run of elements of the input's type;
otherwise a kernel copies it first. What the GEMM refuses is for the direct convolution, which wants a copy of
its own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from math import prod

import onnx_ir as ir

from convopt.lowering.base import KernelCall, LoweringContext, Operand, Refused, Temporary
from convopt.lowering.conv_operands import ConvOperands
from convopt.lowering.gpu_conv import aligned_problem, in_float32, with_workspace
from convopt.lowering.simple import aligned, simple_call
from convopt.schedules.base import TensorView, row_major
from convopt.schedules.conv_problem import ConvProblem
from convopt.schedules.gpu_conv_direct import GpuDirectConv
from convopt.schedules.gpu_gemm_problem import GemmProblem
from convopt.schedules.pointwise_problem import ITEM_BYTES, copy_problem
from convopt.selection.choose_gpu import GPU_GEMM_FAMILIES, choose_gpu_conv, choose_transposition
from convopt.targets import GpuTarget


@dataclass(frozen=True, eq=False)
class ComputedWeight:
    """(g, k, kd, kh, kw, c) as it lies in memory, `at` elements behind the value's first."""

    value: ir.Value
    view: TensorView
    at: int = 0

    @property
    def matrix(self) -> TensorView | None:
        """(g, k, kd*kh*kw*c); None where the reduction is no single run of equal steps."""
        (g, k, *extents), (step_g, step_k, *steps) = self.view.shape, self.view.strides
        runs = [(e, s) for e, s in zip(extents, steps, strict=True) if e != 1] or [(1, 1)]
        if any(outer != inner * extent for (_, outer), (extent, inner) in pairwise(runs)):
            return None
        return replace(self.view, shape=(g, k, prod(extents)), strides=(step_g, step_k, runs[-1][1]))


def gpu_computed_calls(
    problem: ConvProblem,
    weight: ComputedWeight,
    operands: ConvOperands,
    context: LoweringContext,
    target: GpuTarget,
) -> list[KernelCall]:
    """problem: without bias. operands: x, those of the epilogue, y; its own weights are not used.

    Refused: all refuse.
    """
    if operands.exact_weights and weight.view.dtype == "float32" != problem.x.dtype:
        call, problem, operands = in_float32(problem, operands, context)
        return [call, *gpu_computed_calls(problem, weight, operands, context, target)]
    problem = aligned_problem(problem, operands, context)
    if context.options.algorithm != "direct":
        try:
            return _gemm_calls(problem, weight, operands, context, target)
        except ValueError:
            pass
    schedule = GpuDirectConv()
    if (reason := schedule.why_not(problem, target)) is not None:
        raise Refused(reason)
    packed = (0, 2, 3, 4, 5, 1)  # (g, kd, kh, kw, c, k) in float32, see GpuDirectConv.pack
    view = weight.view
    turned = TensorView(
        tuple(view.shape[d] for d in packed), tuple(view.strides[d] for d in packed), view.dtype
    )
    panel = Temporary(4 * view.size)
    copy = copy_problem(turned, row_major(turned.shape))
    calls = [simple_call(copy, (weight.value, panel), context, "pack", (weight.at, 0))]
    x, *rest = operands.values
    x_at, *rest_at = operands.offsets
    label = f"{problem.text} {schedule.name}"
    return [*calls, KernelCall(schedule, problem, (x, panel, *rest), label, (x_at, 0, *rest_at))]


def _gemm_calls(
    problem: ConvProblem,
    weight: ComputedWeight,
    operands: ConvOperands,
    context: LoweringContext,
    target: GpuTarget,
) -> list[KernelCall]:
    """ValueError: no form of the GEMM takes it."""
    calls: list[KernelCall] = []
    source: Operand = weight.value
    at, right = weight.at, weight.matrix
    if right is None or right.dtype != problem.x.dtype:
        dense = row_major(weight.view.shape, problem.x.dtype)
        source = Temporary(dense.size * ITEM_BYTES[dense.dtype])
        copy = copy_problem(weight.view, dense)
        calls.append(simple_call(copy, (weight.value, source), context, "pack", (at, 0)))
        (g, k), at = dense.shape[:2], 0
        right = row_major((g, k, prod(dense.shape[2:])), dense.dtype)
    else:
        right = aligned(right, weight.value, at, context)
    gemm = GemmProblem(
        problem.x, problem.y, problem.kernel, problem.strides, problem.dilations, problem.pads,
        problem.epilogue, problem.others, False, problem.arithmetic, b=right,
    )  # fmt: skip
    if choose_transposition(gemm, target):
        dense, copied = row_major(right.shape, right.dtype), Temporary(right.size * ITEM_BYTES[right.dtype])
        calls.append(simple_call(copy_problem(right, dense), (source, copied), context, "transpose", (at, 0)))
        gemm, source, at = replace(gemm, b=dense), copied, 0
    schedule = choose_gpu_conv(gemm, target, GPU_GEMM_FAMILIES[:1])
    x, *others = operands.values
    x_at, *others_at = operands.offsets
    g, n, k = right.shape
    label = f"gemm {g}x{gemm.pixels}x{n}x{k} {schedule.name}"
    call = KernelCall(schedule, gemm, (x, source, *others), label, (x_at, at, *others_at))
    return [*calls, with_workspace(call, target)]
