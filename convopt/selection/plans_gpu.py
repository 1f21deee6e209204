"""The plans of a convolution on a GPU: the cheapest, all there are, their prices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

from convopt.schedules.conv_problem import ConvProblem
from convopt.schedules.gpu_conv_direct import GpuDirectConv
from convopt.schedules.gpu_implicit_gemm import ImplicitGemm
from convopt.schedules.primitives.vector_width import ITEMSIZE, MOST_BYTES, access_width
from convopt.selection import gpu_search
from convopt.selection.choose_gpu import (
    GPU_CONV_FAMILIES,
    GPU_GEMM_FAMILIES,
    choose_gpu_conv,
    choose_im2col,
    gpu_seconds,
    gpu_split,
    least_gpu_seconds,
    priced_gpu_conv,
)
from convopt.selection.conv_plan import Algorithm, ConvPlan
from convopt.selection.unfold import chunks, image_counts
from convopt.targets import GpuTarget

TILES = 128  # of the implicit GEMM, the model's best, that are plans
PRODUCT_TILES = 32  # of each number of images that a matrix may hold
GemmSeconds = Callable[[ConvProblem, GpuTarget, tuple[type[Any], ...]], float]


def choose(problem: ConvProblem, target: GpuTarget, algorithm: Algorithm, cap: int) -> ConvPlan:
    """The cheapest plan by estimate, of the algorithm asked for. cap: bytes of an unfolded matrix.

    Raises:
        ValueError: no schedule takes the problem; the text says why.
    """
    if problem.taps > 1 and (
        algorithm == "im2col" or (algorithm == "auto" and _is_unfolding_cheaper(problem, target, cap))
    ):
        images = problem.y.shape[1]  # as many as the cap allows: a GPU wants large products
        return ConvPlan(
            choose_gpu_conv(whole_product(problem, images, cap), target, GPU_GEMM_FAMILIES), images
        )
    families = (GpuDirectConv,) if algorithm == "direct" else GPU_CONV_FAMILIES
    return ConvPlan(choose_gpu_conv(problem, target, families))


def _is_unfolding_cheaper(problem: ConvProblem, target: GpuTarget, cap: int) -> bool:
    """By estimate; asked only where the implicit GEMM loads element by element what im2col puts in a row."""
    if problem.x.dtype in ITEMSIZE and access_width(problem.x, 5) * ITEMSIZE[problem.x.dtype] == MOST_BYTES:
        return False
    try:
        whole = priced_gpu_conv(problem, target)[0]
        # Most often im2col and the least that a GEMM takes say it already.
        if unfolded_seconds(problem, target, cap, least_gpu_seconds) >= whole:
            return False
        return unfolded_seconds(problem, target, cap) < whole
    except ValueError:  # one of the two can't compute it
        return False


def _priced_seconds(problem: ConvProblem, target: GpuTarget, families: tuple[type[Any], ...]) -> float:
    return priced_gpu_conv(problem, target, families)[0]


def unfolded_seconds(
    problem: ConvProblem, target: GpuTarget, cap: int, gemm_seconds: GemmSeconds = _priced_seconds
) -> float:
    """Of im2col and GEMM, by estimate. ValueError where one of the two takes no form of it."""
    seconds = 0.0
    pieces = chunks(problem, problem.y.shape[1], cap)
    for kernels, count in Counter(gpu_split(problem, chunk) for chunk in pieces).items():
        unfold, gemm = kernels
        one = choose_im2col(unfold, target).cost(unfold, target).seconds
        seconds += count * (one + gemm_seconds(gemm, target, GPU_GEMM_FAMILIES))
    return seconds


def whole_product(problem: ConvProblem, expand_col: int, cap: int) -> ConvProblem:
    """The product of the first, largest matrix."""
    return gpu_split(problem, chunks(problem, expand_col, cap)[0])[1]


def why_not(plan: ConvPlan, problem: ConvProblem, target: GpuTarget, cap: int) -> str | None:
    """Why the plan can't compute the problem, None if it can."""
    families = GPU_GEMM_FAMILIES if plan.expand_col else GPU_CONV_FAMILIES
    if not isinstance(plan.schedule, families):
        return f"{plan.schedule.name} is none of {', '.join(family.name for family in families)}"
    reason: str | None
    if not plan.expand_col:
        reason = plan.schedule.why_not(problem, target)
        return reason
    if problem.taps == 1:
        return "nothing to unfold"
    unfold, product = gpu_split(problem, chunks(problem, plan.expand_col, cap)[0])
    try:
        choose_im2col(unfold, target)
    except ValueError as error:
        return str(error)
    reason = plan.schedule.why_not(product, target)
    return reason


def seconds(plan: ConvPlan, problem: ConvProblem, target: GpuTarget, cap: int) -> float:
    """Predicted seconds; of im2col, as if all matrices were whole."""
    if not plan.expand_col:
        return gpu_seconds(plan.schedule, problem, target)
    pieces = chunks(problem, plan.expand_col, cap)
    unfold, product = gpu_split(problem, pieces[0])
    unfolding = choose_im2col(unfold, target).cost(unfold, target).seconds
    return float(len(pieces) * (unfolding + gpu_seconds(plan.schedule, product, target)))


@lru_cache(maxsize=256)
def ranked(problem: ConvProblem, target: GpuTarget, cap: int) -> tuple[tuple[ConvPlan, float], ...]:
    """All plans with their predicted seconds, the cheapest first; kept, as a tuner asks at every visit."""
    priced = [(plan, seconds(plan, problem, target, cap)) for plan in _plans(problem, target, cap)]
    return tuple(sorted(priced, key=lambda pair: pair[1]))


def _plans(problem: ConvProblem, target: GpuTarget, cap: int) -> Iterator[ConvPlan]:
    """Those that none refuses, of all algorithms: the families' spaces, and the GEMM's cheapest tiles."""
    yield from (ConvPlan(schedule) for schedule in _schedules(problem, target, GPU_CONV_FAMILIES, TILES))
    if problem.taps == 1:
        return
    seen: set[ConvProblem] = set()
    for expand_col in image_counts(problem):
        product = whole_product(problem, expand_col, cap)
        if product in seen:  # the cap allows no more images
            continue
        seen.add(product)
        for schedule in _schedules(product, target, GPU_GEMM_FAMILIES, PRODUCT_TILES):
            plan = ConvPlan(schedule, expand_col)
            if why_not(plan, problem, target, cap) is None:
                yield plan


def _schedules(
    problem: ConvProblem, target: GpuTarget, families: tuple[type[Any], ...], count: int
) -> Iterator[Any]:
    for family in families:
        if family is ImplicitGemm:
            yield from (choice.config for choice in gpu_search.tiles(problem, target, count))
        else:
            yield from (s for s in family.space(problem, target) if s.why_not(problem, target) is None)
