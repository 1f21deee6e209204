"""Which candidates to measure next: the model's best, then what lies around the best measured one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from convopt.schedules.conv_problem import ConvProblem
from convopt.selection.conv_plan import ConvPlan
from convopt.selection.gpu_search import SWIZZLES
from convopt.selection.plans import plan_seconds, ranked, why_not
from convopt.targets import CpuTarget, GpuTarget

# The fields that may take values between those of a family's own space.
FREE_FIELDS = {
    "direct": ("pixels", "channel_block", "feature_chunk", "row_chunk"),
    "few-features": ("pixels", "tile_chunk"),
    "depthwise": ("rows", "columns", "channel_chunk"),
    "grouped": ("columns", "channel_chunk", "row_chunk"),
    "shifted": ("pixels", "row_chunk"),
    "winograd": ("pixels", "tile_rows", "tile_columns"),
    "implicit_gemm": ("stages", "split_k"),
}
# The fields that may take other values than those of a family's own space, which are no numbers.
OTHER_VALUES: dict[str, dict[str, tuple[Any, ...]]] = {
    "implicit_gemm": {
        "swizzle": SWIZZLES,
        "epilogue": ("shared", "direct"),
        "async_copy": (False, True),
        "pad": ((0, 0, 0),),
        "down": ((1, 1),),
    },
}
MODEL_BEST = 16  # of the model's order; beyond, the neighbours of what was measured come first


def next_plans(
    problem: ConvProblem,
    target: CpuTarget | GpuTarget,
    threads: int,
    cap: int,
    tried: Sequence[ConvPlan],
    seeds: Sequence[ConvPlan],
    count: int,
) -> list[ConvPlan]:
    """Up to `count` plans that were not tried yet.

    tried: the fastest first. seeds: what was best for the same convolution at other batch sizes.
    """
    found: dict[ConvPlan, None] = {}
    known = set(tried)
    for plan in _in_order(problem, target, threads, cap, tried, seeds):
        if plan not in known:
            found[plan] = None
        if len(found) == count:
            break
    return list(found)


def _in_order(
    problem: ConvProblem,
    target: CpuTarget | GpuTarget,
    threads: int,
    cap: int,
    tried: Sequence[ConvPlan],
    seeds: Sequence[ConvPlan],
) -> Iterator[ConvPlan]:
    yield from (plan for plan in seeds if why_not(plan, problem, target, cap) is None)
    order = [plan for plan, _ in ranked(problem, target, threads, cap)]
    yield from order[:MODEL_BEST]
    for best in tried[:2]:
        yield from neighbours(best, problem, target, threads, cap)
    yield from order[MODEL_BEST:]


def _changes(schedule: Any) -> Iterator[tuple[str, Any]]:
    """Fields of the schedule with values that lie near."""
    for name in FREE_FIELDS.get(schedule.name, ()):
        value = getattr(schedule, name)
        near = {value - 1, value + 1, value // 2, value * 2, value * 3 // 2} - {value}
        yield from ((name, other) for other in sorted(near) if other > 0)
    for name, values in OTHER_VALUES.get(schedule.name, {}).items():
        yield from ((name, other) for other in values if other != getattr(schedule, name))


def neighbours(
    plan: ConvPlan, problem: ConvProblem, target: CpuTarget | GpuTarget, threads: int, cap: int
) -> list[ConvPlan]:
    """The plans that differ in one field by a little, the cheapest by estimate first."""
    found: dict[ConvPlan, float] = {}
    for name, other in _changes(plan.schedule):
        near = replace(plan, schedule=replace(plan.schedule, **{name: other}))
        if why_not(near, problem, target, cap) is None:
            # The model takes more for pads than the schedule does, and says of some that they don't fit.
            with contextlib.suppress(ValueError):
                found[near] = plan_seconds(near, problem, target, threads, cap)
    return sorted(found, key=found.__getitem__)
