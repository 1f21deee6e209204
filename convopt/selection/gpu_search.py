"""The search over the implicit GEMM's configurations on a GPU, by the cost model.

Tile forms x parts of the reduction are thousands. A lower bound that costs little is computed of all; the
estimate, of those only that it leaves in the race, and of the cheapest of these with every order of blocks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from convopt.schedules.conv_problem import ConvProblem
from convopt.schedules.gpu_gemm_limits import DTYPES
from convopt.schedules.gpu_implicit_gemm import ImplicitGemm
from convopt.schedules.primitives.vector_width import ITEMSIZE
from convopt.selection.gpu_forms import Column, forms
from convopt.selection.model import (
    GpuEstimate,
    at_least,
    depth_tiles,
    estimate_at,
    price,
    tile_count,
    unit_for,
)
from convopt.targets import GpuTarget

SPLITS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16)
LEAST_TILES = 4  # of the reduction in a part: below, the prologue outweighs the loop
MOST_ROUNDS = 3  # of resident blocks over the chip, beyond which nothing is split
FIRST_SWIZZLE = (4, 4)
SWIZZLES = ((1, 1), (1, 4), (1, 8), (2, 4), (4, 4), (4, 8), (8, 8), (4, 1), (8, 1))
FINALISTS = 24
LIKELY = 4  # times as many are priced first, by their bounds


@dataclass(frozen=True)
class GpuChoice:
    """A configuration with its estimate."""

    config: ImplicitGemm
    estimate: GpuEstimate


def ranked(problem: ConvProblem, target: GpuTarget, unit: str, split_k: bool = True) -> Iterator[GpuChoice]:
    """Configurations with their estimates, the cheapest first; those that refuse the problem are left out.

    All forms and splits are compared with one order of blocks, the best of them with every order.
    """
    return _in_order(problem, target, unit, split_k, FINALISTS, every_order=True)


def tiles(problem: ConvProblem, target: GpuTarget, count: int) -> Iterator[GpuChoice]:
    """Of the `count` cheapest forms and splits the best order of blocks each, padded, the cheapest first."""
    if _unpriced(problem) is None:
        unit = unit_for(problem, target)
        for choice in _in_order(problem, target, unit, True, count, every_order=False):
            yield padded(choice, problem, target)


def _in_order(
    problem: ConvProblem, target: GpuTarget, unit: str, split_k: bool, count: int, every_order: bool
) -> Iterator[GpuChoice]:
    """`ranked`, of `count` forms and splits. every_order: with every order of blocks, else with the best."""
    base, splits = forms(target, unit, ITEMSIZE[problem.x.dtype]), np.array(SPLITS, np.float64)
    first = _cheapest_rows(problem, target, unit, split_k, count)
    rows, order = np.repeat(first, len(SWIZZLES)), np.tile(np.array(SWIZZLES), (len(first), 1))
    form, split = rows // len(SPLITS), splits[rows % len(SPLITS)]
    parts = price(problem, target, base.take(form), split, order)
    taken: dict[int, ImplicitGemm | None] = {}
    for at in np.argsort(parts["seconds"], kind="stable"):
        row = int(rows[at])
        if row in taken and not every_order:
            continue
        if row not in taken:  # the order of blocks is never a reason to refuse
            taken[row] = _taken(base.config(form[at], split_k=int(split[at])), problem, target)
        if (config := taken[row]) is not None:
            swizzle = (int(order[at][0]), int(order[at][1]))
            yield GpuChoice(replace(config, swizzle=swizzle), estimate_at(parts, int(at)))


def _cheapest_rows(problem: ConvProblem, target: GpuTarget, unit: str, split_k: bool, count: int) -> Column:
    """The `count` cheapest of forms x SPLITS with one order of blocks, as places in that table."""
    base, splits = forms(target, unit, ITEMSIZE[problem.x.dtype]), np.array(SPLITS, np.float64)
    tall = base.take(np.s_[:, None])
    blocks, depth = tile_count(problem, tall), depth_tiles(problem, tall)
    # Parts of the reduction are for products with too few tiles to fill the chip.
    few = blocks * (splits - 1) < MOST_ROUNDS * target.compute_units * tall.resident
    sensible = (splits == 1) | (split_k & few & (depth >= LEAST_TILES * splits))
    bound = np.where(sensible, at_least(problem, target, tall, splits), np.inf).reshape(-1)
    seconds = np.full(len(bound), np.inf)

    def fill(rows: Column) -> None:
        order = np.broadcast_to(np.array(FIRST_SWIZZLE), (len(rows), 2))
        split = splits[rows % len(SPLITS)]
        seconds[rows] = price(problem, target, base.take(rows // len(SPLITS)), split, order)["seconds"]

    possible = np.flatnonzero(sensible)
    if len(possible) > LIKELY * count:
        fill(np.argpartition(bound, LIKELY * count)[: LIKELY * count])
        # No other is among the cheapest whose bound is above the last of them.
        last = np.partition(seconds, count - 1)[count - 1]
        possible = possible[(bound[possible] <= last) & (seconds[possible] == np.inf)]
    if len(possible):
        fill(possible)
    found = np.flatnonzero(seconds < np.inf)
    return found[np.argsort(seconds[found], kind="stable")[:count]]


def _taken(config: ImplicitGemm, problem: ConvProblem, target: GpuTarget) -> ImplicitGemm | None:
    """With asynchronous copies where the chip has them, without where they refuse (less than 4 bytes), or
    None.
    """
    for copies in (True, False) if target.async_copy else (False,):
        candidate = replace(config, async_copy=copies)
        if candidate.why_not(problem, target) is None:
            return candidate
    return None


def padded(choice: GpuChoice, problem: ConvProblem, target: GpuTarget) -> GpuChoice:
    """Against bank conflicts, where that still fits."""
    padded = choice.config.padded(problem, target)
    return replace(choice, config=padded) if padded.why_not(problem, target) is None else choice


def _unpriced(problem: ConvProblem) -> str | None:
    """Why no form of the implicit GEMM computes it, on any chip."""
    if {problem.x.dtype, problem.y.dtype} - set(DTYPES):
        return f"{problem.x.dtype} to {problem.y.dtype}"
    if not problem.taps * problem.channels:  # a phase of a transposed convolution that no tap reaches
        return "there is nothing to multiply"
    return None


def choose(problem: ConvProblem, target: GpuTarget) -> GpuChoice:
    """The cheapest configuration, padded against bank conflicts.

    Raises:
        ValueError: the implicit GEMM takes no form of this problem on this chip.
    """
    return padded(cheapest(problem, target), problem, target)


@lru_cache(maxsize=4096)
def cheapest(problem: ConvProblem, target: GpuTarget) -> GpuChoice:
    """`choose` before the pads, which the estimate does not depend on. Raises ValueError likewise."""
    if (refusal := _unpriced(problem)) is not None:
        raise ValueError(refusal)
    best = next(ranked(problem, target, unit_for(problem, target)), None)
    if best is None:
        raise ValueError(f"no form of the implicit GEMM takes this convolution on {target.name}")
    return best
