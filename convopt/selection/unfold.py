"""A convolution as multi-batch im2col and GEMM, cut into chunks under a memory cap: shapes and cost."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from itertools import product

from convopt.schedules.base import TensorView
from convopt.schedules.conv_direct import CLOCK
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


def _most(problem: ConvProblem, expand_col: int, cap: int) -> tuple[int, int]:
    """(images, rows of each) that a chunk has, but for the last ones."""
    _, n, d, h, w, _ = problem.y.shape
    row_bytes = problem.groups * d * w * problem.taps * problem.channels * 4
    rows = max(1, min(h, cap // max(row_bytes, 1)))
    return max(1, min(expand_col, n, cap // max(row_bytes * h, 1))) if rows == h else 1, rows


def chunks(problem: ConvProblem, expand_col: int, cap: int) -> list[Chunk]:
    """Pieces of at most `expand_col` images whose matrix takes at most `cap` bytes (or has one row)."""
    _, n, _, h, _, _ = problem.y.shape
    images, rows = _most(problem, expand_col, cap)
    return [
        Chunk(image, min(images, n - image), row, min(rows, h - row))
        for image in range(0, n, images)
        for row in range(0, h, rows)
    ]


@lru_cache(maxsize=4096)
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


def image_counts(problem: ConvProblem) -> list[int]:
    """How many images a matrix may hold: powers of two, and all of them."""
    n = problem.y.shape[1]
    return sorted({min(n, 1 << i) for i in range(n.bit_length() + 1)})


def least_unfolding_seconds(problem: ConvProblem, target: Target, threads: int, cap: int) -> float:
    """What `best_unfolding` takes at least: the cheapest im2col, products at two multiply-adds a cycle."""
    products = problem.flops / 2 / (2 * target.lanes) / CLOCK * (1 - 1e-9)
    return products + min(_im2col_seconds(problem, target, threads, c, cap) for c in image_counts(problem))


@lru_cache(maxsize=4096)
def best_unfolding(problem: ConvProblem, target: Target, threads: int, cap: int) -> Unfolding:
    """The cheapest number of images per matrix.

    Raises:
        ValueError: no schedule takes the GEMM; the text says why.
    """
    unfoldings = [Unfolding(c, _seconds(problem, target, threads, c, cap)) for c in image_counts(problem)]
    return min(unfoldings, key=lambda u: (u.seconds, u.expand_col))


def _pieces(extent: int, most: int) -> list[tuple[int, int]]:
    """(length, how many): the extent in pieces of `most`, the last one shorter."""
    whole, rest = divmod(extent, most)
    return [(length, count) for length, count in ((most, whole), (rest, 1)) if length and count]


def _seconds(problem: ConvProblem, target: Target, threads: int, expand_col: int, cap: int) -> float:
    total = 0.0
    for (unfold, gemm), count in _kernels(problem, expand_col, cap).items():
        total += count * unfolding_seconds(unfold, target, threads)
        total += count * conv_seconds(choose_conv(gemm, target, threads), gemm, target, threads)
    return total


def _im2col_seconds(problem: ConvProblem, target: Target, threads: int, expand_col: int, cap: int) -> float:
    kernels = _kernels(problem, expand_col, cap).items()
    return sum(count * unfolding_seconds(unfold, target, threads) for (unfold, _), count in kernels)


def unfolding_seconds(unfold: Im2colProblem, target: Target, threads: int) -> float:
    """Of a matrix, spread over the threads as `conv_seconds`."""
    schedule = Im2col()
    return schedule.cost(unfold, target).seconds * imbalance(schedule.tasks(unfold, target), threads)


def _kernels(problem: ConvProblem, expand_col: int, cap: int) -> Counter[tuple[Im2colProblem, ConvProblem]]:
    """The chunks' two kernels, and how often each pair occurs."""
    _, n, _, h, _, _ = problem.y.shape
    images, rows = _most(problem, expand_col, cap)
    # Of each kind one, and how many there are: of an input beyond memory there are more than can be listed.
    return Counter(
        {
            split(problem, Chunk(0, i, 0, r)): many * often
            for (i, many), (r, often) in product(_pieces(n, images), _pieces(h, rows))
        }
    )
