"""Spends a budget of seconds on measuring schedules, where there is most to gain.

A visit to a convolution compiles a few candidates, times each alone, and lets the best of them race the
untuned plan in turn; only what wins that race becomes a record. Everything is in the store as soon as it is
known: a run that is killed loses the candidate in flight, and another run goes on behind it.
"""

from __future__ import annotations

import contextlib
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from convopt.codegen.cache import KernelCache
from convopt.lowering.base import LoweringOptions
from convopt.schedules.conv_problem import ConvProblem
from convopt.selection.conv_plan import ConvPlan
from convopt.selection.plans import choose_plan, plan_seconds
from convopt.targets import GpuTarget
from convopt.tuning.candidate import Candidate, compile_candidates
from convopt.tuning.identity import TaskKey, task_key
from convopt.tuning.measuring import TURNS
from convopt.tuning.runner import TOLERANCES, Runner
from convopt.tuning.search import next_plans
from convopt.tuning.store import Record, Store, Trial

BATCH = 4  # candidates of a visit, beside the untuned plan
CONTENDERS = 3  # that race the untuned plan
WORTH_A_RACE = 0.99  # of the untuned plan's quick time
WIN = 0.98  # of the untuned plan's time, the median of the turns: less is noise
RACE_SECONDS = 0.2  # for each runner of a race
CANDIDATE_TIMEOUT = 10.0
LEAST_VISIT = 1.0  # seconds: with less left no visit is begun
MOST_UNPREPARED = 3  # visits to a convolution
GRACE = 4.0  # seconds past the budget that what has begun may take
DECAY = 0.5  # of a convolution's expected gain with each visit without a new record

Report = Callable[["Status"], None]


@dataclass(frozen=True)
class Task:
    """One convolution of the model, or of several models, and how often it occurs."""

    problem: ConvProblem
    count: int = 1


@dataclass(frozen=True)
class Status:
    """What progress shows. gain: untuned / tuned time of all convolutions met so far."""

    label: str
    elapsed: float
    budget: float
    gain: float


@dataclass(frozen=True)
class Outcome:
    """What tuning knows of one convolution at its end.

    untuned, tuned: seconds, from the race of the record; equal where the untuned plan is the best known, None
    where it was never measured. tried: candidates measured, in this run and before.
    """

    task: Task
    label: str
    baseline: ConvPlan
    best: ConvPlan
    untuned: float | None
    tuned: float | None
    tried: int
    failed: int


@dataclass
class State:
    """A convolution during the run."""

    task: Task
    key: TaskKey
    baseline: ConvPlan
    weight: float  # seconds that it is expected to take in the model
    untuned: float | None = None
    exhausted: bool = False
    busy: bool = False
    unprepared: int = 0  # visits whose candidates could not be compiled where they are measured
    raced: set[ConvPlan] = field(default_factory=set)


class Board:
    """The convolutions of a run, which the tuners of several devices share, each in a thread of its own."""

    def __init__(self, states: Sequence[State]) -> None:
        self.states = states
        self.stopped = False
        self._lock = threading.Lock()

    @property
    def exhausted(self) -> bool:
        return all(state.exhausted for state in self.states)

    @contextlib.contextmanager
    def take(self) -> Iterator[State | None]:
        """What promises most of what no other tuner works on."""
        with self._lock:
            free = [state for state in self.states if not state.busy and not state.exhausted]
            state = max(free, key=lambda one: one.weight, default=None)
            if state is not None:
                state.busy = True
        try:
            yield state
        finally:
            if state is not None:
                state.busy = False


