"""The rule on GPUs."""

from __future__ import annotations

import pytest

from convopt.bench.cases import conv_problem, parse_case
from convopt.selection.rule_gpu import gpu_rule, matrix_machine, simt_machine
from convopt.targets import find_target


@pytest.mark.parametrize("name", ["dcu:k100-ai", "cuda:sm_90", "rocm:gfx90a"])
def test_a_selection_on_a_gpu_obeys_its_steps(name: str) -> None:
    target = find_target(name)
    problem = conv_problem(parse_case("n=16,c=256,h=32,w=32,k=256,r=3,s=3,pad=1"), "float16")
    for unit in ("simt", target.matrix_units[0]):
        selection = gpu_rule(problem, target, unit)
        machine = selection.machine
        for before, after in zip(selection.steps, selection.steps[1:], strict=False):
            assert set(after.kept) | set(after.dropped) == set(before.kept)
            assert not set(after.kept) & set(after.dropped)
        chosen = selection.chosen
        assert chosen.threads <= target.most_threads and chosen.shared <= target.shared_per_block
        assert chosen.blocks(selection.size) >= target.compute_units * machine.resident(chosen)
        # Nothing that fills the machine has more reuse.
        assert all(i.reuse <= chosen.reuse for i in selection.steps[2].kept)
        if unit == "simt":
            assert min(chosen.threads_m, chosen.threads_n) >= 16
            assert max(chosen.threads_m, chosen.threads_n) <= target.most_threads // 16


def test_the_rule_does_not_know_split_k() -> None:
    """Case 4 of the contest: too few tiles for 120 units, and the rule only makes them smaller."""
    target = find_target("dcu:k100-ai")
    problem = conv_problem(parse_case("n=2,c=1920,h=32,w=32,k=640,r=3,s=3,pad=1"), "float16")
    chosen = gpu_rule(problem, target, "mmac.16x16x16").chosen
    assert chosen.config.split_k == 1
    assert chosen.block_m * chosen.block_n < 128 * 128


def test_machines_come_from_the_target() -> None:
    target = find_target("cuda:sm_80")
    machine = simt_machine(target)
    assert (machine.side, machine.compute_units) == ((16, 64), 108)
    assert matrix_machine(target, (16, 8)).side is None
