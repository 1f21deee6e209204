"""Small convolutions as the tuning's tests use them."""

from __future__ import annotations

from dataclasses import replace

from convopt.schedules.base import TensorView, row_major
from convopt.schedules.conv_problem import ConvProblem
from convopt.schedules.primitives.expression import identity


def conv(n: int = 1, c: int = 16, size: int = 9, k: int = 24, stride: int = 1) -> ConvProblem:
    """A 3x3 convolution with pad 1 over channels-last data that has its border of zeros."""
    out = (size - 1) // stride + 1
    row = (size + 2) * c
    x = TensorView((1, n, 1, size, size, c), (0, row * (size + 2), 0, row, c, 1))
    y = row_major((1, n, 1, out, out, k))
    return ConvProblem(x, y, (1, 3, 3), (1, stride, stride), (1, 1, 1), (0, 1, 1), identity())


def halves(problem: ConvProblem) -> ConvProblem:
    """The same convolution of float16."""
    x, y = (replace(view, dtype="float16", alignment=16) for view in (problem.x, problem.y))
    return replace(problem, x=x, y=y)
