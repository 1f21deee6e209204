"""What nvcc, LLVM and clang make of the GPU kernels: no spills, the units' instructions, the said memory."""

from __future__ import annotations

import random
from functools import cache

import pytest

from convopt.schedules.gpu_implicit_gemm import ImplicitGemm
from convopt.targets import find_target
from tests.compile_gate import Instance, faults
from tests.schedules.conv_cases import SUM_RELU, Case
from tests.schedules.gpu_conv_cases import typed
from tests.schedules.gpu_family_cases import families
from tests.schedules.pairwise import pairwise

pytestmark = pytest.mark.compilers

SAME = {"kernel": (1, 3, 3), "begin": (0, 1, 1), "end": (0, 1, 1)}
# The contest's convolutions, and what they don't have: a stem, groups, strides, planar memory, an operand.
CASES = {
    "K=27": Case(128, 27, (1, 64, 64), batch=16, **SAME),  # type: ignore[arg-type]
    "K=4": Case(320, 4, (1, 64, 64), batch=2, **SAME),  # type: ignore[arg-type]
    "long": Case(1920, 640, (1, 32, 32), batch=2, **SAME),  # type: ignore[arg-type]
    "residual": Case(64, 128, (1, 17, 17), batch=4, epilogue=SUM_RELU, others=("full",), **SAME),  # type: ignore[arg-type]
    "stem": Case(3, 64, (1, 224, 224), (1, 7, 7), (1, 2, 2), begin=(0, 3, 3), end=(0, 3, 3)),
    "grouped": Case(32, 48, (1, 27, 29), (1, 3, 3), (1, 2, 1), (1, 1, 2), (0, 1, 0), (0, 0, 2), groups=4),
    "planar": Case(24, 64, (1, 30, 31), x_planar=True, y_gap=8, **SAME),  # type: ignore[arg-type]
    "1x1": Case(256, 130, (1, 56, 56)),
}
CUDA = ("cuda:sm_75", "cuda:sm_80", "cuda:sm_90")
ROCM, HIP = ("rocm:gfx90a", "rocm:gfx942"), ("hip:gfx90a", "hip:gfx942")
DTYPES = ("float32", "float16", "bfloat16", "tf32")
SAMPLE = 250  # of each chip, type and case

Candidate = tuple[str, str, str, ImplicitGemm]


def _settings(candidate: Candidate) -> dict[str, object]:
    chip, dtype, case, s = candidate
    return {
        "chip": chip, "type": dtype, "case": case, "pipeline": (s.stages, s.async_copy),
        "tile": (s.unit, s.block_m, s.block_n, s.part_m), "depth": s.block_k,
        "split": (s.split_k > 1, s.atomic), "swizzle": s.swizzle,
    }  # fmt: skip


@cache
def _cover(chips: tuple[str, ...]) -> list[Candidate]:
    """Instances that `space` offers by default, in which every pair of settings occurs."""
    found: list[Candidate] = []
    for chip in chips:
        for dtype in DTYPES if find_target(chip).has_tf32 else DTYPES[:3]:
            for name, case in CASES.items():
                space = list(ImplicitGemm.space(typed(case, dtype).problem, find_target(chip)))
                some = random.Random(0).sample(space, min(SAMPLE, len(space)))
                found += [(chip, dtype, name, schedule) for schedule in some]
    return pairwise(found, _settings)


def _faults_of(candidates: list[Candidate]) -> list[str]:
    found = []
    for chip in sorted({c[0] for c in candidates}):
        instances = [
            Instance(s, typed(CASES[case], dtype).problem) for c, dtype, case, s in candidates if c == chip
        ]
        found += faults(instances, find_target(chip))
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    "chips", [CUDA, ROCM, ("rocm:gfx1100",), HIP], ids=["cuda", "rocm", "gfx1100", "hip"]
)
def test_every_pair_of_settings(chips: tuple[str, ...]) -> None:
    cover = _cover(chips)
    assert len(cover) >= 60 and {c[0] for c in cover} == set(chips)
    assert _faults_of(cover) == []


@pytest.mark.parametrize(("chip", "dtype"), [
    ("cuda:sm_80", "float16"), ("cuda:sm_75", "float16"), ("cuda:sm_90", "tf32"),
    ("rocm:gfx90a", "float16"), ("rocm:gfx1100", "float16"), ("rocm:gfx942", "float32"),
    *(pytest.param(chip, dtype, marks=pytest.mark.slow) for chip, dtype in (
        ("cuda:sm_90", "bfloat16"), ("cuda:sm_80", "float32"), ("cuda:sm_80", "tf32"),
        ("rocm:gfx942", "bfloat16"), ("rocm:gfx90a", "float32"), ("hip:gfx90a", "float32"),
    )),
])  # fmt: skip
def test_the_widest_and_the_narrowest(chip: str, dtype: str) -> None:
    """Of every unit, the largest tile, and the smallest with all that can be switched on."""
    problem = typed(CASES["residual"], dtype).problem
    space = list(ImplicitGemm.space(problem, find_target(chip)))
    instances = []
    for unit in sorted({s.unit for s in space}):
        forms = [s for s in space if s.unit == unit]
        instances += [
            Instance(max(forms, key=lambda s: (s.block_m * s.block_n, s.stages, s.async_copy)), problem),
            Instance(min(forms, key=lambda s: (s.block_m * s.block_n, -s.stages, -s.split_k)), problem),
        ]
    assert faults(instances, find_target(chip)) == []


@pytest.mark.parametrize(("chip", "dtype"), [("cuda:sm_80", "float16"), ("rocm:gfx90a", "float32")])
def test_other_families(chip: str, dtype: str) -> None:
    """One instance of each, the widest."""
    firsts: dict[type, Instance] = {}
    for instance in families(dtype, find_target(chip)):
        firsts.setdefault(type(instance.schedule), instance)
    assert len(firsts) == 10
    assert faults(list(firsts.values()), find_target(chip)) == []


@pytest.mark.slow
@pytest.mark.parametrize("chip", [*CUDA, *ROCM, *HIP, "rocm:gfx1100"])
def test_other_families_on_every_chip(chip: str) -> None:
    instances = [i for dtype in DTYPES[:3] for i in families(dtype, find_target(chip))]
    assert len(instances) > 100
    assert faults(instances, find_target(chip)) == []
