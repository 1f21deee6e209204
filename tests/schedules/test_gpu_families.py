"""Depthwise conv, batched GEMM, transposition and im2col of the GPU on PoCL, tails included."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from convopt.schedules.base import TensorView, row_major
from convopt.schedules.gpu_conv_depthwise import GpuDepthwise
from convopt.schedules.gpu_gemm_problem import gemm_problem
from convopt.schedules.gpu_im2col import GpuIm2col
from convopt.schedules.gpu_implicit_gemm import ImplicitGemm
from convopt.schedules.gpu_transpose import GpuTranspose
from convopt.schedules.im2col import Im2colProblem
from convopt.schedules.pointwise_problem import copy_problem
from convopt.targets import find_target
from tests.device_harness import DeviceOperand, as_opencl, numbers, opencl_code, rounded, run
from tests.schedules.conv_cases import SUM_RELU, Case
from tests.schedules.gpu_conv_cases import TOLERANCE, check, draw, typed

pytestmark = pytest.mark.opencl
OPENCL = find_target("opencl")

DEPTHWISE = {
    "tails": Case(1, 1, (1, 7, 9), (1, 3, 3), begin=(0, 1, 1), end=(0, 1, 1), groups=24, batch=3,
                  epilogue=SUM_RELU, others=("full",)),
    "strided": Case(1, 1, (1, 11, 13), (1, 5, 3), (1, 2, 2), begin=(0, 2, 0), end=(0, 1, 1), groups=16),
    "dilated": Case(1, 1, (1, 9, 9), (1, 3, 3), (1, 1, 1), (1, 2, 3), (0, 2, 3), (0, 2, 3), groups=20),
    "odd": Case(1, 1, (3, 5, 6), (2, 3, 3), begin=(1, 1, 1), end=(0, 1, 1), groups=5, bias=False),
}  # fmt: skip


@pytest.mark.parametrize("case", DEPTHWISE)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_depthwise(case: str, dtype: str) -> None:
    data = draw(typed(DEPTHWISE[case], dtype))
    space = list(GpuDepthwise.space(data.case.problem, OPENCL))
    assert len(space) >= 3 and (case == "odd") == (max(s.vector for s in space) == 1)
    for schedule in (space[0], space[len(space) // 2], space[-1]):
        check(schedule, data, OPENCL)


def test_depthwise_refuses_in_words() -> None:
    problem = Case(2, 1, (1, 5, 5), groups=4).problem
    assert GpuDepthwise(1, 1).why_not(problem, OPENCL) == "2 channels to 1 features in a group, not 1 to 1"


def _strided(view: TensorView, axes: tuple[int, ...]) -> TensorView:
    """The view seen with its dims in another order."""
    return replace(
        view, shape=tuple(view.shape[a] for a in axes), strides=tuple(view.strides[a] for a in axes)
    )


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(
    ("chip", "dtype", "unit"),
    [
        ("opencl", "float32", "simt"),
        ("cuda:sm_80", "float16", "mma.m16n8k16"),
        ("rocm:gfx90a", "float16", "mfma.16x16x16"),
        ("dcu:k100-ai", "float16", "mmac.16x16x16"),
    ],
)
def test_batched_gemm(chip: str, dtype: str, unit: str, transposed: bool) -> None:
    """b as (g, n, k), and as (g, k, n) read across: tails in m, n and k."""
    target = find_target(chip)
    g, m, n, k = 3, 50, 44, 40
    a, y = row_major((g, m, k), dtype), row_major((g, m, n), dtype)
    stored = row_major((g, n, k) if transposed else (g, k, n), dtype)
    b = stored if transposed else _strided(stored, (0, 2, 1))
    problem = gemm_problem(a, b, y)
    parts = (2, 2) if unit == "simt" else (32, 32)
    base = ImplicitGemm(32, 32, 32, *parts, stages=2, unit=unit).padded(problem, target)
    rng = np.random.default_rng(0)
    left = rounded(rng.uniform(-1, 1, (g, m, k)), dtype)
    right = rounded(rng.uniform(-1, 1, (g, n, k)), dtype)
    expected = np.einsum("gmk,gnk->gmn", left.astype(np.float64), right.astype(np.float64))
    for schedule in (base, replace(base, split_k=2, stages=1)):
        assert schedule.why_not(problem, target) is None
        workspace = schedule.workspace_bytes(problem, target) // 4
        partials = [DeviceOperand(TensorView((workspace,), (1,)))] if workspace else []
        operands = [DeviceOperand(a).fill(left), DeviceOperand(b).fill(right), *partials, DeviceOperand(y)]
        run(opencl_code(schedule.apply(problem, as_opencl(target), "kernel"), as_opencl(target)), operands)
        error = np.abs(numbers(operands[-1].array, dtype) - expected).max() / np.abs(expected).max()
        assert error <= TOLERANCE[dtype]


@pytest.mark.parametrize(
    ("n", "c", "h", "w"), [(2, 64, 14, 14), (3, 100, 4, 13), (2, 3, 13, 13), (1, 27, 8, 8), (1, 66, 7, 10)]
)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("to_nhwc", [False, True])
def test_transposition_is_exact(n: int, c: int, h: int, w: int, dtype: str, to_nhwc: bool) -> None:
    planar, last = row_major((n, c, h, w), dtype), _strided(row_major((n, h, w, c), dtype), (0, 3, 1, 2))
    source, destination = (planar, last) if to_nhwc else (last, planar)
    problem = copy_problem(source, destination)
    whole = c % 4 == 0 and h * w % 4 == 0
    assert (GpuTranspose(True).why_not(problem, OPENCL) is None) == whole
    values = rounded(np.random.default_rng(0).standard_normal((n, c, h, w)), dtype)
    for schedule in [GpuTranspose(False), *([GpuTranspose(True)] if whole else [])]:
        x, y = DeviceOperand(source).fill(values), DeviceOperand(destination)
        run(opencl_code(schedule.apply(problem, OPENCL, "kernel"), OPENCL), [x, y])
        assert np.array_equal(y.array, x.array)


@pytest.mark.parametrize("planar", [False, True])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("channels", [8, 3])
def test_im2col_is_exact(planar: bool, stride: int, channels: int) -> None:
    case = Case(
        channels, 1, (1, 7, 9), (1, 3, 3), (1, 1, stride), (1, 1, 1), (0, 1, 1), (0, 1, 1), batch=2, groups=2,
        x_planar=planar, x_dtype="float16",
    )  # fmt: skip
    p = case.problem
    problem = Im2colProblem(p.x, p.y.shape[2:5], p.kernel, p.strides, p.dilations, p.pads)  # type: ignore[arg-type]
    values = rounded(np.random.default_rng(0).standard_normal(p.x.shape), "float16")
    g, n, (_, oh, ow) = 2, 2, problem.outputs
    expected = np.zeros((g, n, oh, ow, 3, 3, channels), np.float16)
    for i, j, r, s in np.ndindex(oh, ow, 3, 3):
        a, b = i + r - 1, j * stride + s - 1
        if 0 <= a < 7 and 0 <= b < 9:
            expected[:, :, i, j, r, s] = values[:, :, 0, a, b]
    refusal = GpuIm2col(True).why_not(problem, OPENCL)
    assert (refusal is None) == (stride == 1)
    for schedule in [GpuIm2col(False), *([GpuIm2col(True)] if refusal is None else [])]:
        matrix = DeviceOperand(row_major((expected.size,), "float16"))
        operands = [DeviceOperand(p.x).fill(values), matrix]
        run(opencl_code(schedule.apply(problem, OPENCL, "kernel"), OPENCL), operands)
        assert np.array_equal(matrix.array, expected.reshape(-1))
