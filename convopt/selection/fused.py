"""Whether convolutions next to each other become one kernel, and which: by cost."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from convopt.schedules.fused_conv import FusedConv, FusedConvProblem
from convopt.selection.choose import choose_conv, conv_seconds, imbalance
from convopt.targets import CpuTarget

LEAST_GAIN = 1.05  # by estimate: below it the estimates' error decides


@dataclass(frozen=True)
class FusedChoice:
    """The cheapest schedule; seconds of it on all threads together, and of the stages one after the other."""

    schedule: FusedConv
    seconds: float
    separate: float

    @property
    def pays(self) -> bool:
        return self.seconds * LEAST_GAIN <= self.separate


@lru_cache(maxsize=4096)
def choose_fused(problem: FusedConvProblem, target: CpuTarget, threads: int) -> FusedChoice:
    """ValueError: no schedule takes the problem; the text says why."""
    best, best_seconds, refusals = None, float("inf"), []
    for schedule in FusedConv.space(problem, target):
        if (reason := schedule.why_not(problem, target)) is not None:
            refusals.append(reason)
            continue
        tasks = imbalance(schedule.tasks(problem, target), threads)
        seconds = schedule.cost(problem, target).seconds * tasks
        if seconds < best_seconds:
            best, best_seconds = schedule, seconds
    if best is None:
        raise ValueError("; ".join(sorted(set(refusals))))
    stages = ((choose_conv(stage, target, threads), stage) for stage in problem.stages)
    separate = sum(conv_seconds(schedule, stage, target, threads) for schedule, stage in stages)
    return FusedChoice(best, best_seconds, separate)
