"""Picks the schedule of a kernel: the cheapest by its own estimate among those that don't refuse."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from itertools import groupby
from typing import Any

from convopt.schedules.conv_amx import AmxConv
from convopt.schedules.conv_depthwise import DepthwiseConv
from convopt.schedules.conv_direct import DirectConv
from convopt.schedules.conv_few_features import FewFeaturesConv
from convopt.schedules.conv_grouped import GroupedConv
from convopt.schedules.conv_pairs import PairConv
from convopt.schedules.conv_problem import ConvProblem
from convopt.schedules.conv_shifted import ShiftedConv
from convopt.schedules.conv_winograd import WinogradConv
from convopt.targets import Target

EXACT_FAMILIES = (
    DepthwiseConv,
    GroupedConv,
    FewFeaturesConv,
    ShiftedConv,
    DirectConv,
    AmxConv,
    PairConv,
)  # they sum the products themselves
CONV_FAMILIES = (*EXACT_FAMILIES, WinogradConv)
BORDERLESS_FAMILIES = (DepthwiseConv, GroupedConv, ShiftedConv, WinogradConv)  # need no border of zeros


def imbalance(tasks: int, threads: int) -> float:
    """Time on `threads` threads that take equal numbers of tasks, against perfect division."""
    return -(-tasks // threads) * threads / tasks


def conv_seconds(schedule: Any, problem: ConvProblem, target: Target, threads: int) -> float:
    """The schedule's estimate, spread over the threads as evenly as its tasks allow."""
    return float(schedule.cost(problem, target).seconds) * imbalance(schedule.tasks(problem, target), threads)


def refusal(schedule: Any, problem: ConvProblem, target: Target) -> str | None:
    """Why the schedule can't compute the problem, None if it can."""
    if not problem.bordered and not isinstance(schedule, BORDERLESS_FAMILIES):
        return "the input has no border of zeros"
    reason: str | None = schedule.why_not(problem, target)
    return reason


@lru_cache(maxsize=4096)
def choose_conv(
    problem: ConvProblem, target: Target, threads: int, families: tuple[type[Any], ...] = CONV_FAMILIES
) -> Any:
    """The cheapest schedule of these families.

    DirectConv takes every problem whose output channels are contiguous.

    Raises:
        ValueError: no family takes the problem; the text has each one's reason.
    """
    best, best_seconds, refusals = None, float("inf"), []
    for family in families:
        for least, schedules in _sorted_space(family, problem, target):
            if least >= best_seconds:
                break
            for schedule in schedules:
                reason = refusal(schedule, problem, target)
                if reason is not None:
                    refusals.append(f"{family.name}: {reason}")
                    continue
                seconds = conv_seconds(schedule, problem, target, threads)
                if seconds < best_seconds:
                    best, best_seconds = schedule, seconds
    if best is None:
        raise ValueError("; ".join(sorted(set(refusals))))
    return best


def _sorted_space(
    family: type[Any], problem: ConvProblem, target: Target
) -> list[tuple[float, Iterable[Any]]]:
    """The family's space in parts, each with what its schedules cost at least, the cheapest first.

    The direct convolution's, by far the largest, is cut: what many configurations share rules most of it out.
    """
    space = family.space(problem, target)
    if family is not DirectConv:
        return [(0.0, space)]
    parts = [list(part) for _, part in groupby(space, key=DirectConv.shared)]
    return sorted(
        ((part[0].least_seconds(problem, target), part) for part in parts), key=lambda pair: pair[0]
    )
