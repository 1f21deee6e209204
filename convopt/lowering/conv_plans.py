"""A plan as kernel calls, on every kind of target."""

from __future__ import annotations

from convopt.lowering.base import KernelCall, LoweringContext
from convopt.lowering.conv_operands import ConvOperands, packed_call
from convopt.lowering.gpu_conv import planned_gpu_calls
from convopt.lowering.im2col import im2col_calls
from convopt.schedules.conv_problem import ConvProblem
from convopt.selection.conv_plan import ConvPlan
from convopt.targets import GpuTarget


def planned_calls(
    problem: ConvProblem, plan: ConvPlan, operands: ConvOperands, context: LoweringContext
) -> list[KernelCall]:
    """ValueError: no schedule takes the product of the last, smaller matrix."""
    if isinstance(context.target, GpuTarget):
        return planned_gpu_calls(problem, plan, operands, context, context.target)
    if plan.expand_col:
        return im2col_calls(problem, plan.expand_col, plan.schedule, operands, context)
    return [packed_call(plan.schedule, problem, operands, context)]
