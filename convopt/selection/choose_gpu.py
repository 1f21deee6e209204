"""Picks a convolution's schedule on a GPU: the cheapest by its own estimate among those that don't refuse."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from convopt.schedules.conv_problem import ConvProblem
from convopt.schedules.gpu_conv_direct import GpuDirectConv
from convopt.targets import GpuTarget

GPU_CONV_FAMILIES: tuple[type[Any], ...] = (GpuDirectConv,)


@lru_cache(maxsize=4096)
def choose_gpu_conv(
    problem: ConvProblem, target: GpuTarget, families: tuple[type[Any], ...] = GPU_CONV_FAMILIES
) -> Any:
    """Raises ValueError where every family refuses; the text has each one's reason."""
    best, best_seconds, refusals = None, float("inf"), []
    for family in families:
        for schedule in family.space(problem, target):
            reason = schedule.why_not(problem, target)
            if reason is not None:
                refusals.append(f"{family.name}: {reason}")
                continue
            seconds = schedule.cost(problem, target).seconds
            if seconds < best_seconds:
                best, best_seconds = schedule, seconds
    if best is None:
        raise ValueError("; ".join(sorted(set(refusals))))
    return best
