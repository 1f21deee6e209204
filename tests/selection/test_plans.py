"""Plans: the untuned choice, records before it, JSON and back, and how many instances selection prices."""

from __future__ import annotations

from statistics import median
from typing import Any

import pytest

from convopt.bench.cases import conv_problem, parse_case
from convopt.bench.suites import suite
from convopt.selection import choose, plans
from convopt.selection.choose import choose_conv
from convopt.selection.conv_plan import ConvPlan, from_json, to_json
from convopt.selection.plans import choose_plan, decide, ranked
from convopt.targets.cpu import HASWELL, SKYLAKE_AVX512

PROBLEM = conv_problem(parse_case("n=2,c=64,h=14,w=14,k=64,r=3,s=3,stride=2,pad=1"))
CAP = 64 << 20


class One:
    """Records with one plan for everything."""

    def __init__(self, plan: ConvPlan) -> None:
        self.plan = plan

    def find(self, problem, target, threads: int) -> ConvPlan:
        return self.plan


def test_a_record_comes_before_the_estimate() -> None:
    slowest = ranked(PROBLEM, HASWELL, 2)[-1][0]
    assert decide(PROBLEM, HASWELL, 2, "auto", CAP, One(slowest)) == slowest
    assert decide(PROBLEM, HASWELL, 2, "auto", CAP, None) == choose_plan(PROBLEM, HASWELL, 2)


def test_a_record_that_does_not_fit_is_not_used() -> None:
    wide = ranked(PROBLEM, SKYLAKE_AVX512, 2)
    alien = next(plan for plan, _ in wide if plans.why_not(plan, PROBLEM, HASWELL, CAP) is not None)
    assert decide(PROBLEM, HASWELL, 2, "auto", CAP, One(alien)) == choose_plan(PROBLEM, HASWELL, 2)


def test_an_algorithm_that_was_asked_for_is_not_overruled() -> None:
    unfolded = next(plan for plan, _ in ranked(PROBLEM, HASWELL, 1) if plan.expand_col)
    assert decide(PROBLEM, HASWELL, 1, "direct", CAP, One(unfolded)).expand_col == 0
    assert decide(PROBLEM, HASWELL, 1, "im2col", CAP, None).expand_col > 0


def test_the_untuned_choice_is_the_cheapest_plan() -> None:
    for case in ("n=1,c=64,h=28,w=28,k=64,r=3,s=3,pad=1", "n=1,c=48,h=9,w=9,k=40,r=1,s=1"):
        problem = conv_problem(parse_case(case))
        order = ranked(problem, HASWELL, 2)
        assert [seconds for _, seconds in order] == sorted(seconds for _, seconds in order)
        chosen = choose_plan(problem, HASWELL, 2)
        assert plans.plan_seconds(chosen, problem, HASWELL, 2, CAP) == order[0][1]


def test_every_algorithm_is_among_the_plans() -> None:
    found = ranked(conv_problem(parse_case("n=4,c=32,h=14,w=14,k=64,r=3,s=3,pad=1")), HASWELL, 1)
    names = {(plan.schedule.name, plan.expand_col) for plan, _ in found}
    assert {("direct", 0), ("winograd", 0), ("direct", 1), ("direct", 2), ("direct", 4)} <= names
    assert len(found) == len({plan for plan, _ in found}) >= 64


def test_json_and_back() -> None:
    for plan, _ in ranked(PROBLEM, HASWELL, 1)[::37]:
        assert from_json(to_json(plan)) == plan


@pytest.mark.parametrize(
    "damage",
    [{"family": "unknown"}, {"config": {}}, {"config": None}, {"expand_col": -1}, {"expand_col": "1"}],
)
def test_what_is_no_plan(damage: dict[str, object]) -> None:
    good = to_json(choose_plan(PROBLEM, HASWELL, 1))
    with pytest.raises(ValueError):
        from_json(good | damage)
    with pytest.raises(ValueError):
        from_json(None)


def test_few_instances_are_priced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the thousands in the spaces: what makes the choice quick. `convopt choices` prints its time."""
    priced: list[int] = []
    price = choose.conv_seconds

    def counted(*arguments: Any) -> float:
        priced[-1] += 1
        return price(*arguments)

    monkeypatch.setattr(choose, "conv_seconds", counted)
    choose_conv.cache_clear()
    for case, _ in suite("resnet50"):
        priced.append(0)
        choose_plan(conv_problem(case), HASWELL, 2)
    assert 0 < median(priced) < 100 and max(priced) < 300
