"""The decision how a convolution is computed, and its alternatives, for every kind of target.

The untuned decision is the cheapest plan by estimate; a measured record, where there is one, comes before it.
`plans_cpu` and `plans_gpu` hold what differs; their callers ask here and need not know the target's kind.

threads: of a CPU's module; GPUs don't look at it. cap: bytes that an unfolded matrix may take.
"""

from __future__ import annotations

from typing import Protocol

from convopt.schedules.conv_problem import ConvProblem
from convopt.selection import plans_cpu, plans_gpu
from convopt.selection.conv_plan import Algorithm, ConvPlan
from convopt.targets import CpuTarget, GpuTarget

CAP = 64 << 20


class Records(Protocol):
    """Measured decisions."""

    def find(self, problem: ConvProblem, target: CpuTarget | GpuTarget, threads: int) -> ConvPlan | None: ...


def choose_plan(
    problem: ConvProblem,
    target: CpuTarget | GpuTarget,
    threads: int,
    algorithm: Algorithm = "auto",
    cap: int = CAP,
) -> ConvPlan:
    """The cheapest plan by estimate, of the algorithm asked for.

    Raises:
        ValueError: no schedule takes the problem; the text says why.
    """
    if isinstance(target, GpuTarget):
        return plans_gpu.choose(problem, target, algorithm, cap)
    return plans_cpu.choose(problem, target, threads, algorithm, cap)


def decide(
    problem: ConvProblem,
    target: CpuTarget | GpuTarget,
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


def why_not(
    plan: ConvPlan, problem: ConvProblem, target: CpuTarget | GpuTarget, cap: int = CAP
) -> str | None:
    """Why the plan can't compute the problem, None if it can."""
    if isinstance(target, GpuTarget):
        return plans_gpu.why_not(plan, problem, target, cap)
    return plans_cpu.why_not(plan, problem, target, cap)


def plan_seconds(
    plan: ConvPlan, problem: ConvProblem, target: CpuTarget | GpuTarget, threads: int, cap: int = CAP
) -> float:
    """Predicted seconds; of im2col, as if all matrices were whole."""
    if isinstance(target, GpuTarget):
        return plans_gpu.seconds(plan, problem, target, cap)
    return plans_cpu.seconds(plan, problem, target, threads, cap)


def ranked(
    problem: ConvProblem, target: CpuTarget | GpuTarget, threads: int, cap: int = CAP
) -> list[tuple[ConvPlan, float]]:
    """The schedules' own spaces, over all algorithms, with their predicted seconds, the cheapest first.

    Of a GPU's implicit GEMM the cheapest tiles only, each with its best order of blocks.
    """
    if isinstance(target, GpuTarget):
        return list(plans_gpu.ranked(problem, target, cap))
    return plans_cpu.ranked(problem, target, threads, cap)
