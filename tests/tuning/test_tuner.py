"""Tuning real convolutions, and what happens when candidates or the tuner itself die."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import numpy as np
import pytest

import convopt
from convopt.bench.cases import conv_model, parse_case
from convopt.codegen.cache import KernelCache
from convopt.errors import InputError
from convopt.lowering.base import LoweringOptions
from convopt.selection.plans import choose_plan, ranked
from convopt.targets import host_cpu
from convopt.tuning import exchange
from convopt.tuning.candidate import compile_candidates
from convopt.tuning.identity import task_key
from convopt.tuning.runner import LocalRunner, Probe
from convopt.tuning.search import next_plans
from convopt.tuning.store import Store
from convopt.tuning.tuner import Task, Tuner
from tests.tuning.problems import conv

OPTIONS = LoweringOptions(host_cpu(), 1)
PROBLEM = conv(n=2, c=16, size=11, k=24)
KEY = task_key(PROBLEM, OPTIONS.target, 1)


class ScriptedRunner:
    """A Runner whose candidates take the times of a table, by the order in which files were first seen."""

    def __init__(self, seconds: Sequence[float | str]) -> None:
        self.seconds, self.known, self.raced = list(seconds), {}, 0

    def reset(self) -> None:
        pass

    def probe(self, path: Path, reference: Path, tolerance: float, timeout: float) -> Probe:
        assert path.exists() and reference.exists()
        index = self.known.setdefault(path.name, len(self.known))
        found = self.seconds[index % len(self.seconds)]
        return Probe(None, found) if isinstance(found, str) else Probe(found)

    def race(self, paths: Sequence[Path], seconds: float, timeout: float) -> list[list[float]]:
        self.raced += 1
        return [[self.probe(path, path, 0, 0).seconds or 0.0] * 3 for path in paths]

    def close(self) -> None:
        pass


def tune(tmp_path: Path, runner, seconds: float = 120.0):
    with Store(tmp_path / "store.sqlite3") as store:
        kernels = KernelCache(tmp_path.parent / "tuned")  # of all tests here: the candidates are the same
        tuner = Tuner(store, OPTIONS, kernels, runner, None)
        (outcome,) = tuner.tune([Task(PROBLEM)], seconds)
        return outcome, store.best(KEY), store.trials(KEY)


class StopAfterFirstVisit(ScriptedRunner):
    """Interrupts the tuner at the second visit."""

    def reset(self) -> None:
        if self.known:
            raise KeyboardInterrupt


@pytest.mark.kernels
def test_a_faster_candidate_becomes_the_record_and_a_failing_one_is_remembered(tmp_path: Path) -> None:
    runner = StopAfterFirstVisit([5e-3, 6e-3, "crashed", 2e-3, 5e-3])
    with pytest.raises(KeyboardInterrupt):
        tune(tmp_path, runner)
    with Store(tmp_path / "store.sqlite3") as store:
        record, trials = store.best(KEY), store.trials(KEY)
    assert record is not None and record.ratio == pytest.approx(0.4)
    assert [t.seconds for t in trials] == [2e-3, 5e-3, 5e-3, 6e-3, None]
    assert trials[-1].failure == "crashed"
    assert record.plan == trials[0].plan
    # A second run asks for what the first one has not tried.
    order = [plan for plan, _ in ranked(PROBLEM, OPTIONS.target, 1)]
    tried = [t.plan for t in trials]
    following = next_plans(PROBLEM, OPTIONS.target, 1, OPTIONS.im2col_cap, tried, [], 3)
    assert following == [plan for plan in order if plan not in tried][:3]


@pytest.mark.kernels
def test_nothing_faster_leaves_no_record(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        tune(tmp_path, StopAfterFirstVisit([5e-3, 6e-3, 5e-3, 4.97e-3, 7e-3]))
    with Store(tmp_path / "store.sqlite3") as store:
        assert store.best(KEY) is None


@pytest.mark.kernels
def test_a_candidate_that_was_quick_alone_but_loses_the_race(tmp_path: Path) -> None:
    class Loses(StopAfterFirstVisit):
        def race(self, paths: Sequence[Path], seconds: float, timeout: float) -> list[list[float]]:
            return [[1.0 if index == 0 else 1.1] * 3 for index, _ in enumerate(paths)]

    with pytest.raises(KeyboardInterrupt):
        tune(tmp_path, Loses([5e-3, 1e-3]))
    with Store(tmp_path / "store.sqlite3") as store:
        assert store.best(KEY) is None


@pytest.mark.kernels
def test_the_measuring_process_says_what_is_wrong(tmp_path: Path) -> None:
    """A file that is none, a process that dies, a candidate that takes too long; then it works again."""
    plans = [plan for plan, _ in ranked(PROBLEM, OPTIONS.target, 1)][:2]
    end = time.monotonic() + 120
    candidates, failures = compile_candidates(
        PROBLEM, plans, OPTIONS, KernelCache(tmp_path), tmp_path, deadline=end
    )
    assert failures == {}
    first, second = (candidate.path for candidate in candidates)
    runner = LocalRunner()
    try:
        (tmp_path / "bad.convopt").write_bytes(b"PK")
        assert "ArtifactError" in str(runner.probe(tmp_path / "bad.convopt", first, 1e-3, 60).failure)
        found = runner.probe(second, first, 1e-3, 60)
        assert found.failure is None and 0 < found.seconds < 1
        assert "wrong result" in str(runner.probe(second, first, -1.0, 60).failure)
        assert runner._process is not None
        os.kill(runner._process.pid, signal.SIGKILL)
        assert "gone" in (said := str(runner.probe(second, first, 1e-3, 60).failure)) or "crashed" in said
        assert "longer than" in str(runner.probe(second, first, 1e-3, 0.01).failure)
        turns = runner.race([first, second], 0.05, 60)
        assert len(turns) == 2 and all(0 < median(times) < 1 for times in turns)
    finally:
        runner.close()


def test_every_plan_of_a_small_conv_comes_once() -> None:
    tried: list = []
    while plans := next_plans(PROBLEM, OPTIONS.target, 1, OPTIONS.im2col_cap, tried, [], 7):
        assert not set(plans) & set(tried)
        tried += plans
        if len(tried) > 600:
            break
    assert len(tried) == len(set(tried)) > 64


def _tune_command(folder: Path, budget: str) -> list[str]:
    main = "import sys; from convopt.cli.main import main; sys.exit(main())"
    case = "n=1,c=16,h=12,w=12,k=24,r=3,s=3,pad=1"
    return [
        sys.executable, "-c", main, "tune", "--conv", case, "--budget", budget, "--threads", "1",
        "--cache-dir", str(folder), "--quiet",
    ]  # fmt: skip


def _trials(folder: Path) -> int:
    with Store(folder / "tuning.sqlite3") as store:
        (count,) = store.connection.execute("SELECT count(*) FROM trials").fetchone()
        return count


@pytest.mark.kernels
@pytest.mark.slow
def test_killed_and_two_at_once(tmp_path: Path) -> None:
    """Kill -9 in the middle keeps what was measured; two tuners on one store add to it, interrupted too."""
    first = subprocess.Popen(_tune_command(tmp_path, "120s"))
    end = time.monotonic() + 120
    while not (tmp_path / "tuning.sqlite3").exists() or _trials(tmp_path) < 3:
        assert time.monotonic() < end and first.poll() is None
        time.sleep(0.05)
    first.kill()
    first.wait()
    kept = _trials(tmp_path)
    assert kept >= 3
    both = [subprocess.Popen(_tune_command(tmp_path, "300s")) for _ in range(2)]
    end = time.monotonic() + 240
    while _trials(tmp_path) < kept + 3:
        assert time.monotonic() < end and [process.poll() for process in both] == [None, None]
        time.sleep(0.05)
    for process in both:
        process.send_signal(signal.SIGINT)
    assert [process.wait(timeout=60) for process in both] == [130, 130]
    with Store(tmp_path / "tuning.sqlite3") as store:
        assert exchange.faults(store) == []
    assert _trials(tmp_path) >= kept + 3


@pytest.mark.kernels
@pytest.mark.slow
def test_tuning_ends_in_time_and_its_records_are_used(tmp_path: Path, caplog) -> None:
    model = conv_model(parse_case("n=2,c=24,h=19,w=21,k=40,r=3,s=3,stride=1,pad=1"), "NHWC")
    x = np.random.default_rng(0).standard_normal((2, 19, 21, 24), np.float32)
    untuned = convopt.optimize(model, threads=1, cache_dir=tmp_path)  # the kernel compiler is warm now
    start = time.monotonic()
    tuned = convopt.optimize(model, threads=1, cache_dir=tmp_path, tune=10.0)
    assert time.monotonic() - start < 10 + 5 + 5  # the model is compiled behind the budget
    np.testing.assert_allclose(tuned(x), untuned(x), atol=1e-4)
    (tmp_path / "tuning.sqlite3").write_bytes(b"damaged")
    with caplog.at_level(logging.WARNING):
        again = convopt.optimize(model, threads=1, cache_dir=tmp_path)
    assert "is damaged" in caplog.text
    assert again.summary().splitlines()[4:] == untuned.summary().splitlines()[4:]


@pytest.mark.kernels
def test_a_record_decides(tmp_path: Path) -> None:
    """The slowest plan, said to be the best, is what gets compiled."""
    model = conv_model(parse_case("n=1,c=16,h=9,w=9,k=24,r=3,s=3,pad=1"))
    from convopt.compiler import model_problems

    problems, options = model_problems(model, None, 1)
    (problem,) = problems
    slowest = next(p for p, _ in reversed(ranked(problem, options.target, 1)) if p.expand_col)
    baseline = choose_plan(problem, options.target, 1)
    with Store(tmp_path / "tuning.sqlite3") as store:
        store.add_record(task_key(problem, options.target, 1), slowest, 1e-3, 0.5, baseline)
    module = convopt.optimize(model, threads=1, cache_dir=tmp_path)
    assert any("im2col" in step.label for step in module.programs[0].program.steps)
    free = convopt.optimize(model, threads=1, cache_dir=tmp_path, deterministic=True)
    assert not any("im2col" in step.label for step in free.programs[0].program.steps)


@pytest.mark.kernels
def test_deterministic_bits_over_threads(tmp_path: Path) -> None:
    model = conv_model(parse_case("n=1,c=96,h=7,w=9,k=72,r=3,s=3,pad=1"), "NHWC")
    x = np.random.default_rng(0).standard_normal((1, 7, 9, 96), np.float32)
    results, texts = [], []
    for threads in (1, 2, 3):
        module = convopt.optimize(model, threads=threads, deterministic=True, cache_dir=tmp_path)
        results += [module(x), module(x)]
        texts.append(module.summary())
    for result in results[1:]:
        np.testing.assert_array_equal(result, results[0])
    assert all("equal bits for every number of threads" in text for text in texts)


def test_options_that_contradict(tmp_path: Path) -> None:
    model = conv_model(parse_case("n=1,c=4,h=5,w=5,k=4,r=3,s=3"))
    with pytest.raises(InputError, match="tune measures all schedules"):
        convopt.optimize(model, tune=1.0, deterministic=True, cache_dir=tmp_path)
    with pytest.raises(InputError, match="more than 0"):
        convopt.optimize(model, tune=0.0, cache_dir=tmp_path)
