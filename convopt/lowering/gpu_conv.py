"""Convolutions and matrix products on GPUs: a schedule, its packed weights and its workspace."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx_ir as ir

from convopt.lowering.base import KernelCall, LoweringContext, Refused, Temporary
from convopt.lowering.conv_operands import ConvOperands, packed_call
from convopt.lowering.simple import aligned, simple_call
from convopt.schedules.base import TensorView, row_major
from convopt.schedules.conv_problem import ConvProblem
from convopt.schedules.gpu_conv_direct import GpuDirectConv
from convopt.schedules.pointwise_problem import copy_problem
from convopt.selection.choose_gpu import GPU_CONV_FAMILIES, choose_gpu_conv
from convopt.targets import GpuTarget


def gpu_conv_calls(
    problem: ConvProblem, operands: ConvOperands, context: LoweringContext, target: GpuTarget
) -> list[KernelCall]:
    """The cheapest of the families, or what `context.options.algorithm` asks for. Refused: all refuse."""
    if context.options.algorithm == "im2col":
        raise Refused("there is no im2col for GPUs: implicit GEMM unfolds while it loads")
    families = (GpuDirectConv,) if context.options.algorithm == "direct" else GPU_CONV_FAMILIES
    problem = _aligned(problem, operands, context)
    try:
        schedule = choose_gpu_conv(problem, target, families)
    except ValueError as error:
        raise Refused(str(error)) from error
    return [_with_workspace(packed_call(schedule, problem, operands, context), target)]


def gpu_dynamic_calls(
    problem: ConvProblem,
    b: ir.Value,
    b_view: TensorView,
    b_at: int,
    operands: ConvOperands,
    context: LoweringContext,
    target: GpuTarget,
) -> list[KernelCall]:
    """A product whose right operand (g, k, n) is computed: it is copied to what GpuDirectConv reads."""
    problem = _aligned(problem, operands, context)
    schedule = GpuDirectConv()
    if (reason := schedule.why_not(problem, target)) is not None:
        raise Refused(reason)
    panel = Temporary(4 * b_view.size)
    pack = simple_call(copy_problem(b_view, row_major(b_view.shape)), (b, panel), context, "pack", (b_at, 0))
    g, k, n = b_view.shape
    placeholder = replace(operands, weights=np.zeros((g, n, k, 1, 1, 1), np.float32))
    call = packed_call(schedule, problem, placeholder, context)
    return [pack, replace(call, operands=(call.operands[0], panel, *call.operands[2:]))]


def _aligned(problem: ConvProblem, operands: ConvOperands, context: LoweringContext) -> ConvProblem:
    views = (problem.x, *problem.others, problem.y)
    x, *others, y = (
        aligned(view, operand, offset, context)
        for view, operand, offset in zip(views, operands.values, operands.offsets, strict=True)
    )
    return replace(problem, x=x, others=tuple(others), y=y)


def _with_workspace(call: KernelCall, target: GpuTarget) -> KernelCall:
    """The workspace comes before the output."""
    nbytes = call.schedule.workspace_bytes(call.problem, target)
    if not nbytes:
        return call
    *first, last = call.operands
    *offsets, last_at = call.offsets
    return replace(call, operands=(*first, Temporary(nbytes), last), offsets=(*offsets, 0, last_at))
