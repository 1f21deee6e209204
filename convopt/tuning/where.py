"""What can be measured on this machine."""

from __future__ import annotations

from convopt.codegen.found import find, runnable
from convopt.targets import CpuTarget, GpuTarget, host_cpu
from convopt.tuning.identity import target_text

ELSEWHERE = (
    "or measure where there is one: `convopt worker` there, `convopt tune --tracker HOST:PORT --key KEY` here"
)


def why_not_here(target: CpuTarget | GpuTarget) -> str | None:
    """Why no candidate for the target can be timed on this machine, None if it can."""
    return find(target).no_run if isinstance(target, GpuTarget) else None


def measurable() -> list[str]:
    """The text of each target whose candidates run here: the CPU, and what the devices' drivers find."""
    return [target_text(host_cpu()), *map(target_text, runnable())]
