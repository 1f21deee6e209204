"""A convolution as alternating calls of im2col and GEMM."""

from __future__ import annotations

from math import prod
from typing import Any

from convopt.lowering.base import KernelCall, LoweringContext, Temporary
from convopt.lowering.conv_operands import ConvOperands, packed_call
from convopt.schedules.conv_problem import ConvProblem
from convopt.schedules.im2col import Im2col
from convopt.selection.choose import choose_conv
from convopt.selection.unfold import chunks, split


def im2col_calls(
    problem: ConvProblem, expand_col: int, schedule: Any, operands: ConvOperands, context: LoweringContext
) -> list[KernelCall]:
    """Up to `expand_col` images a matrix. `schedule` computes the products of whole matrices; those of the
    last, smaller one are computed by the cheapest.
    """
    cap = context.options.im2col_cap
    g, k = operands.weights.shape[:2]
    columns = problem.taps * problem.channels
    # The matrix has its columns in the order (kd, kh, kw, c).
    flat = operands.weights.transpose(0, 1, 3, 4, 5, 2).reshape(g, k, columns, 1, 1, 1)
    pieces = chunks(problem, expand_col, cap)
    first = pieces[0]
    largest = first.images * first.rows
    matrix = Temporary(g * largest * prod(problem.y.shape[i] for i in (2, 4)) * columns * 4)
    x, *rest = operands.values
    x_offset, *offsets = operands.offsets
    calls = []
    for chunk in pieces:
        unfold, gemm = split(problem, chunk)
        x_at = chunk.image * problem.x.strides[1] + chunk.row * problem.strides[1] * problem.x.strides[3]
        label = f"im2col {chunk.images} images {unfold.rows}x{unfold.columns}"
        calls.append(KernelCall(Im2col(), unfold, (x, matrix), label, (x_offset + x_at, 0)))
        moved = tuple(
            at + chunk.image * v.strides[1] + chunk.row * v.strides[3]
            for at, v in zip(offsets, (*problem.others, problem.y), strict=True)
        )
        product = ConvOperands(flat, operands.bias, (matrix, *rest), (0, *moved))
        whole = (chunk.images, chunk.rows) == (first.images, first.rows)
        used = schedule if whole else choose_conv(gemm, context.target, context.threads)
        calls.append(packed_call(used, gemm, product, context))
    return calls