class Tuner:
    """Measures on `runner` for the chip that `options.target` describes; `store` keeps what it finds."""

    def __init__(
        self,
        store: Store,
        options: LoweringOptions,
        cache: KernelCache,
        runner: Runner,
        report: Report | None,
    ) -> None:
        self.store, self.options, self.cache, self.runner = store, options, cache, runner
        self.report = report or (lambda status: None)
        self._end = self._start = 0.0
        self._budget = 0.0

    def tune(self, tasks: Sequence[Task], budget: float) -> list[Outcome]:
        """Spends about `budget` seconds, less where nothing is left to try."""
        board = Board([self.state(task) for task in tasks])
        self.work(board, budget)
        return [self.outcome(state) for state in board.states]

    def work(self, board: Board, budget: float) -> None:
        """Visits convolutions of the board until the budget, they, or the board's user end it."""
        self._start, self._budget = time.monotonic(), budget
        self._end = self._start + budget
        while self._left() > LEAST_VISIT and not board.exhausted and not board.stopped:
            with board.take() as state:
                if state is None:
                    time.sleep(0.1)  # the others have all that is left
                    continue
                self._report(board.states, state)
                found = self._visit(state)
                state.weight *= 1.0 if found else DECAY

    def state(self, task: Task) -> State:
        """A convolution with what the store knows of it."""
        o = self.options
        baseline = choose_plan(task.problem, o.target, o.threads, "auto", o.im2col_cap)
        seconds = plan_seconds(baseline, task.problem, o.target, o.threads, o.im2col_cap)
        key = task_key(task.problem, o.target, o.threads)
        known = {t.plan: t.seconds for t in self.store.trials(key) if t.seconds is not None}
        state = State(task, key, baseline, task.count * known.get(baseline, seconds), known.get(baseline))
        state.weight *= DECAY ** (len(known) // BATCH)
        return state

    def _left(self) -> float:
        return self._end - time.monotonic()

    def _visit(self, state: State) -> bool:
        """Measures the next candidates of a convolution; whether there is a new record."""
        o, problem = self.options, state.task.problem
        trials = self.store.trials(state.key)
        plans = next_plans(
            problem, o.target, o.threads, o.im2col_cap,
            [t.plan for t in trials if t.plan != state.baseline], self.store.kin(state.key), BATCH + 1,
        )  # fmt: skip
        plans = [plan for plan in plans if plan != state.baseline][:BATCH]
        waiting = self._contenders(state, trials)
        if not plans and not waiting:
            state.exhausted = True
            return False
        with tempfile.TemporaryDirectory(prefix="convopt-tune-") as folder:
            best = self.store.best(state.key)
            again = [best.plan] if best is not None else []
            wanted = list(dict.fromkeys([state.baseline, *again, *waiting, *plans]))
            compiled, failures = compile_candidates(
                problem, wanted, o, self.cache, Path(folder), deadline=self._end + GRACE / 2
            )
            for plan, failure in failures.items():
                self._fail(state, plan, failure)
            files = {candidate.plan: candidate for candidate in compiled}
            if state.baseline not in files:
                state.exhausted = True  # nothing to compare with
                return False
            self.runner.reset()
            if isinstance(o.target, GpuTarget):  # a CPU's candidates are machine code already
                files = self._prepared(state, files)
            return self._measure(state, files, plans) and self._race(state, files)

    def _prepared(self, state: State, files: dict[ConvPlan, Candidate]) -> dict[ConvPlan, Candidate]:
        """Those that the machine which measures can compile, where source is what it gets."""
        timeout = max(1.0, self._left() + GRACE / 2)
        failures = self.runner.prepare([candidate.path for candidate in files.values()], timeout)
        if isinstance(failures, str):
            state.unprepared += 1  # a device that went away has successors; what no compiler survives, none
            state.exhausted = state.unprepared == MOST_UNPREPARED
            return {}
        for plan, candidate in files.items():
            if candidate.path in failures:
                self._fail(state, plan, failures[candidate.path])
        return {plan: one for plan, one in files.items() if one.path not in failures}

    def _measure(self, state: State, files: dict[ConvPlan, Candidate], plans: Sequence[ConvPlan]) -> bool:
        """Times the untuned plan and each new one alone; False where the untuned one has no time."""
        if state.baseline not in files:
            return False
        reference = files[state.baseline].path
        tolerance = TOLERANCES[state.task.problem.y.dtype]
        for plan in (state.baseline, *(plan for plan in plans if plan in files)):
            if self._left() < -GRACE / 2:
                return False
            timeout = min(CANDIDATE_TIMEOUT, max(1.0, self._left() + GRACE / 2))
            probe = self.runner.probe(files[plan].path, reference, tolerance, timeout)
            if probe.failure is not None:
                self._fail(state, plan, probe.failure)
            else:
                self.store.add_trial(state.key, Trial(plan, probe.seconds))
            if plan == state.baseline:
                state.untuned = probe.seconds
                if probe.seconds is None:
                    state.exhausted = True
                    return False
        return True

    def _fail(self, state: State, plan: ConvPlan, failure: str) -> None:
        """Remembers a failure, unless the plan may only have run out of this run's time."""
        if self._left() > CANDIDATE_TIMEOUT:
            self.store.add_trial(state.key, Trial(plan, None, failure))

    def _contenders(self, state: State, trials: Sequence[Trial]) -> list[ConvPlan]:
        """The fastest plans that may beat the untuned one and have not raced it in this run."""
        known = {trial.plan: trial.seconds for trial in trials if trial.seconds is not None}
        untuned = known.get(state.baseline)
        if untuned is None:
            return []
        best = self.store.best(state.key)
        limit = untuned * WORTH_A_RACE
        if best is not None:
            limit = min(limit, known.get(best.plan, limit))
        promising = [
            plan
            for plan, seconds in known.items()
            if seconds < limit and plan != state.baseline and plan not in state.raced
        ]
        return promising[:CONTENDERS]

    def _race(self, state: State, files: dict[ConvPlan, Candidate]) -> bool:
        """The best candidates against the untuned plan and the record, in turn; whether one is the best."""
        contenders = [p for p in self._contenders(state, self.store.trials(state.key)) if p in files]
        if not contenders or self._left() < -GRACE / 2:
            return False
        best = self.store.best(state.key)
        runners = [state.baseline, *contenders]
        if best is not None and best.plan in files and best.plan not in runners:
            runners.append(best.plan)
        known = {t.plan: t.seconds for t in self.store.trials(state.key) if t.seconds is not None}
        # A turn is at least one run that settles and one that counts.
        expected = sum(max(RACE_SECONDS, 2 * TURNS * known.get(plan, 0.0)) for plan in runners)
        if expected > self._left() + GRACE / 2:
            return False  # the next run's visit begins with this race
        turns = self.runner.race([files[p].path for p in runners], RACE_SECONDS, expected + CANDIDATE_TIMEOUT)
        state.raced.update(contenders)
        if isinstance(turns, str):
            return False
        untuned = turns[0]
        ratios = {
            plan: median(a / b for a, b in zip(times, untuned, strict=True))
            for plan, times in zip(runners, turns, strict=True)
        }
        state.untuned = median(untuned)
        found = False
        for plan, times in zip(runners, turns, strict=True):
            if plan == state.baseline:
                continue
            if best is not None and plan == best.plan:
                if ratios[plan] >= 1.0:
                    self.store.drop_record(state.key, plan)  # it has won by luck
            elif ratios[plan] < WIN:
                found |= self.store.add_record(state.key, plan, median(times), ratios[plan], state.baseline)
        return found

    def outcome(self, state: State) -> Outcome:
        """What is known at the end, from the store."""
        trials = self.store.trials(state.key)
        best: Record | None = self.store.best(state.key)
        untuned = state.untuned
        tuned = untuned if best is None else best.seconds
        return Outcome(
            state.task,
            state.task.problem.text,
            state.baseline,
            state.baseline if best is None else best.plan,
            untuned if best is None else best.seconds / best.ratio,
            tuned,
            sum(trial.seconds is not None for trial in trials),
            sum(trial.seconds is None for trial in trials),
        )

    def _report(self, states: Sequence[State], state: State) -> None:
        self.report(
            Status(
                state.task.problem.text,
                time.monotonic() - self._start,
                self._budget,
                gain([self.outcome(one) for one in states]),
            )
        )


def gain(outcomes: Sequence[Outcome]) -> float:
    """Untuned / tuned time of all convolutions that were measured, by how often they occur; 1 of none."""
    known = [(o.untuned, o.tuned, o.task.count) for o in outcomes if o.untuned and o.tuned]
    tuned = sum(count * tuned for _, tuned, count in known)
    return sum(count * untuned for untuned, _, count in known) / tuned if tuned else 1.0
