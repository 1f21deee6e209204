"""The implicit GEMM conv on PoCL against float64: every pair of settings, every kind of shape, all chips."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache
from itertools import groupby

import numpy as np
import pytest

from convopt.schedules.gpu_implicit_gemm import ImplicitGemm
from convopt.schedules.primitives.expression import unary
from convopt.schedules.primitives.vector_width import ITEMSIZE, access_width
from convopt.targets import GpuTarget, find_target
from convopt.targets.matrix_units import MATRIX_UNITS
from tests.schedules.conv_cases import FMA, SUM_RELU, Case, Data
from tests.schedules.gpu_conv_cases import TOLERANCE, check_all, compute, draw, typed
from tests.schedules.pairwise import pairwise
from tests.unit_emulation import EMULATED

pytestmark = pytest.mark.opencl

RELU = (unary("relu"), lambda s: np.maximum(s, 0))
# Tails in M, N and K; K = 27 and K = 4 output channels; groups, strides, dilations, one-sided pads; batch 1
# and 3; channels that no vector divides; planar input; a long reduction on a small image; many channels.
CASES = {
    "tails": Case(
        20, 27, (1, 9, 9), (1, 3, 3), begin=(0, 1, 1), end=(0, 1, 1), epilogue=SUM_RELU, others=("full",)
    ),
    "K=4": Case(40, 4, (1, 8, 8), (1, 3, 3), begin=(0, 1, 1), end=(0, 1, 1), batch=3, epilogue=RELU),
    "grouped": Case(
        8, 12, (1, 11, 7), (1, 3, 2), (1, 2, 1), (1, 1, 2), begin=(0, 1, 0), end=(0, 0, 2), groups=3,
        epilogue=FMA, others=("row", "pixel"),
    ),
    "stem": Case(3, 32, (1, 15, 17), (1, 7, 7), (1, 2, 2), begin=(0, 3, 3), end=(0, 3, 3), bias=False),
    "planar": Case(6, 16, (1, 10, 13), (1, 3, 3), begin=(0, 1, 1), end=(0, 1, 1), x_planar=True, y_gap=8),
    "gemm": Case(72, 130, (1, 1, 50), batch=3, epilogue=SUM_RELU, others=("scalar",)),
    "long": Case(192, 40, (1, 4, 4), (1, 3, 3), begin=(0, 1, 1), end=(0, 1, 1), batch=2),
    "cube": Case(4, 8, (5, 6, 7), (3, 3, 3), begin=(1, 1, 1), end=(1, 1, 1)),
}  # fmt: skip
# (chip, input type, cases): each unit on each type that it takes.
COVER = (
    ("opencl", "float32", ("tails", "grouped", "planar", "cube")),
    ("opencl", "float16", ("K=4", "stem")),
    ("cuda:sm_80", "float16", ("tails", "gemm")),
    ("cuda:sm_75", "float16", ("K=4",)),
    ("cuda:sm_80", "tf32", ("tails",)),
    ("cuda:sm_90", "bfloat16", ("long",)),
    ("rocm:gfx90a", "float16", ("long", "grouped")),
    ("rocm:gfx90a", "float32", ("tails", "stem")),
    ("rocm:gfx942", "bfloat16", ("K=4",)),
    ("rocm:gfx1100", "float16", ("gemm",)),
    ("dcu:k100-ai", "float16", ("tails", "stem")),
    ("dcu:k100-ai", "float32", ("grouped",)),
)
SAMPLE = 60  # of each chip, type and case


@cache
def _data(case: str, dtype: str) -> Data:
    return draw(typed(CASES[case], dtype))


Candidate = tuple[str, str, str, ImplicitGemm]


@cache
def _candidates(sample: int, seed: int) -> list[Candidate]:
    found: list[Candidate] = []
    for chip, dtype, cases in COVER:
        for case in cases:
            problem = typed(CASES[case], dtype).problem
            space = list(ImplicitGemm.space(problem, find_target(chip), "all"))
            some = random.Random(seed).sample(space, min(sample, len(space)))
            found += [(chip, dtype, case, schedule) for schedule in some]
    return found


def _settings(candidate: Candidate) -> dict[str, object]:
    chip, dtype, case, s = candidate
    return {
        "chip": (chip, dtype), "case": case, "unit": s.unit, "stages": s.stages,
        "copies": s.async_copy, "split": (s.split_k > 1, s.atomic), "swizzle": s.swizzle,
        "padded": s.pad != (0, 0, 0), "epilogue": s.epilogue, "vector": s.vector,
    }  # fmt: skip


def _program(candidate: Candidate) -> int:
    """Kernels of one chip and type go into one program."""
    return [row[:2] for row in COVER].index(candidate[:2])


def _small(candidate: Candidate) -> bool:
    """Quick to compile on a CPU; the large tiles are the same code with longer loops."""
    s = candidate[3]
    return s.block_m * s.block_n <= 64 * 32 and s.block_k <= 32


def _check(candidates: list[Candidate]) -> None:
    for (chip, dtype), some in groupby(candidates, lambda candidate: candidate[:2]):
        check_all([(schedule, _data(case, dtype)) for _, _, case, schedule in some], find_target(chip))


@pytest.mark.parametrize("part", range(2))
def test_every_pair_of_settings(part: int) -> None:
    chosen = sorted(pairwise(list(filter(_small, _candidates(SAMPLE, 0))), _settings), key=_program)
    assert len(chosen) > 32
    _check([candidate for candidate in chosen if _program(candidate) % 2 == part])


@pytest.mark.slow
def test_many_more() -> None:
    _check(sorted(_candidates(12, 1), key=_program))


# All cases on two chips, on the others those that differ most.
SPACES = [
    (chip, case)
    for chip in ("opencl", "dcu:k100-ai", "cuda:sm_75", "cuda:sm_80", "rocm:gfx90a")
    for case in CASES
    if chip in ("opencl", "dcu:k100-ai") or case in ("tails", "stem", "long")
]


@pytest.mark.parametrize(("chip", "case"), SPACES)
def test_the_space_is_large_and_varied(chip: str, case: str) -> None:
    """At least 64 configurations each, none of which refuses, and every primitive among them on and off."""
    target = find_target(chip)
    for dtype in ("float32", "float16"):
        problem = typed(CASES[case], dtype).problem
        space = list(ImplicitGemm.space(problem, target, "all"))
        assert len(space) == len(set(space)) >= 64
        assert len(list(ImplicitGemm.space(problem, target))) >= 64
        for field in ("block_m", "block_k", "stages", "split_k", "swizzle", "pad", "epilogue", "vector"):
            assert len({getattr(s, field) for s in space}) > 1, field
        units = {name for name in target.matrix_units if MATRIX_UNITS[name].takes(dtype, "float32")}
        assert {s.unit for s in space} == {"simt", *units}
        copies = target.async_copy and access_width(problem.x, 5) * ITEMSIZE[dtype] >= 4
        assert {s.async_copy for s in space} == ({False, True} if copies else {False})


def _split(target: GpuTarget, problem: object, **fields: object) -> ImplicitGemm:
    plain = ImplicitGemm(32, 32, 16, 2, 2, split_k=4)
    return replace(plain, **fields).padded(problem, target)  # type: ignore[arg-type]


def test_deterministic_split_gives_equal_bits_in_20_runs() -> None:
    data, target = _data("long", "float16"), find_target("opencl")
    schedule = _split(target, data.case.problem)
    first = compute(schedule, data, target).y
    for _ in range(20):
        assert np.array_equal(compute(schedule, data, target).y, first)


@pytest.mark.parametrize("atomic", [False, True])
def test_partial_sums_beyond_half_precision(atomic: bool) -> None:
    """Partial sums of 2e5, three times fp16's largest number, whose total is 0: they must be float32."""
    case = Case(512, 8, (1, 2, 2))
    data = draw(typed(case, "float16"))
    data.x[...] = 40.0
    data.weight[:, :, :256] = 20.0
    data.weight[:, :, 256:] = -20.0
    data.expected = np.zeros(data.expected.shape)
    if data.bias is not None:
        data.expected += data.bias.astype(np.float64)[:, None, None, None, None, :]
    target = find_target("opencl")
    schedule = _split(target, data.case.problem, split_k=2, atomic=atomic)
    assert 40 * 20 * 256 > 65504
    assert compute(schedule, data, target).error <= 2e-3


