"""Picks the schedule of a kernel: the cheapest by its own estimate among those that don't refuse."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from convopt.schedules.conv_amx import AmxConv
from convopt.schedules.conv_depthwise import DepthwiseConv
from convopt.schedules.conv_direct import DirectConv
from convopt.schedules.conv_few_features import FewFeaturesConv
from convopt.schedules.conv_pairs import PairConv
from convopt.schedules.conv_problem import ConvProblem
from convopt.schedules.conv_winograd import WinogradConv
from convopt.targets import Target

EXACT_FAMILIES = (
    DepthwiseConv,
    FewFeaturesConv,
    DirectConv,
    AmxConv,
    PairConv,
)  # they sum the products themselves
CONV_FAMILIES = (*EXACT_FAMILIES, WinogradConv)


def imbalance(tasks: int, threads: int) -> float:
    """Time on `threads` threads that take equal numbers of tasks, against perfect division."""
    return -(-tasks // threads) * threads / tasks


def conv_seconds(schedule: Any, problem: ConvProblem, target: Target, threads: int) -> float:
    """The schedule's estimate, spread over the threads as evenly as its tasks allow."""
    return float(schedule.cost(problem, target).seconds) * imbalance(schedule.tasks(problem, target), threads)


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
        schedules = list(family.space(problem, target))
        if family is DirectConv:  # the largest space by far: what many of it share rules most of it out
            schedules.sort(key=lambda one: one.least_seconds(problem, target))
        for schedule in schedules:
            if family is DirectConv and schedule.least_seconds(problem, target) >= best_seconds:
                break
            reason = schedule.why_not(problem, target)
            if reason is not None:
                refusals.append(f"{family.name}: {reason}")
                continue
            seconds = conv_seconds(schedule, problem, target, threads)
            if seconds < best_seconds:
                best, best_seconds = schedule, seconds
    if best is None:
        raise ValueError("; ".join(sorted(set(refusals))))
    return best
