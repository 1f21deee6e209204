"""A convolution as multi-batch im2col and GEMM, chunk by chunk under a memory cap."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from convopt.lowering.base import KernelCall, LoweringContext, Operand, Temporary
from convopt.schedules.base import TensorView
from convopt.schedules.conv_problem import Array, ConvProblem
from convopt.schedules.im2col import Im2col, Im2colProblem
from convopt.selection.choose import choose_conv, conv_seconds, imbalance
from convopt.targets import Target

_ONES = (1, 1, 1)


@dataclass(frozen=True)
class Chunk:
    """`images` images from `image` on, output rows [row, row + rows) of each (all of them if images > 1)."""

    image: int
    images: int
    row: int
    rows: int


def chunks(problem: ConvProblem, expand_col: int, cap: int) -> list[Chunk]:
    """Pieces of at most `expand_col` images whose matrix takes at most `cap` bytes (or has one row)."""
    _, n, d, h, w, _ = problem.y.shape
    row_bytes = problem.groups * d * w * problem.taps * problem.channels * 4
    rows = max(1, min(h, cap // max(row_bytes, 1)))
    images = max(1, min(expand_col, n, cap // max(row_bytes * h, 1))) if rows == h else 1
    return [
        Chunk(image, min(images, n - image), row, min(rows, h - row))
        for image in range(0, n, images)
        for row in range(0, h, rows)
    ]


def split(problem: ConvProblem, chunk: Chunk) -> tuple[Im2colProblem, ConvProblem]:
    """The two kernels of a chunk."""
    _, _, d, _, w, k = problem.y.shape
    columns = problem.taps * problem.channels
    rows = d * chunk.rows * w
    x = TensorView(
        (*problem.x.shape[:1], chunk.images, *problem.x.shape[2:]), problem.x.strides, problem.x.dtype
    )
    unfold = Im2colProblem(
        x, (d, chunk.rows, w), problem.kernel, problem.strides, problem.dilations, problem.pads
    )

    def seen(view: TensorView) -> TensorView:
        shape = (view.shape[0], chunk.images, d, chunk.rows, w, k)
        return TensorView(shape, view.strides, view.dtype)

    dense = (chunk.images * rows * columns, rows * columns, chunk.rows * w * columns, w * columns, columns, 1)
    matrix = TensorView((problem.groups, chunk.images, d, chunk.rows, w, columns), dense)
    gemm = ConvProblem(
        matrix,
        seen(problem.y),
        _ONES,
        _ONES,
        _ONES,
        (0, 0, 0),
        problem.epilogue,
        tuple(map(seen, problem.others)),
        problem.bias,
    )
    return unfold, gemm


def seconds(problem: ConvProblem, target: Target, threads: int, expand_col: int, cap: int) -> float:
    """Predicted time, in the unit of the conv schedules' cost."""
    total = 0.0
    for chunk in chunks(problem, expand_col, cap):
        unfold, gemm = split(problem, chunk)
        schedule = Im2col()
        total += schedule.cost(unfold, target).seconds * imbalance(schedule.tasks(unfold, target), threads)
        total += conv_seconds(choose_conv(gemm, target, threads), gemm, target, threads)
    return total


def best_expand_col(problem: ConvProblem, target: Target, threads: int, cap: int) -> tuple[int, float]:
    """(images per matrix, predicted seconds) of the cheapest form."""
    n = problem.y.shape[1]
    counts = sorted({min(n, 1 << i) for i in range(n.bit_length() + 1)})
    return min(
        ((c, seconds(problem, target, threads, c, cap)) for c in counts), key=lambda pair: (pair[1], pair[0])
    )


def im2col_calls(
    problem: ConvProblem,
    expand_col: int,
    weights: Array,
    bias: Array | None,
    operands: tuple[Operand, ...],
    offsets: tuple[int, ...],
    context: LoweringContext,
) -> list[KernelCall]:
    """Alternating unfold and GEMM calls; weights (g, k, c, kd, kh, kw)."""
    from convopt.lowering.conv import packed_call

    g, k = weights.shape[:2]
    columns = problem.taps * problem.channels
    # The matrix has its columns in the order (kd, kh, kw, c).
    flat = weights.transpose(0, 1, 3, 4, 5, 2).reshape(g, k, columns, 1, 1, 1)
    pieces = chunks(problem, expand_col, context.options.im2col_cap)
    largest = max(c.images * c.rows for c in pieces)
    matrix = Temporary(g * largest * prod(problem.y.shape[i] for i in (2, 4)) * columns * 4)
    x, *others, y = operands
    calls = []
    for chunk in pieces:
        unfold, gemm = split(problem, chunk)
        x_at = chunk.image * problem.x.strides[1] + chunk.row * problem.strides[1] * problem.x.strides[3]
        label = f"im2col {chunk.images} images {unfold.rows}x{unfold.columns}"
        calls.append(KernelCall(Im2col(), unfold, (x, matrix), label, (offsets[0] + x_at, 0)))
        moved = tuple(
            at + chunk.image * v.strides[1] + chunk.row * v.strides[3]
            for at, v in zip(offsets[1:], (*problem.others, problem.y), strict=True)
        )
        schedule = choose_conv(gemm, context.target, context.threads)
        operands_ = (matrix, *others, y)
        calls.append(packed_call(schedule, gemm, flat, bias, operands_, (0, *moved), context))
    return calls
