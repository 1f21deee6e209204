"""The configurations of the tiled GPU kernels: tiles, and the ways to pipeline, split and order them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING, Any

from convopt.schedules.conv_problem import ConvProblem
from convopt.schedules.primitives.vector_width import ITEMSIZE

if TYPE_CHECKING:
    from convopt.targets import GpuTarget

# (block_m, block_n) and the part of a thread: from what reuses most to what fills a machine with little.
SIMT_TILES = (
    (128, 128, 8, 8), (128, 64, 8, 4), (64, 128, 4, 8), (64, 64, 4, 4), (128, 32, 4, 4), (64, 32, 4, 2),
    (32, 64, 2, 4), (32, 32, 2, 2), (128, 16, 4, 2), (64, 16, 2, 2),
)  # fmt: skip
# (block_m, block_n) and the part of a wave.
MATRIX_TILES = (
    (128, 128, 64, 32), (128, 128, 64, 64), (256, 64, 64, 32), (128, 64, 32, 32), (128, 64, 64, 32),
    (64, 128, 32, 32), (64, 128, 32, 64), (64, 64, 32, 32), (128, 32, 32, 32), (64, 32, 32, 16),
    (32, 64, 16, 32), (128, 16, 32, 16), (64, 16, 16, 16),
)  # fmt: skip
DEPTHS = {4: (8, 16, 32), 2: (16, 32, 64)}  # block_k by the bytes of an element
SWIZZLES = ((1, 1), (4, 2), (8, 4))
SPLITS = (1, 2, 4, 8)

Shape = tuple[int, int, int, int, int]


def shapes(unit: str, problem: ConvProblem) -> Iterator[Shape]:
    """(block_m, block_n, block_k, part_m, part_n), not mostly beyond the output or the reduction."""
    widest = max(32, 1 << (problem.features - 1).bit_length())
    longest = max(128, 1 << (problem.pixels - 1).bit_length())
    depth = max(32, 1 << (problem.taps * problem.channels - 1).bit_length())
    for block_m, block_n, part_m, part_n in SIMT_TILES if unit == "simt" else MATRIX_TILES:
        if block_n <= widest and block_m <= longest:
            for block_k in DEPTHS[ITEMSIZE[problem.x.dtype]]:
                if block_k <= depth:
                    yield (block_m, block_n, block_k, part_m, part_n)


def forms(padded: Any, problem: ConvProblem, target: GpuTarget, level: str) -> Iterator[Any]:
    """Every way to pipeline, split and swizzle a padded tile that does not refuse the problem.

    level "all": each with one primitive more switched off.
    """
    pipelines = [(1, False), (2, False), (3, False)]
    if target.async_copy:
        pipelines += [(2, True), (3, True), (4, True)]
    for (stages, copies), split in product(pipelines, SPLITS):
        for atomic in (False, True) if split > 1 else (False,):
            form = replace(padded, stages=stages, async_copy=copies, split_k=split, atomic=atomic)
            if form.why_not(problem, target) is not None:
                continue
            # The order of blocks is never a reason to refuse.
            yield from (replace(form, swizzle=swizzle) for swizzle in SWIZZLES)
            if level == "all":
                yield replace(form, swizzle=(3, 2))
                changed = (
                    replace(form, epilogue="direct"),
                    replace(form, pad=(0, 0, 0), down=(1, 1)),
                    replace(form, vector=1),
                )
                yield from (f for f in changed if f != form and f.why_not(problem, target) is None)
