"""Convolutions and matrix products on GPUs: a schedule, its packed weights and its workspace."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

from convopt.lowering.base import KernelCall, LoweringContext, Refused, Temporary
from convopt.lowering.conv_operands import ConvOperands, packed_call
from convopt.lowering.simple import aligned, simple_call
from convopt.schedules.conv_problem import ConvProblem
from convopt.schedules.pointwise_problem import ITEM_BYTES, copy_problem
from convopt.selection.choose_gpu import GPU_GEMM_FAMILIES, choose_gpu_conv, choose_im2col, gpu_split
from convopt.selection.conv_plan import ConvPlan
from convopt.selection.unfold import chunks
from convopt.targets import GpuTarget


def gpu_conv_calls(
    problem: ConvProblem, operands: ConvOperands, context: LoweringContext, target: GpuTarget
) -> list[KernelCall]:
    """One of the families, or im2col and GEMM: measured, by estimate, or what the options ask for.

    Refused: all refuse.
    """
    if operands.exact_weights and problem.x.dtype != "float32":
        call, problem, operands = in_float32(problem, operands, context)
        return [call, *gpu_conv_calls(problem, operands, context, target)]
    problem = aligned_problem(problem, operands, context)
    try:
        return planned_gpu_calls(problem, context.plan(problem), operands, context, target)
    except ValueError as error:
        raise Refused(str(error)) from error


def planned_gpu_calls(
    problem: ConvProblem, plan: ConvPlan, operands: ConvOperands, context: LoweringContext, target: GpuTarget
) -> list[KernelCall]:
    """The plan's kernels. ValueError: one of them takes no form of what is left for the last matrix."""
    if plan.expand_col:
        return _im2col_calls(problem, plan, operands, context, target)
    return [_conv_call(plan.schedule, problem, operands, context, target)]


def in_float32(
    problem: ConvProblem, operands: ConvOperands, context: LoweringContext
) -> tuple[KernelCall, ConvProblem, ConvOperands]:
    """x converted first, as tiled kernels have weights in its type: the conversion, and what is left then."""
    x, *rest = operands.values
    x_at, *offsets = operands.offsets
    strides, step = [0] * 6, 1
    for d in sorted(range(6), key=lambda d: (abs(problem.x.strides[d]), -d)):
        strides[d], step = step, step * problem.x.shape[d]
    wide, copy = replace(problem.x, strides=tuple(strides), dtype="float32"), Temporary(4 * problem.x.size)
    call = simple_call(copy_problem(problem.x, wide), (x, copy), context, "to float32", (x_at, 0))
    widened = replace(operands, values=(copy, *rest), offsets=(0, *offsets), exact_weights=False)
    return call, replace(problem, x=wide), widened


def _conv_call(
    schedule: Any, problem: ConvProblem, operands: ConvOperands, context: LoweringContext, target: GpuTarget
) -> KernelCall:
    return with_workspace(packed_call(schedule, problem, operands, context), target)


def _im2col_calls(
    problem: ConvProblem, plan: ConvPlan, operands: ConvOperands, context: LoweringContext, target: GpuTarget
) -> list[KernelCall]:
    """Up to `plan.expand_col` images a matrix, or rows of one image. The plan's schedule computes the product
    of a whole matrix; that of the last, smaller one, or at other addresses, is computed by the cheapest.
    """
    g, k = operands.weights.shape[:2]
    columns = problem.taps * problem.channels
    # The matrix has its columns in the order (kd, kh, kw, c).
    flat = operands.weights.transpose(0, 1, 3, 4, 5, 2).reshape(g, k, columns, 1, 1, 1)
    pieces = chunks(problem, plan.expand_col, context.options.im2col_cap)
    largest = pieces[0].images * pieces[0].rows
    pixels = largest * prod(problem.y.shape[i] for i in (2, 4))
    matrix = Temporary(g * pixels * columns * ITEM_BYTES[problem.x.dtype])
    x, *rest = operands.values
    x_offset, *offsets = operands.offsets
    calls = []
    for chunk in pieces:
        unfold, gemm = gpu_split(problem, chunk)
        x_at = x_offset + chunk.image * problem.x.strides[1]
        unfold = replace(unfold, x=aligned(unfold.x, x, x_at, context))
        label = f"im2col {chunk.images} images {unfold.rows}x{unfold.columns}"
        calls.append(KernelCall(choose_im2col(unfold, target), unfold, (x, matrix), label, (x_at, 0)))
        moved = tuple(
            at + chunk.image * v.strides[1] + chunk.row * v.strides[3]
            for at, v in zip(offsets, (*problem.others, problem.y), strict=True)
        )
        product = ConvOperands(flat, operands.bias, (matrix, *rest), (0, *moved))
        gemm = aligned_problem(gemm, product, context)
        schedule = plan.schedule
        if chunk.images * chunk.rows < largest or schedule.why_not(gemm, target) is not None:
            schedule = choose_gpu_conv(gemm, target, GPU_GEMM_FAMILIES)
        calls.append(_conv_call(schedule, gemm, product, context, target))
    return calls


def aligned_problem(problem: ConvProblem, operands: ConvOperands, context: LoweringContext) -> ConvProblem:
    """With the alignment of each operand's element 0."""
    views = (problem.x, *problem.others, problem.y)
    x, *others, y = (
        aligned(view, operand, offset, context)
        for view, operand, offset in zip(views, operands.values, operands.offsets, strict=True)
    )
    return replace(problem, x=x, others=tuple(others), y=y)


def with_workspace(call: KernelCall, target: GpuTarget) -> KernelCall:
    """The workspace comes before the output."""
    nbytes = call.schedule.workspace_bytes(call.problem, target)
    if not nbytes:
        return call
    *first, last = call.operands
    *offsets, last_at = call.offsets
    return replace(call, operands=(*first, Temporary(nbytes), last), offsets=(*offsets, 0, last_at))
