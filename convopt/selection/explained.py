"""What selection decides for one convolution, with its price in parts, as plain values for reports."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from convopt.schedules.conv_problem import ConvProblem
from convopt.schedules.gpu_implicit_gemm import ImplicitGemm
from convopt.schedules.im2col import Im2col
from convopt.selection import model
from convopt.selection.choose import imbalance
from convopt.selection.choose_gpu import priced_gpu_conv
from convopt.selection.conv_plan import ConvPlan
from convopt.selection.plans import CAP, Records, decide, plan_seconds
from convopt.selection.plans_cpu import whole_product
from convopt.selection.rule import Selection
from convopt.selection.rule_cpu import cpu_rule
from convopt.selection.rule_gpu import gpu_rule
from convopt.selection.unfold import chunks, split
from convopt.targets import CpuTarget, GpuTarget


def gpu_cost(problem: ConvProblem, target: GpuTarget) -> dict[str, Any]:
    """What `convopt.cli.cost_fields` describes. ValueError: no form takes the problem."""
    seconds, schedule = priced_gpu_conv(problem, target)
    if isinstance(schedule, ImplicitGemm):
        unit, estimate = schedule.unit, model.estimate(schedule, problem, target)
        parts, bound = asdict(estimate), estimate.bound
        del parts["seconds"]
    else:
        unit, parts = target.unit_of(problem.x.dtype), asdict(schedule.cost(problem, target))
        bound = "compute" if parts["compute"] > parts["memory"] else "memory"
    return {
        "conv": problem.text,
        "seconds": seconds,
        "source": "estimate",
        "chosen": _config(schedule.name, schedule),
        "parts": parts,
        "bound": bound,
        "roofline_s": model.roofline(problem, target, unit),
        "rule": _gpu_rule(problem, target, unit),
    }


def _config(algorithm: str, config: Any) -> dict[str, Any]:
    return {"algorithm": algorithm} | {
        name: list(value) if isinstance(value, tuple) else value for name, value in asdict(config).items()
    }


def _gpu_rule(problem: ConvProblem, target: GpuTarget, unit: str) -> dict[str, Any]:
    try:
        selection = gpu_rule(problem, target, unit)
        seconds = model.estimate(selection.chosen.config, problem, target).seconds
    except ValueError as error:
        return _refused(str(error))
    return _rule(selection, _config("implicit_gemm", selection.chosen.config), seconds)


def _refused(reason: str) -> dict[str, Any]:
    return {"chosen": {}, "seconds": None, "steps": [], "refused": reason}


def _rule(selection: Selection, chosen: dict[str, Any], seconds: float | None) -> dict[str, Any]:
    steps = []
    for step in selection.steps:
        counts: dict[str, int] = {}
        examples: dict[str, str] = {}
        for reason in step.dropped.values():
            # Reasons that differ in their figures only are told once, by the first of them.
            words = " ".join(word for word in reason.split() if not word[0].isdigit())
            example = examples.setdefault(words, reason)
            counts[example] = counts.get(example, 0) + 1
        steps.append({"number": step.number, "title": step.title, "kept": len(step.kept), "dropped": counts})
    return {"chosen": chosen, "seconds": seconds, "steps": steps, "refused": None}


def cpu_cost(
    problem: ConvProblem,
    target: CpuTarget,
    threads: int,
    records: Records | None = None,
    roof: tuple[float, float] | None = None,
) -> dict[str, Any]:
    """What `convopt.cli.cost_fields` describes. ValueError: no schedule takes the problem.

    roof: FLOP/s and bytes/s as they were measured.
    """
    plan = decide(problem, target, threads, "auto", CAP, records)
    untuned = decide(problem, target, threads, "auto", CAP, None)
    parts = cpu_parts(plan, problem, target, threads)
    timed = {name: parts[name] for name in ("compute", "memory") if name in parts}
    return {
        "conv": problem.text,
        "seconds": plan_seconds(plan, problem, target, threads, CAP) / threads,
        "source": "estimate" if plan == untuned else "record",
        "chosen": {"expand_col": plan.expand_col} | _config(plan.schedule.name, plan.schedule),
        "parts": parts,
        "bound": max(timed, key=lambda name: timed[name]),
        "roofline_s": roof and max(problem.flops / roof[0], model.least_bytes(problem) / roof[1]),
        "rule": _cpu_rule(problem, target, threads),
    }


def cpu_parts(plan: ConvPlan, problem: ConvProblem, target: CpuTarget, threads: int) -> dict[str, float]:
    """compute: register tiles and loads from L1; memory: bytes from beyond L2; overhead: what of the shorter
    one does not overlap; each on one core, in seconds. imbalance: time on the threads / perfect division.
    unfold, matrices: im2col's seconds for a matrix, and how many there are.
    """
    product, extra = problem, {}
    if plan.expand_col:
        pieces = chunks(problem, plan.expand_col, CAP)
        unfold, _ = split(problem, pieces[0])
        product = whole_product(problem, plan.expand_col, CAP)
        extra = {"unfold": Im2col().cost(unfold, target).seconds, "matrices": float(len(pieces))}
    cost = plan.schedule.cost(product, target)
    tasks = plan.schedule.tasks(product, target)
    parts = {"compute": cost.compute, "memory": cost.memory, "overhead": cost.overhead}
    return parts | {"tasks": float(tasks), "imbalance": imbalance(tasks, threads)} | extra


def _cpu_rule(problem: ConvProblem, target: CpuTarget, threads: int) -> dict[str, Any]:
    try:
        selection = cpu_rule(problem, target, threads)
    except ValueError as error:
        return _refused(str(error))
    config = selection.chosen.config
    seconds = plan_seconds(ConvPlan(config), problem, target, threads, CAP) / threads
    return _rule(selection, _config("direct", config), seconds)
