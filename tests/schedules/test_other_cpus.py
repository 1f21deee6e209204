"""Kernels for CPUs that this machine may not be: NEON under qemu, AVX2 (haswell) natively where it has it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from convopt.runtime.machine import cpu_flags
from convopt.schedules import pointwise
from convopt.schedules.base import TensorView, row_major
from convopt.schedules.conv_depthwise import DepthwiseConv
from convopt.schedules.conv_direct import DirectConv
from convopt.schedules.conv_few_features import FewFeaturesConv
from convopt.schedules.conv_grouped import GroupedConv
from convopt.schedules.conv_shifted import ShiftedConv
from convopt.schedules.conv_winograd import WinogradConv
from convopt.schedules.pointwise_problem import PointwiseProblem, copy_problem
from convopt.schedules.pool import default as default_pool
from convopt.schedules.primitives.expression import unary
from convopt.schedules.softmax import Softmax, SoftmaxProblem
from convopt.targets import CpuTarget
from convopt.targets.cpu import HASWELL, NEON
from tests.cross_kernels import CrossKernels, compile_executor
from tests.fenced_kernels import FencedKernels, FencedOperand
from tests.schedules.conv_cases import FULL, RELU, SUM_RELU, Case, Data, instances
from tests.schedules.test_pool import expected as pooled
from tests.schedules.test_pool import problem as pool_problem

pytestmark = pytest.mark.kernels

PADDED: dict[str, Any] = {"kernel": (1, 3, 3), "begin": (0, 1, 1), "end": (0, 1, 1)}
HALF: dict[str, Any] = {"x_dtype": "float16", "y_dtype": "float16"}
BRAIN: dict[str, Any] = {"x_dtype": "bfloat16", "y_dtype": "bfloat16"}
CONVS: dict[str, tuple[Any, Case]] = {
    "direct": (DirectConv, Case(17, 27, (1, 7, 9), epilogue=SUM_RELU, others=(FULL,), **PADDED)),
    "direct s2": (DirectConv, Case(3, 20, (1, 9, 11), strides=(1, 2, 2), batch=2, **PADDED)),
    "direct float16": (DirectConv, Case(12, 19, (1, 5, 7), epilogue=RELU, **PADDED, **HALF)),
    "direct bfloat16": (DirectConv, Case(12, 19, (1, 5, 7), epilogue=RELU, **PADDED, **BRAIN)),
    "1x1": (DirectConv, Case(33, 40, (1, 7, 5))),
    "winograd": (WinogradConv, Case(16, 21, (1, 9, 10), epilogue=RELU, **PADDED)),
    "depthwise": (DepthwiseConv, Case(1, 1, (1, 8, 9), groups=21, **PADDED)),
    "depthwise, no border": (DepthwiseConv, Case(1, 1, (1, 8, 9), groups=21, bordered=False, **PADDED)),
    "grouped": (GroupedConv, Case(4, 4, (1, 6, 13), groups=5, epilogue=RELU, **PADDED)),
    "grouped, no border": (GroupedConv, Case(2, 2, (1, 6, 13), groups=9, bordered=False, **PADDED)),
    "few features": (FewFeaturesConv, Case(32, 3, (1, 6, 7), **PADDED)),
    "shifted": (ShiftedConv, Case(16, 5, (1, 6, 7), **PADDED)),
}


def cheapest(name: str, target: CpuTarget, most: int) -> list[Any]:
    family, case = CONVS[name]
    possible = instances(family, case, target)
    return sorted(possible, key=lambda s: s.cost(case.problem, target).seconds)[:most]


@pytest.mark.aarch64
@pytest.mark.parametrize("name", CONVS)
def test_convolutions_on_aarch64(name: str, tmp_path: Path) -> None:
    case, schedules = CONVS[name][1], cheapest(name, NEON, 2)
    assert schedules
    kernels, data = CrossKernels([(s, case.problem) for s in schedules], tmp_path), Data.draw(case)
    for number, schedule in enumerate(schedules):
        packed = schedule.pack(case.problem, NEON, data.weight, data.bias)
        data.check(kernels, number, packed, True)


@pytest.mark.skipif(
    not cpu_flags().issuperset(HASWELL.cpu_flags), reason="this CPU has not all that haswell has"
)
@pytest.mark.parametrize("name", CONVS)
def test_convolutions_for_haswell(name: str, tmp_path: Path) -> None:
    case, schedules = CONVS[name][1], cheapest(name, HASWELL, 2)
    assert schedules
    kernels, data = FencedKernels([(s, case.problem) for s in schedules], HASWELL, tmp_path), Data.draw(case)
    for number, schedule in enumerate(schedules):
        packed = schedule.pack(case.problem, HASWELL, data.weight, data.bias)
        data.check(kernels, number, packed, True)


@pytest.mark.aarch64
def test_other_kernels_on_aarch64(tmp_path: Path) -> None:
    """One binary with a pool, a softmax, vector mathematics and a change of layout and type."""
    rng = np.random.default_rng(0)
    pool = pool_problem((1, 9, 11), (1, 3, 3), (1, 2, 2), begin=(0, 1, 1), end=(0, 1, 1), mode="average")
    softmax = SoftmaxProblem(row_major((3, 37)), row_major((3, 37)), (1,))
    sigmoid = PointwiseProblem((row_major((5, 43)),), (row_major((5, 43), "float16"),), unary("sigmoid"))
    last = TensorView((2, 19, 6, 7), (19 * 42, 1, 7 * 19, 19))
    layout = copy_problem(row_major((2, 19, 6, 7)), last)
    pairs: list[tuple[Any, Any]] = [
        (default_pool(pool, NEON), pool),
        (Softmax(), softmax),
        (pointwise.default(sigmoid, NEON), sigmoid),
        (pointwise.default(layout, NEON), layout),
    ]
    kernels = CrossKernels(pairs, tmp_path)
    for number, (_, problem) in enumerate(pairs):
        x_view, y_view = problem.operands
        x, y = FencedOperand.tight(x_view, True), FencedOperand.tight(y_view, True)
        x.array[...] = rng.standard_normal(x_view.shape)
        kernels.run(number, [x, y])
        wide = x.array.astype(np.float64)
        shifted = np.exp(wide - wide.max(-1, keepdims=True))
        expected = (
            pooled(pool, x.array) if problem is pool
            else shifted / shifted.sum(-1, keepdims=True) if problem is softmax
            else 1 / (1 + np.exp(-wide)) if problem is sigmoid
            else wide
        )  # fmt: skip
        tolerance = 1e-3 if y_view.dtype == "float16" else 2e-6
        np.testing.assert_allclose(y.array.astype(np.float64), expected, rtol=tolerance, atol=1e-6)


@pytest.mark.aarch64
def test_the_executor_compiles_for_aarch64(tmp_path: Path) -> None:
    compile_executor(tmp_path)
