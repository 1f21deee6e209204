"""Plans on GPUs, by the same questions as on CPUs: in order, valid, of every algorithm, records first."""

from __future__ import annotations

from dataclasses import replace

import pytest

from convopt.schedules.conv_problem import ConvProblem
from convopt.schedules.gpu_implicit_gemm import ImplicitGemm
from convopt.selection.conv_plan import ConvPlan, from_json, to_json
from convopt.selection.plans import CAP, choose_plan, decide, plan_seconds, ranked, why_not
from convopt.targets import GPU_TARGETS, GpuTarget
from convopt.targets.cpu import HASWELL
from tests.tuning.problems import conv, halves

CASES = [
    (GPU_TARGETS["opencl"], conv(n=3, c=20, size=13, k=24, stride=2)),
    (GPU_TARGETS["dcu:k100-ai"], halves(conv(n=2, c=64, size=14, k=72))),
    (GPU_TARGETS["cuda:sm_90"], halves(conv(n=2, c=3, size=14, k=40))),
]
OPENCL, PROBLEM = CASES[0]


class One:
    """Records with one plan for everything."""

    def __init__(self, plan: ConvPlan) -> None:
        self.plan = plan

    def find(self, problem: ConvProblem, target: GpuTarget, threads: int) -> ConvPlan:
        return self.plan


@pytest.mark.parametrize(
    ("target", "problem"),
    [
        pytest.param(*case, id=case[0].name, marks=[] if case is CASES[0] else pytest.mark.slow)
        for case in CASES
    ],
)
def test_the_order_of_the_plans(target: GpuTarget, problem: ConvProblem) -> None:
    order = ranked(problem, target, 1)
    plans, seconds = zip(*order, strict=True)
    assert list(seconds) == sorted(seconds) and len(set(plans)) == len(plans) > 64
    assert {(p.schedule.name, p.expand_col > 0) for p in plans} >= {
        ("implicit_gemm", False), ("implicit_gemm", True), ("gpu-direct", False), ("gpu-direct", True)
    }  # fmt: skip
    for plan in plans[::17]:
        assert why_not(plan, problem, target) is None
        assert from_json(to_json(plan)) == plan
    untuned = plan_seconds(choose_plan(problem, target, 1), problem, target, 1)
    assert seconds[0] <= untuned <= 1.1 * seconds[0]


def test_first_come_tiles_that_differ_by_more_than_the_order_of_their_blocks() -> None:
    tiles = [p.schedule for p, _ in ranked(PROBLEM, OPENCL, 1) if isinstance(p.schedule, ImplicitGemm)]
    forms = [(p.expand_col, replace(p.schedule, swizzle=(1, 1))) for p, _ in ranked(PROBLEM, OPENCL, 1)
             if isinstance(p.schedule, ImplicitGemm)]  # fmt: skip
    assert len(set(forms)) == len(forms) == len(tiles)


def test_a_record_comes_before_the_estimate_unless_it_does_not_fit() -> None:
    slowest = ranked(PROBLEM, OPENCL, 1)[-1][0]
    untuned = choose_plan(PROBLEM, OPENCL, 1)
    assert decide(PROBLEM, OPENCL, 1, "auto", CAP, One(slowest)) == slowest != untuned
    assert decide(PROBLEM, OPENCL, 1, "direct", CAP, One(slowest)).schedule.name == "gpu-direct"
    too_large = ConvPlan(ImplicitGemm(256, 256, 64, 8, 8, stages=3))
    assert why_not(too_large, PROBLEM, OPENCL) is not None
    assert decide(PROBLEM, OPENCL, 1, "auto", CAP, One(too_large)) == untuned
    alien = choose_plan(PROBLEM, HASWELL, 1)
    assert "is none of implicit_gemm" in str(why_not(alien, PROBLEM, OPENCL))
    assert decide(PROBLEM, OPENCL, 1, "auto", CAP, One(alien)) == untuned
    pointwise = replace(PROBLEM, kernel=(1, 1, 1), pads=(0, 0, 0))
    assert why_not(ConvPlan(untuned.schedule, 1), pointwise, OPENCL) == "nothing to unfold"
