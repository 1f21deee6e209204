"""A convolution or (batched) product whose right operand is computed: the normal form with a strided B."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from convopt.schedules.base import TensorView
from convopt.schedules.conv_problem import ConvProblem
from convopt.schedules.primitives.expression import Expression, identity


@dataclass(frozen=True)
class GemmProblem(ConvProblem):
    """The weight is the operand b: (g, k, kd*kh*kw*c), any strides, not packed. A bias is one of the
    epilogue's operands.

    A product y[g, m, n] = epilogue(sum over k of a[g, m, k] * b[g, n, k], ...) is the 1x1 conv of
    (g, 1, 1, 1, m, k).
    """

    b: TensorView = field(kw_only=True)

    __hash__ = ConvProblem.__hash__  # the kept one, over these fields


def gemm_problem(
    a: TensorView,
    b: TensorView,
    y: TensorView,
    epilogue: Expression | None = None,
    others: tuple[TensorView, ...] = (),
) -> GemmProblem:
    """a: (g, m, k), b: (g, n, k) (a transposed view of (g, k, n) will do), y and others: (g, m, n)."""
    ones = (1, 1, 1)
    return GemmProblem(
        _spread(a), _spread(y), ones, ones, ones, (0, 0, 0), epilogue or identity(),
        tuple(_spread(view) for view in others), False, b=b,
    )  # fmt: skip


def _spread(view: TensorView) -> TensorView:
    """(g, m, c) as (g, 1, 1, 1, m, c)."""
    (g, m, c), (sg, sm, sc) = view.shape, view.strides
    return replace(view, shape=(g, 1, 1, 1, m, c), strides=(sg, 0, 0, 0, sm, sc))
