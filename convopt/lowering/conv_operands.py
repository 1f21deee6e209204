"""A convolution's operands, and the call of a schedule on them with the weights packed as it wants them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from convopt.lowering.base import Constant, KernelCall, LoweringContext, Operand
from convopt.schedules.conv_problem import Array, ConvProblem

NO_WEIGHTS = np.zeros((0,), np.float32)  # where the model computes them


@dataclass(frozen=True, eq=False)
class ConvOperands:
    """weights (g, k, c, kd, kh, kw); bias (g, k) or None.

    values: x, those of the epilogue, y; each is passed at its element `offsets[i]`. exact_weights: they must
    not be rounded to x's type, if that has 16 bits.
    """

    weights: Array
    bias: Array | None
    values: tuple[Operand, ...]
    offsets: tuple[int, ...]
    exact_weights: bool = False


def packed_call(
    schedule: Any, problem: ConvProblem, operands: ConvOperands, context: LoweringContext
) -> KernelCall:
    """The schedule on the problem: x, the packed weights (and bias), those of the epilogue, y."""
    packed = [Constant(a) for a in schedule.pack(problem, context.target, operands.weights, operands.bias)]
    x, *others = operands.values
    x_at, *others_at = operands.offsets
    offsets = (x_at, *(0,) * len(packed), *others_at)
    return KernelCall(schedule, problem, (x, *packed, *others), f"{problem.text} {schedule.name}", offsets)
