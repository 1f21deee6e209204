"""Which family computes a convolution on a GPU."""

from __future__ import annotations

from dataclasses import replace

import pytest

from convopt.bench.cases import conv_problem, parse_case
from convopt.bench.suites import suite
from convopt.schedules.gpu_conv_depthwise import GpuDepthwise
from convopt.schedules.gpu_conv_direct import GpuDirectConv
from convopt.schedules.gpu_implicit_gemm import ImplicitGemm
from convopt.selection.choose_gpu import choose_gpu_conv
from convopt.targets import GPU_TARGETS, find_target


@pytest.mark.parametrize("name", sorted(GPU_TARGETS))
def test_every_chip_takes_the_contest(name: str) -> None:
    target = find_target(name)
    for case, _ in suite("contest"):
        for dtype in ("float32", "float16"):
            problem = conv_problem(case, dtype)
            chosen = choose_gpu_conv(problem, target)
            assert isinstance(chosen, ImplicitGemm)
            assert chosen.why_not(problem, target) is None


@pytest.mark.parametrize(
    ("name", "dtype", "unit"),
    [
        ("cuda:sm_80", "float16", "mma.m16n8k16"),
        ("cuda:sm_90", "bfloat16", "mma.m16n8k16"),
        ("cuda:sm_90", "float32", "simt"),
        ("cuda:sm_75", "float16", "wmma.m16n16k16.f16"),
        ("cuda:sm_75", "bfloat16", "simt"),
        ("rocm:gfx90a", "float32", "mfma.16x16x4"),
        ("dcu:k100-ai", "float32", "mmac.16x16x8"),
        ("dcu:k100", "float32", "simt"),
    ],
)
def test_the_unit_that_is_preferred(name: str, dtype: str, unit: str) -> None:
    problem = conv_problem(parse_case("n=4,c=128,h=28,w=28,k=128,r=3,s=3,pad=1"), dtype)
    assert choose_gpu_conv(problem, find_target(name)).unit == unit


def test_depthwise_is_not_a_matrix_product() -> None:
    problem = conv_problem(parse_case("n=1,c=384,h=56,w=56,k=384,r=3,s=3,pad=1,groups=384"))
    for name in ("cuda:sm_90", "dcu:k100-ai", "opencl"):
        assert isinstance(choose_gpu_conv(problem, find_target(name)), GpuDepthwise)


def test_a_family_that_was_asked_for_is_not_overruled() -> None:
    problem = conv_problem(parse_case("n=1,c=64,h=14,w=14,k=64,r=3,s=3,pad=1"))
    target = find_target("opencl")
    assert choose_gpu_conv(problem, target, (GpuDirectConv,)) == GpuDirectConv()


def test_a_phase_without_taps_is_no_product() -> None:
    """Of a transposed convolution whose stride and dilation share a factor."""
    problem = replace(conv_problem(parse_case("n=1,c=4,h=8,w=8,k=6,r=1,s=1")), kernel=(1, 0, 1))
    for name in ("cuda:sm_90", "dcu:k100-ai", "opencl"):
        assert choose_gpu_conv(problem, find_target(name)) == GpuDirectConv()


def test_refusals_are_named() -> None:
    problem = conv_problem(parse_case("n=1,c=64,h=14,w=14,k=64,r=3,s=3,pad=1"))
    problem = replace(problem, x=replace(problem.x, dtype="float64"))
    with pytest.raises(ValueError, match=r"float64.*gpu-direct: convolution of float64"):
        choose_gpu_conv(problem, find_target("opencl"))
