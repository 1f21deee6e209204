"""Where the time of a call goes, step by step."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import Literal

from convopt.runtime.program import KernelStep, Program


@dataclass(frozen=True)
class StepTime:
    """One step of the Program: the nodes of the model that it computes, its median seconds."""

    label: str
    kind: Literal["kernel", "island"]
    nodes: tuple[str, ...]
    seconds: float


@dataclass(frozen=True)
class Profile:
    """The steps in order, and the median seconds of a whole run of them (without the checks of a call)."""

    steps: tuple[StepTime, ...]
    seconds: float
    runs: int

    def slowest(self, count: int) -> list[StepTime]:
        return sorted(self.steps, key=lambda step: -step.seconds)[:count]

    def table(self) -> str:
        """A line per step: time, share of the whole, what it is."""
        width = max((len(step.label) for step in self.steps), default=5)
        lines = [f"{'us':>10} {'share':>6}  {'step':{width}}  nodes"]
        for step in self.steps:
            share = step.seconds / self.seconds if self.seconds else 0.0
            nodes = ", ".join(step.nodes)
            line = f"{step.seconds * 1e6:10.1f} {share:6.1%}  {step.label:{width}}  {nodes}"
            lines.append(line.rstrip())
        lines.append(f"{self.seconds * 1e6:10.1f} {'':6}  whole run, median of {self.runs}")
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.table()


def of_runs(program: Program, times: list[list[float]]) -> Profile:
    """times[run][step] in seconds."""
    steps = tuple(
        StepTime(
            step.label or (step.symbol if isinstance(step, KernelStep) else f"island {step.model}"),
            "kernel" if isinstance(step, KernelStep) else "island",
            step.nodes,
            median(run[index] for run in times),
        )
        for index, step in enumerate(program.steps)
    )
    return Profile(steps, median(map(sum, times)), len(times))