def test_atomic_split_starts_from_zero_every_time() -> None:
    data, target = _data("long", "float32"), find_target("opencl")
    schedule = _split(target, data.case.problem, atomic=True)
    assert compute(schedule, data, target, times=3).error <= 1e-5


@pytest.mark.parametrize("explicit", [False, True])
def test_mmac_with_all_primitives_on_and_with_the_layout_of_mfma(explicit: bool) -> None:
    """Implicit GEMM and the explicit one of a 1x1 conv: swizzle, split-K, pads, pipeline, epilogue."""
    data, target = _data("gemm" if explicit else "tails", "float16"), find_target("dcu:k100-ai")
    name = "mmac.16x16x16"
    plain = ImplicitGemm(64, 32, 32, 32, 16, stages=2, split_k=2, swizzle=(3, 2), unit=name)
    schedule = plain.padded(data.case.problem, target)
    assert max(schedule.pad[:2]) > 0 and schedule.epilogue == "shared"
    assert compute(schedule, data, target).error <= 2e-3
    as_mfma = replace(EMULATED[name], c=EMULATED["mfma.16x16x16"].c)
    assert compute(schedule, data, target, {name: as_mfma}).error > 0.01


@pytest.mark.parametrize(
    ("name", "split"),
    [("wmma.m16n16k16.f16", 2), pytest.param("wmma.m16n16k16.bf16", 1, marks=pytest.mark.slow)],
)
def test_any_layout_will_do_where_the_unit_keeps_its_own(name: str, split: int) -> None:
    """Another secret for loads, products and stores alike; sums of an atomic split go by shared memory."""
    target, dtype = find_target("cuda:sm_80"), EMULATED[name].dtypes[0]
    data, unit = _data("tails", dtype), EMULATED[name]
    plain = ImplicitGemm(64, 32, 32, 32, 16, stages=2, split_k=split, atomic=split > 1, unit=name)
    schedule = plain.padded(data.case.problem, target)
    assert schedule.through_shared and schedule.pad[2] % 4 == 0
    (row, column), allowed = unit.c, TOLERANCE[dtype]
    assert compute(schedule, data, target).error <= allowed
    other = {name: replace(unit, a=(f"({unit.a[0]}) ^ 4", unit.a[1]), c=(f"15 - ({row})", column))}
    assert compute(schedule, data, target, other).error > 0.01, "the loads and stores did not follow"
    assert compute(schedule, data, target, other, moves=other).error <= allowed


