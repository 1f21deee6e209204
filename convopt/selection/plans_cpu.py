"""The plans of a convolution on a CPU: the cheapest, all there are, their prices."""

from __future__ import annotations

from collections.abc import Iterator

from convopt.schedules.conv_problem import ConvProblem
from convopt.selection.choose import (
    CONV_FAMILIES,
    EXACT_FAMILIES,
    choose_conv,
    conv_seconds,
    refusal,
)
from convopt.selection.conv_plan import Algorithm, ConvPlan
from convopt.selection.unfold import (
    best_unfolding,
    chunks,
    image_counts,
    least_unfolding_seconds,
    split,
    unfolding_seconds,
)
from convopt.targets import Target


def choose(problem: ConvProblem, target: Target, threads: int, algorithm: Algorithm, cap: int) -> ConvPlan:
    """The cheapest plan by estimate, of the algorithm asked for. cap: bytes of an unfolded matrix.

    Raises:
        ValueError: no schedule takes the problem; the text says why.
    """
    unfoldable = problem.taps > 1  # without taps im2col + GEMM is the conv itself
    if algorithm == "im2col" and unfoldable:
        return _unfolded(problem, target, threads, cap)
    families = CONV_FAMILIES if algorithm == "auto" else EXACT_FAMILIES
    schedule = choose_conv(problem, target, threads, families)
    # Each other family beats any unfolded matrix where it is the cheapest.
    if algorithm == "auto" and unfoldable and schedule.name == "direct":
        seconds = conv_seconds(schedule, problem, target, threads)
        if (
            least_unfolding_seconds(problem, target, threads, cap) < seconds
            and best_unfolding(problem, target, threads, cap).seconds < seconds
        ):
            return _unfolded(problem, target, threads, cap)
    return ConvPlan(schedule)


def _unfolded(problem: ConvProblem, target: Target, threads: int, cap: int) -> ConvPlan:
    expand_col = best_unfolding(problem, target, threads, cap).expand_col
    return ConvPlan(choose_conv(whole_product(problem, expand_col, cap), target, threads), expand_col)


def whole_product(problem: ConvProblem, expand_col: int, cap: int) -> ConvProblem:
    """The product of the first, largest matrix."""
    return split(problem, chunks(problem, expand_col, cap)[0])[1]


def why_not(plan: ConvPlan, problem: ConvProblem, target: Target, cap: int) -> str | None:
    """Why the plan can't compute the problem, None if it can."""
    if not plan.expand_col:
        return refusal(plan.schedule, problem, target)
    if problem.taps == 1:
        return "nothing to unfold"
    if not problem.bordered:
        return "the input has no border of zeros"
    product = whole_product(problem, plan.expand_col, cap)
    return refusal(plan.schedule, product, target)


def seconds(plan: ConvPlan, problem: ConvProblem, target: Target, threads: int, cap: int) -> float:
    """Predicted seconds; of im2col, as if all matrices were whole."""
    if not plan.expand_col:
        return conv_seconds(plan.schedule, problem, target, threads)
    pieces = chunks(problem, plan.expand_col, cap)
    unfold, product = split(problem, pieces[0])
    unfolding = unfolding_seconds(unfold, target, threads)
    return len(pieces) * (unfolding + conv_seconds(plan.schedule, product, target, threads))


def _plans(problem: ConvProblem, target: Target, cap: int) -> Iterator[ConvPlan]:
    """Every plan of the schedules' own spaces that none refuses, of all algorithms."""
    for family in CONV_FAMILIES:
        for schedule in family.space(problem, target):
            if refusal(schedule, problem, target) is None:
                yield ConvPlan(schedule)
    if problem.taps == 1 or not problem.bordered:
        return
    for expand_col in image_counts(problem):
        product = whole_product(problem, expand_col, cap)
        for family in EXACT_FAMILIES:
            for schedule in family.space(product, target):
                if schedule.why_not(product, target) is None:
                    yield ConvPlan(schedule, expand_col)


def ranked(problem: ConvProblem, target: Target, threads: int, cap: int) -> list[tuple[ConvPlan, float]]:
    """All plans with their predicted seconds, the cheapest first."""
    priced = [(plan, seconds(plan, problem, target, threads, cap)) for plan in _plans(problem, target, cap)]
    return sorted(priced, key=lambda pair: pair[1])
