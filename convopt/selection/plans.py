"""How one convolution is computed: the decision, its alternatives, and its form as JSON.

A plan is a schedule of the convolution itself, or im2col and a schedule of the products. The untuned decision
is the cheapest plan by estimate; a measured record, where there is one, comes before it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, Protocol

from convopt.schedules.conv_problem import ConvProblem
from convopt.schedules.im2col import Im2col
from convopt.selection.choose import (
    CONV_FAMILIES,
    EXACT_FAMILIES,
    choose_conv,
    conv_seconds,
    imbalance,
    refusal,
)
from convopt.selection.unfold import best_unfolding, chunks, image_counts, split
from convopt.targets import Target

Algorithm = Literal["auto", "direct", "im2col"]
FAMILIES: dict[str, type[Any]] = {family.name: family for family in CONV_FAMILIES}


@dataclass(frozen=True)
class ConvPlan:
    """expand_col: images per unfolded matrix, whose products `schedule` computes; 0: no im2col."""

    schedule: Any
    expand_col: int = 0

    @property
    def text(self) -> str:
        """For people: `direct pixels=6 vectors=2`, `im2col of 4 images, direct pixels=6 vectors=2`."""
        config = " ".join(f"{name}={value}" for name, value in asdict(self.schedule).items())
        unfolded = f"im2col of {self.expand_col} images, " if self.expand_col else ""
        return f"{unfolded}{self.schedule.name} {config}"


class Records(Protocol):
    """Measured decisions."""

    def find(self, problem: ConvProblem, target: Target, threads: int) -> ConvPlan | None: ...


def choose_plan(
    problem: ConvProblem, target: Target, threads: int, algorithm: Algorithm = "auto", cap: int = 64 << 20
) -> ConvPlan:
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
        unfolded = best_unfolding(problem, target, threads, cap)
        if unfolded.seconds < conv_seconds(schedule, problem, target, threads):
            return _unfolded(problem, target, threads, cap)
    return ConvPlan(schedule)


def _unfolded(problem: ConvProblem, target: Target, threads: int, cap: int) -> ConvPlan:
    expand_col = best_unfolding(problem, target, threads, cap).expand_col
    return ConvPlan(choose_conv(whole_product(problem, expand_col, cap), target, threads), expand_col)


def whole_product(problem: ConvProblem, expand_col: int, cap: int) -> ConvProblem:
    """The product of the first, largest matrix."""
    return split(problem, chunks(problem, expand_col, cap)[0])[1]


def decide(
    problem: ConvProblem,
    target: Target,
    threads: int,
    algorithm: Algorithm,
    cap: int,
    records: Records | None,
) -> ConvPlan:
    """The measured plan where there is one that fits, else the cheapest by estimate.

    Raises:
        ValueError: no schedule takes the problem; the text says why.
    """
    if records is not None and algorithm == "auto":
        found = records.find(problem, target, threads)
        if found is not None and why_not(found, problem, target, cap) is None:
            return found
    return choose_plan(problem, target, threads, algorithm, cap)


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


def plan_seconds(plan: ConvPlan, problem: ConvProblem, target: Target, threads: int, cap: int) -> float:
    """Predicted seconds; of im2col, as if all matrices were whole."""
    if not plan.expand_col:
        return conv_seconds(plan.schedule, problem, target, threads)
    pieces = chunks(problem, plan.expand_col, cap)
    unfold, product = split(problem, pieces[0])
    im2col = Im2col()
    unfolding = im2col.cost(unfold, target).seconds * imbalance(im2col.tasks(unfold, target), threads)
    return len(pieces) * (unfolding + conv_seconds(plan.schedule, product, target, threads))


def plans(problem: ConvProblem, target: Target, cap: int) -> Iterator[ConvPlan]:
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


def ranked(
    problem: ConvProblem, target: Target, threads: int, cap: int = 64 << 20
) -> list[tuple[ConvPlan, float]]:
    """All plans with their predicted seconds, the cheapest first."""
    found = [
        (plan, plan_seconds(plan, problem, target, threads, cap)) for plan in plans(problem, target, cap)
    ]
    return sorted(found, key=lambda pair: pair[1])


def to_json(plan: ConvPlan) -> dict[str, Any]:
    """Plain values, for stores and reports; `from_json` reads them."""
    return {
        "family": plan.schedule.name,
        "config": asdict(plan.schedule),
        "expand_col": plan.expand_col,
    }


def from_json(data: Any) -> ConvPlan:
    """The plan of `to_json`. ValueError, with what is wrong, for anything else."""
    try:
        family = FAMILIES[data["family"]]
        config, expand_col = data["config"], data["expand_col"]
        wanted = {field.name for field in fields(family)}
        if config.keys() != wanted:
            raise ValueError(f"{family.name} has {sorted(wanted)}, not {sorted(config)}")
        values = {name: tuple(v) if isinstance(v, list) else v for name, v in config.items()}
        if not isinstance(expand_col, int) or expand_col < 0:
            raise ValueError(f"expand_col is {expand_col!r}")
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"no plan: {error!r}") from error
    return ConvPlan(family(**values), expand_col)