def test_tf32_is_for_those_who_ask_for_it() -> None:
    """Factors of more bits are rounded to nearest: off by up to 2^-11 each, by more than float32 leaves."""
    target, asked = find_target("cuda:sm_80"), replace(CASES["tails"], arithmetic="tf32")
    schedule = ImplicitGemm(64, 32, 32, 32, 16, unit="mma.m16n8k8").padded(asked.problem, target)
    refusal = schedule.why_not(CASES["tails"].problem, target)
    assert refusal == "mma.m16n8k8 multiplies in tf32, which was not asked for"
    data = draw(CASES["tails"])
    data.case = asked
    assert 1e-5 < compute(schedule, data, target).error < 1e-3
    assert target.unit_of("float32", "tf32") == "mma.m16n8k8" and target.unit_of("float32") == "simt"


def test_an_opaque_layout_is_not_stored_directly() -> None:
    target, problem = find_target("cuda:sm_80"), _data("tails", "float16").case.problem
    direct = ImplicitGemm(32, 32, 32, 32, 32, unit="wmma.m16n16k16.f16", epilogue="direct")
    assert "only wmma.m16n16k16.f16 itself knows" in str(direct.why_not(problem, target))
    uneven = replace(direct, epilogue="shared", pad=(8, 8, 2))
    assert "no multiples of 4 elements" in str(uneven.why_not(problem, target))


# Of units whose layouts are of one kind, one now and the others where there is time.
LATER = ("mfma.32x32x8", "mfma.32x32x2", "mmac.16x16x16", "wmma.m16n16k16.bf16")


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow) if n in LATER else n for n in EMULATED]
)
def test_a_permuted_layout_fails(name: str) -> None:
    """With rows or columns of one operand exchanged in the unit, the kernel's result is wrong."""
    chip = next(c for c, _, _ in COVER if name in find_target(c).matrix_units)
    target, unit, dtype = find_target(chip), EMULATED[name], EMULATED[name].dtypes[0]
    data = _data("long", "tf32" if unit.tf32 else dtype)
    plain = ImplicitGemm(32, 32, 32, 32, 32, stages=2, unit=name)
    schedule = plain.padded(data.case.problem, target)
    assert compute(schedule, data, target).error <= TOLERANCE[dtype]
    swapped = {f: (f"(({getattr(unit, f)[0]}) ^ 1)", getattr(unit, f)[1]) for f in "abc"}
    turned = {"c": unit.c[::-1]} if unit.m == unit.n else {}
    for field, layout in (*swapped.items(), *turned.items()):
        wrong = {name: replace(unit, **{field: layout})}
        assert compute(schedule, data, target, wrong).error > 0.01, field
