"""The models of what can't be timed here: bank conflicts from addresses, L2 hits from the order of blocks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from convopt.schedules.gpu_implicit_gemm import ImplicitGemm
from convopt.schedules.gpu_report import KernelReport, conflict_degrees
from convopt.schedules.primitives.l2_hit_rate import Panels, l2_hit_rate
from convopt.schedules.primitives.occupancy import Launch
from convopt.schedules.primitives.smem_padding import Banks, conflict_degree, epilogue_degree
from convopt.schedules.primitives.split_k import Parts
from convopt.schedules.primitives.swizzle import TileOrder
from convopt.targets import find_target
from tests.schedules.conv_cases import Case

BANKS = Banks(32)
CONTEST_4 = Case(1920, 640, (1, 32, 32), (1, 3, 3), begin=(0, 1, 1), end=(0, 1, 1), batch=2)
CONTEST_5 = Case(640, 640, (1, 64, 64), (1, 3, 3), begin=(0, 1, 1), end=(0, 1, 1), batch=2)


@pytest.mark.parametrize(
    ("starts", "size", "degree"),
    [
        (np.arange(32) * 4, 4, 1),  # neighbours
        (np.arange(32) * 8, 4, 2),  # every second word
        (np.arange(32) * 128, 4, 32),  # a column of rows of 32 words
        (np.arange(32) * 132, 4, 1),  # with one word of padding
        (np.zeros(32, int), 4, 1),  # one word for all
        (np.arange(32) * 2, 2, 1),  # two halves of a word
        (np.arange(32) * 16, 16, 1),  # 8 lanes at a time
        (np.arange(32) * 64, 16, 4),  # 16-byte reads of rows of 64 bytes
        (np.arange(32) * 80, 16, 1),  # padded by 16 bytes: 0, 20, 8, 28, 16, 4, 24, 12
        (np.arange(64) % 32 * 4, 4, 1),
    ],
)
def test_conflict_degree(starts: np.ndarray, size: int, degree: int) -> None:
    assert conflict_degree(starts, size, BANKS) == degree


@pytest.mark.parametrize(
    "chip", ["opencl", "cuda:sm_75", "cuda:sm_80", "rocm:gfx90a", "rocm:gfx1100", "dcu:k100-ai"]
)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_default_instances_have_no_conflicts_in_the_main_loop(chip: str, dtype: str) -> None:
    """And in the epilogue the fewest of all legal pads."""
    target = find_target(chip)
    for case in (CONTEST_5, Case(20, 27, (1, 9, 9), (1, 3, 3))):
        problem = replace(case, x_dtype=dtype, y_dtype=dtype).problem
        seen = set()
        for schedule in ImplicitGemm.space(problem, target):
            key = (schedule.shape, schedule.unit, schedule.pad, schedule.down)
            if key in seen or schedule.split_k > 1:
                continue
            seen.add(key)
            degrees = conflict_degrees(schedule, problem, target)
            assert (degrees.writes, degrees.reads) == (1, 1), schedule
            math, stores = schedule.math(problem), schedule.stores(problem)
            pads = range(0, 33, max(math.strip_step, min(4, stores[0])))
            banks = Banks(target.wave)
            least = min(epilogue_degree(math, schedule.block_n + pad, *stores, banks) for pad in pads)
            assert degrees.epilogue == least <= 2, schedule
        assert seen


@pytest.mark.parametrize("chip", ["cuda:sm_80", "dcu:k100-ai", "rocm:gfx90a"])
@pytest.mark.parametrize("case", [CONTEST_4, CONTEST_5])
def test_report_of_contest_cases(chip: str, case: Case) -> None:
    target = find_target(chip)
    problem = replace(case, x_dtype="float16", y_dtype="float16").problem
    plain = ImplicitGemm(128, 128, 32, 64, 32, 2, unit=target.matrix_units[0], swizzle=(4, 2))
    report = KernelReport.of(plain.padded(problem, target), problem, target)
    assert report.unpadded.reads >= 4 > report.conflicts.reads == 1
    assert 0.5 < report.unswizzled <= 1 and 0.5 < report.l2_hit_rate <= 1
    assert report.flops == 2 * problem.pixels * 640 * 9 * problem.channels


@pytest.mark.parametrize("group", [(1, 1), (4, 2), (3, 5), (8, 1), (1, 8)])
def test_every_tile_is_walked_once(group: tuple[int, int]) -> None:
    order = TileOrder(13, 7, group)
    tiles = [order.tile(block) for block in range(order.blocks)]
    inside = [(row, column) for row, column in tiles if row < 13 and column < 7]
    assert len(inside) == len(set(inside)) == 13 * 7
    assert order.has_surplus == (order.blocks > 13 * 7)
    x, y = group
    first = tiles[: x * y]
    assert {r for r, _ in first} == set(range(y)) and {c for _, c in first} == set(range(x))


def test_l2_hits_by_hand() -> None:
    """4 x 4 tiles, 4 blocks at a time, a cache for a step: rows load 5 panels of 8, squares 4."""
    target = replace(find_target("opencl"), compute_units=4, l2=8)
    panels = Panels(1, 1, 3)
    assert l2_hit_rate(TileOrder(4, 4), panels, target, 1) == pytest.approx(3 / 8)
    assert l2_hit_rate(TileOrder(4, 4, (2, 2)), panels, target, 1) == pytest.approx(4 / 8)


def test_swizzle_pays_on_wide_outputs() -> None:
    """108 blocks in rows of 64 load 66 panels of 216 each step; the cache holds two steps of them."""
    target, panels = replace(find_target("cuda:sm_80"), l2=1 << 20), Panels(8192, 8192, 8)
    rows = l2_hit_rate(TileOrder(64, 64), panels, target, 1)
    squares = l2_hit_rate(TileOrder(64, 64, (8, 8)), panels, target, 1)
    assert rows == pytest.approx(0.69, abs=0.01) and squares > 0.85


def test_parts_cover_the_reduction() -> None:
    assert Parts(20, 4).range(0) == (0, 5)
    assert Parts(20, 4).range(3) == (15, 5)
    assert Parts(3, 4).why_not() == "4 parts of 3 steps of the reduction"
    assert Parts(9, 8).why_not() == "8 parts of 2 of 9 steps leave the last one empty"


def test_resident_blocks() -> None:
    """A100: 65536 registers, 164 KB, 64 waves of 32."""
    a100 = find_target("cuda:sm_80")
    assert Launch(1, 256, 64, 0).resident(a100) == 4  # 65536 / (256 * 64)
    assert Launch(1, 256, 32, 48 << 10).resident(a100) == 3  # 164 / 48
    assert Launch(1, 1024, 16, 0).resident(a100) == 2  # 64 waves
    assert Launch(1, 256, 57, 0).resident(a100) == 4  # given out in eights
    assert Launch(1, 256, 64, 0).occupancy(a100) == 0.5
