"""How good the model's choices are: its order of a small space against the measured order.

The small space of a convolution is at least SPACE plans over all algorithms: the model's best, the best of
each family, and every n-th of the rest, so that bad plans are in it too. All of it is measured, into the
store. The fastest of so many quick measurements is partly luck: the fastest few and the choices that are
compared with them are then measured in turn, for longer.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

from convopt.codegen.cache import KernelCache
from convopt.lowering.base import LoweringOptions
from convopt.schedules.conv_problem import ConvProblem
from convopt.selection.conv_plan import ConvPlan
from convopt.selection.model import unit_for
from convopt.selection.plans import choose_plan, plan_seconds, ranked
from convopt.selection.rule_cpu import cpu_rule
from convopt.selection.rule_gpu import gpu_rule
from convopt.targets import GpuTarget
from convopt.tuning.candidate import compile_candidates
from convopt.tuning.identity import task_key
from convopt.tuning.runner import TOLERANCES, Runner
from convopt.tuning.store import Store, Trial

SPACE = 64
BEST = 24  # of the model's order
BEST_OF_FAMILY = 4
MEASURED_FIRST = 8  # of the model's order: what `tune` would measure first
BATCH = 8
FINALISTS = 6  # that are measured again, beside the choices
TUNED = 2  # of the fastest of all that is in the store
FINAL_SECONDS = 0.4  # for each of them
CANDIDATE_TIMEOUT = 20.0
Report = Callable[[int, int], None]


@dataclass(frozen=True)
class Quality:
    """first, top8, rule: the best time of the small space / that of the model's first choice, of the best of
    its first eight, of the rule's choice (None where it has none); 1 is perfect. space: the best time of all
    that was ever measured, by tuning too / the best of the small space. tau: Kendall's, between predicted and
    measured times. measured: plans with a time; complete: whether that is all of the small space.
    """

    conv: str
    measured: int
    complete: bool
    best_seconds: float
    first: float
    top8: float
    rule: float | None
    space: float
    tau: float


def small_space(problem: ConvProblem, options: LoweringOptions) -> list[ConvPlan]:
    """In the model's order; all there are where that is fewer than SPACE."""
    o = options
    first = choose_plan(problem, o.target, o.threads, "auto", o.im2col_cap)
    rule = rule_plan(problem, options)
    priced = dict(ranked(problem, o.target, o.threads, o.im2col_cap))
    for plan in filter(None, (first, rule)):  # of a GPU's plans `ranked` leaves some out
        priced.setdefault(plan, plan_seconds(plan, problem, o.target, o.threads, o.im2col_cap))
    order = sorted(priced, key=priced.__getitem__)
    chosen = set(order[:BEST])
    for kind in {(plan.schedule.name, plan.expand_col > 0) for plan in order}:
        same = [plan for plan in order if (plan.schedule.name, plan.expand_col > 0) == kind]
        chosen.update(same[:BEST_OF_FAMILY])
    chosen.update(filter(None, (first, rule)))
    rest = [plan for plan in order if plan not in chosen]
    if (missing := SPACE - len(chosen)) > 0 and rest:
        chosen.update(rest[:: max(1, len(rest) // missing)])
    return [plan for plan in order if plan in chosen]


def rule_plan(problem: ConvProblem, options: LoweringOptions) -> ConvPlan | None:
    """None where nothing fits, or what it chose refuses the problem."""
    target = options.target
    try:
        if isinstance(target, GpuTarget):
            config = gpu_rule(problem, target, unit_for(problem, target)).chosen.config
            plan_seconds(ConvPlan(config), problem, target, options.threads)  # it has a price
            return ConvPlan(config) if config.why_not(problem, target) is None else None
        return ConvPlan(cpu_rule(problem, target, options.threads).chosen.config)
    except ValueError:
        return None


def measure_space(
    problem: ConvProblem,
    options: LoweringOptions,
    store: Store,
    cache: KernelCache,
    runner: Runner,
    deadline: float,
    report: Report | None = None,
) -> dict[ConvPlan, float]:
    """Times what of the small space has no trial yet, until `deadline` (of time.monotonic()).

    Returns the seconds of those that were then measured in turn, nothing where the time was over before.
    """
    key, plans = task_key(problem, options.target, options.threads), small_space(problem, options)
    tried = {trial.plan for trial in store.trials(key)}
    todo = [plan for plan in plans if plan not in tried]
    reference = choose_plan(problem, options.target, options.threads, "auto", options.im2col_cap)
    for start in range(0, len(todo), BATCH):
        if time.monotonic() > deadline:
            return {}
        if report is not None:
            report(len(plans) - len(todo) + start, len(plans))
        wanted = todo[start : start + BATCH]
        with _compiled(problem, [reference, *wanted], options, cache, runner, deadline) as (files, failures):
            if time.monotonic() > deadline + CANDIDATE_TIMEOUT / 2:
                return {}  # what isn't compiled may only have run out of time
            for plan, failure in failures.items():
                store.add_trial(key, Trial(plan, None, failure))
            runner.reset()
            for plan in wanted:
                if plan in files and reference in files:
                    tolerance = TOLERANCES[problem.y.dtype]
                    probe = runner.probe(files[plan], files[reference], tolerance, CANDIDATE_TIMEOUT)
                    store.add_trial(key, Trial(plan, probe.seconds, probe.failure))
    if time.monotonic() > deadline:
        return {}
    return _measure_again(problem, options, store, cache, runner, deadline)


def _measure_again(
    problem: ConvProblem,
    options: LoweringOptions,
    store: Store,
    cache: KernelCache,
    runner: Runner,
    deadline: float,
) -> dict[ConvPlan, float]:
    """The fastest, the first choices and the rule's, in turn; the store keeps each one's least time ever."""
    key = task_key(problem, options.target, options.threads)
    known = [trial.plan for trial in store.trials(key) if trial.seconds is not None]
    order = [plan for plan in small_space(problem, options) if plan in known]
    first = choose_plan(problem, options.target, options.threads, "auto", options.im2col_cap)
    fastest = [plan for plan in known if plan in order]
    best_of_first = min(order[:MEASURED_FIRST], key=fastest.index, default=first)
    chosen = [*known[:TUNED], first, best_of_first, rule_plan(problem, options)]
    finalists = list(dict.fromkeys([*fastest[:FINALISTS], *(plan for plan in chosen if plan in known)]))
    with _compiled(problem, finalists, options, cache, runner, deadline) as (files, _):
        runner.reset()
        raced = [plan for plan in finalists if plan in files]
        turns = runner.race([files[plan] for plan in raced], FINAL_SECONDS, len(raced) * CANDIDATE_TIMEOUT)
        if isinstance(turns, str):
            return {}
        times = {plan: min(each) for plan, each in zip(raced, turns, strict=True)}
        for plan, seconds in times.items():
            store.add_trial(key, Trial(plan, seconds))
        return times


@contextlib.contextmanager
def _compiled(
    problem: ConvProblem,
    plans: Sequence[ConvPlan],
    options: LoweringOptions,
    cache: KernelCache,
    runner: Runner,
    deadline: float,
) -> Iterator[tuple[dict[ConvPlan, Path], dict[ConvPlan, str]]]:
    """Files of the plans, for as long as the context lasts, and why others have none."""
    with tempfile.TemporaryDirectory(prefix="convopt-choices-") as folder:
        found, failures = compile_candidates(
            problem, list(dict.fromkeys(plans)), options, cache, Path(folder), deadline + CANDIDATE_TIMEOUT
        )
        files = {candidate.plan: candidate.path for candidate in found}
        if isinstance(options.target, GpuTarget):  # a CPU's candidates are machine code already
            left = max(1.0, deadline + CANDIDATE_TIMEOUT - time.monotonic())
            said = runner.prepare(list(files.values()), left)
            refused = said if isinstance(said, dict) else dict.fromkeys(files.values(), said)
            failures |= {plan: refused[path] for plan, path in files.items() if path in refused}
        yield {plan: path for plan, path in files.items() if plan not in failures}, failures


def quality(
    problem: ConvProblem,
    options: LoweringOptions,
    store: Store,
    raced: Mapping[ConvPlan, float] | None = None,
) -> Quality | None:
    """From the store's trials; None where the model's first choice was not measured.

    raced: seconds measured in turn. They alone are then compared: trials hours apart would be compared by how
    busy the machine was.
    """
    key = task_key(problem, options.target, options.threads)
    trials = {trial.plan: trial.seconds for trial in store.trials(key)}
    order = small_space(problem, options)
    known = [(plan, seconds) for plan in order if (seconds := trials.get(plan)) is not None]
    first = choose_plan(problem, options.target, options.threads, "auto", options.im2col_cap)
    compared = raced or {plan: seconds for plan, seconds in trials.items() if seconds is not None}
    if first not in compared:
        return None
    times = {plan: compared[plan] for plan in order if plan in compared}
    best = min(times.values())
    rule = rule_plan(problem, options)
    return Quality(
        problem.text,
        len(known),
        all(plan in trials for plan in order),
        best,
        best / times[first],
        best / min(times[plan] for plan in order[:MEASURED_FIRST] if plan in times),
        best / times[rule] if rule in times else None,
        min(compared.values()) / best,
        kendall_tau([seconds for _, seconds in known]),
    )


def kendall_tau(measured: Sequence[float]) -> float:
    """Between the order of the sequence and that of its values: 1 if it ascends, -1 if it descends."""
    pairs = [(a < b) - (a > b) for a, b in combinations(measured, 2)]
    return sum(pairs) / len(pairs) if pairs else 1.0
