"""What `convopt choices` counts, against figures made by hand; and the command itself."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from convopt.cli import choices as command
from convopt.cli.main import main
from convopt.codegen.cache import KernelCache
from convopt.lowering.base import LoweringOptions
from convopt.selection.plans import choose_plan, plan_seconds, ranked
from convopt.targets import GPU_TARGETS, host_cpu
from convopt.targets.cpu import HASWELL
from convopt.tuning import choices
from convopt.tuning.candidate import _digest
from convopt.tuning.choices import SPACE, kendall_tau, quality, rule_plan, small_space
from convopt.tuning.identity import task_key
from convopt.tuning.runner import Probe
from convopt.tuning.store import Store, Trial
from tests.cli.fields import undocumented
from tests.tuning.problems import conv

OPTIONS = LoweringOptions(HASWELL, 2)
PROBLEM = conv(n=2, c=32, size=14, k=48, stride=2)


def test_tau() -> None:
    assert kendall_tau([1.0, 2.0, 3.0]) == 1.0
    assert kendall_tau([3.0, 2.0, 1.0]) == -1.0
    assert kendall_tau([1.0, 3.0, 2.0]) == pytest.approx(1 / 3)
    assert kendall_tau([2.0, 2.0]) == 0.0


def test_the_small_space_has_every_algorithm_good_plans_and_bad_ones() -> None:
    space = small_space(PROBLEM, OPTIONS)
    order = [plan for plan, _ in ranked(PROBLEM, HASWELL, 2)]
    assert len(space) == len(set(space)) >= SPACE
    assert space[:24] == order[:24]
    assert {(p.schedule.name, p.expand_col > 0) for p in order} == {
        (p.schedule.name, p.expand_col > 0) for p in space
    }
    assert max(order.index(plan) for plan in space) > len(order) * 3 // 4
    assert choose_plan(PROBLEM, HASWELL, 2) in space and rule_plan(PROBLEM, OPTIONS) in space


def test_the_small_space_of_a_gpu_has_the_choices_too() -> None:
    options = LoweringOptions(GPU_TARGETS["opencl"], 1)
    problem = conv(n=2, c=32, size=14, k=64)
    space, first, rule = (
        small_space(problem, options), choose_plan(problem, options.target, 1), rule_plan(problem, options)
    )  # fmt: skip
    assert len(set(space)) == len(space) >= SPACE and first in space and rule in space
    seconds = [plan_seconds(plan, problem, options.target, 1) for plan in space]
    assert seconds == sorted(seconds)


def test_quality_is_what_the_times_say(tmp_path: Path) -> None:
    """Times as if the model's order were right but for one plan, twice as fast as its first."""
    space = small_space(PROBLEM, OPTIONS)
    key = task_key(PROBLEM, HASWELL, 2)
    with Store(tmp_path / "s.sqlite3") as store:
        assert quality(PROBLEM, OPTIONS, store) is None
        for place, plan in enumerate(space):
            store.add_trial(key, Trial(plan, 0.5 if place == 20 else 1.0 + place))
        found = quality(PROBLEM, OPTIONS, store)
        assert found is not None and found.space == 1.0
        wider = next(plan for plan, _ in ranked(PROBLEM, HASWELL, 2) if plan not in space)
        store.add_trial(key, Trial(wider, 0.25))
        found = quality(PROBLEM, OPTIONS, store)
    assert found is not None and found.complete and found.space == 0.5
    assert (found.best_seconds, found.first, found.top8) == (0.5, 0.5, 0.5)
    pairs = len(space) * (len(space) - 1) // 2
    assert found.tau == pytest.approx(1 - 2 * 20 / pairs)
    assert found.rule == 0.5 / (1.0 + space.index(rule_plan(PROBLEM, OPTIONS)))


@pytest.mark.kernels
def test_the_command_goes_on_where_it_was(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    case = "n=1,c=8,h=5,w=5,k=8,r=1,s=1"
    argv = ["choices", "--conv", case, "--threads", "1", "--cache-dir", str(tmp_path), "--json"]
    counts = []
    for budget in ("1s", "200s"):
        assert main([*argv, "--budget", budget]) == 0
        document = json.loads(capsys.readouterr().out)
        assert undocumented(document, command.COMMAND.fields) == set()
        counts.append(sum(one["measured"] for one in document["convs"]))
        command.COMMAND.show(document)
        capsys.readouterr()
    (one,) = document["convs"]
    assert counts[1] > counts[0] and one["complete"]
    assert 0 < one["first"] <= one["top8"] <= 1 and -1 <= one["tau"] <= 1


class LuckyProbes:
    """A Runner whose quick times are luck: the first choice's is twice its true one, which a race finds."""

    def __init__(self, first: str) -> None:
        self.first, self.raced = first, []

    def reset(self) -> None:
        pass

    def probe(self, path: Path, reference: Path, tolerance: float, timeout: float) -> Probe:
        return Probe(2.0 if path.name == self.first else 1.5)

    def race(self, paths: Sequence[Path], seconds: float, timeout: float) -> list[list[float]]:
        self.raced = [path.name for path in paths]
        return [[1.2, 1.0] if path.name == self.first else [1.6, 1.5] for path in paths]

    def close(self) -> None:
        pass


@pytest.mark.kernels
def test_the_fastest_and_the_choices_are_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first choice was unlucky, and is not among the fastest."""
    problem, options = conv(c=8, size=5, k=8), LoweringOptions(host_cpu(), 1)
    first = choose_plan(problem, options.cpu, 1)
    order = [plan for plan, _ in ranked(problem, options.cpu, 1)]
    assert first == order[0]
    monkeypatch.setattr(choices, "small_space", lambda *_: order[:5])
    monkeypatch.setattr(choices, "FINALISTS", 2)
    runner = LuckyProbes(f"{_digest(first)}.convopt")
    with Store(tmp_path / "s.sqlite3") as store:
        end = time.monotonic() + 200
        raced = choices.measure_space(problem, options, store, KernelCache(tmp_path), runner, end)
        found = quality(problem, options, store, raced)
        # What was once measured on a faster machine does not count against what ran in turn.
        store.add_trial(task_key(problem, options.cpu, 1), Trial(order[1], 0.1))
        again = quality(problem, options, store, raced)
        alone = quality(problem, options, store)
    assert found is not None and (found.best_seconds, found.first) == (1.0, 1.0)
    assert again is not None and (again.best_seconds, again.first) == (1.0, 1.0)
    assert alone is not None and (alone.best_seconds, alone.first) == (0.1, 0.1)
    assert runner.first in runner.raced and len(runner.raced) >= 3
