"""The call of a kernel that is no convolution: its schedule by rule, its operands' alignment from where they
lie.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import gcd
from typing import Any

import onnx_ir as ir

from convopt.lowering.base import KernelCall, LoweringContext, Operand, Refused
from convopt.schedules.base import TensorView
from convopt.schedules.pointwise_problem import ITEM_BYTES, PointwiseProblem
from convopt.schedules.pool_problem import PoolProblem
from convopt.selection.simple import choose_simple
from convopt.targets import GpuTarget

MOST_ALIGNMENT = 16  # bytes: no access is wider


def simple_call(
    problem: Any,
    operands: tuple[Operand, ...],
    context: LoweringContext,
    label: str,
    offsets: tuple[int, ...] = (),
) -> KernelCall:
    """Raises Refused in the schedule's words."""
    if isinstance(context.target, GpuTarget):
        problem = _aligned(problem, operands, offsets, context)
    schedule = choose_simple(problem, context.target)
    if (reason := schedule.why_not(problem, context.target)) is not None:
        raise Refused(reason)
    return KernelCall(schedule, problem, operands, label, offsets)


def aligned(view: TensorView, operand: Operand, offset: int, context: LoweringContext) -> TensorView:
    """The view with the alignment of its element 0, `offset` elements behind the operand's."""
    base = context.views[operand].alignment if isinstance(operand, ir.Value) else MOST_ALIGNMENT
    return replace(view, alignment=gcd(base, offset * ITEM_BYTES[view.dtype], MOST_ALIGNMENT))


def _aligned(
    problem: Any, operands: Sequence[Operand], offsets: Sequence[int], context: LoweringContext
) -> Any:
    """For the problems whose kernels move vectors."""
    if not isinstance(problem, PointwiseProblem | PoolProblem):
        return problem
    places = zip(problem.operands, operands, offsets or (0,) * len(operands), strict=True)
    found = [aligned(view, operand, offset, context) for view, operand, offset in places]
    if isinstance(problem, PoolProblem):
        return replace(problem, x=found[0], y=found[1])
    count = len(problem.inputs)
    return replace(problem, inputs=tuple(found[:count]), outputs=tuple(found[count:]))
