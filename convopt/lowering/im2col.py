"""A convolution as multi-batch im2col and GEMM, chunk by chunk under a memory cap."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from math import prod

from convopt.lowering.base import KernelCall, LoweringContext, Temporary
from convopt.lowering.conv_operands import ConvOperands, packed_call
from convopt.schedules.base import TensorView
from convopt.schedules.conv_problem import ConvProblem
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


@dataclass(frozen=True)
class Unfolding:
    """Up to `expand_col` images per matrix; `seconds` in the unit of the conv schedules' cost."""

    expand_col: int
    seconds: float


@lru_cache(maxsize=4096)
def best_unfolding(problem: ConvProblem, target: Target, threads: int, cap: int) -> Unfolding:
    """The cheapest number of images per matrix.

    Raises:
        ValueError: no schedule takes the GEMM; the text says why.
    """
    n = problem.y.shape[1]
    counts = sorted({min(n, 1 << i) for i in range(n.bit_length() + 1)})
    unfoldings = [Unfolding(c, _seconds(problem, target, threads, c, cap)) for c in counts]
    return min(unfoldings, key=lambda u: (u.seconds, u.expand_col))


def _seconds(problem: ConvProblem, target: Target, threads: int, expand_col: int, cap: int) -> float:
    total, schedule = 0.0, Im2col()
    kernels = Counter(split(problem, chunk) for chunk in chunks(problem, expand_col, cap))
    for (unfold, gemm), count in kernels.items():
        tasks = schedule.tasks(unfold, target)
        total += count * schedule.cost(unfold, target).seconds * imbalance(tasks, threads)
        total += count * conv_seconds(choose_conv(gemm, target, threads), gemm, target, threads)
    return total


def im2col_calls(problem: ConvProblem, operands: ConvOperands, context: LoweringContext) -> list[KernelCall]:
    """Alternating unfold and GEMM calls.

    Raises:
        ValueError: no schedule takes the GEMM; the text says why.
    """
    target, threads, cap = context.target, context.threads, context.options.im2col_cap
    g, k = operands.weights.shape[:2]
    columns = problem.taps * problem.channels
    # The matrix has its columns in the order (kd, kh, kw, c).
    flat = operands.weights.transpose(0, 1, 3, 4, 5, 2).reshape(g, k, columns, 1, 1, 1)
    pieces = chunks(problem, best_unfolding(problem, target, threads, cap).expand_col, cap)
    largest = max(c.images * c.rows for c in pieces)
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
        calls.append(packed_call(choose_conv(gemm, target, threads), gemm, product, context))
    return calls
