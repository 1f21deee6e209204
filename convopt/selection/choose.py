"""Picks the schedule of a kernel: the cheapest by its own estimate among those that don't refuse."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from itertools import islice
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
CUT_FAMILIES = (DirectConv, WinogradConv)  # the largest spaces, of parts with a bound each
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
    for least, schedules in _parts(families, problem, target):
        if least >= best_seconds:
            break
        for schedule in schedules:
            reason = refusal(schedule, problem, target)
            if reason is not None:
                refusals.append(f"{schedule.name}: {reason}")
                continue
            seconds = conv_seconds(schedule, problem, target, threads)
            if seconds < best_seconds:
                best, best_seconds = schedule, seconds
    if best is None:
        raise ValueError("; ".join(sorted(set(refusals))))
    return best


def _parts(
    families: tuple[type[Any], ...], problem: ConvProblem, target: Target
) -> list[tuple[float, Iterable[Any]]]:
    """The families' spaces in parts, each with what its schedules cost at least, the lowest bound first.

    What many configurations share rules most of them out; one tells why a problem is refused by all.
    """
    parts: list[tuple[float, Iterable[Any]]] = []
    for family in families:
        if family not in CUT_FAMILIES:
            parts.append((0.0, family.space(problem, target)))
        elif family is WinogradConv and WinogradConv.why_none(problem, target) is not None:
            parts.append((0.0, islice(family.space(problem, target), 1)))
        else:
            found = family.parts(problem, target)
            parts += [
                (family.least_seconds(p, problem, target), family.cuts(p, problem, target)) for p in found
            ]
    return sorted(parts, key=lambda pair: pair[0])
