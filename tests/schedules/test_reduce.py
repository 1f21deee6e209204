"""Reductions and softmax over any axes of any layout, against numpy in float64."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from convopt.schedules.base import TensorView, row_major
from convopt.schedules.reduce import OPS, Reduce, ReduceProblem
from convopt.schedules.softmax import Softmax, SoftmaxProblem
from convopt.targets import host_cpu
from tests.kernel_harness import run_kernel

pytestmark = pytest.mark.kernels


def view(shape: tuple[int, ...], last: bool, gap: int = 0, dtype: str = "float32") -> TensorView:
    """Row-major, or with dimension 1 innermost; rows of the two inner dimensions are `gap` longer."""
    rank = len(shape)
    order = (0, *range(2, rank), 1) if last else tuple(range(rank))
    strides, step = [0] * rank, 1
    for position, d in enumerate(reversed(order)):
        strides[d] = step
        step *= shape[d] + (gap if position < 2 else 0)
    return TensorView(shape, tuple(strides), dtype)


REFERENCES: dict[str, Any] = {
    "sum": lambda x, a: x.sum(a, keepdims=True),
    "mean": lambda x, a: x.mean(a, keepdims=True),
    "max": lambda x, a: x.max(a, keepdims=True),
    "min": lambda x, a: x.min(a, keepdims=True),
    "prod": lambda x, a: x.prod(a, keepdims=True),
    "l1": lambda x, a: np.abs(x).sum(a, keepdims=True),
    "l2": lambda x, a: np.sqrt(np.square(x).sum(a, keepdims=True)),
    "sum_square": lambda x, a: np.square(x).sum(a, keepdims=True),
    "log_sum": lambda x, a: np.log(x.sum(a, keepdims=True)),
}
SHAPES = [(2, 37, 5, 7), (1, 8, 16, 16), (2, 3, 1, 50), (1, 70, 3, 3)]
AXES = [(2, 3), (1,), (3,), (0, 1, 2, 3), (1, 3), (0,)]


def check(problem: ReduceProblem, x: np.ndarray[Any, Any], folder: Path, rtol: float = 2e-6) -> None:
    (got,) = run_kernel(Reduce(), problem, [(problem.x, x)], [problem.y], folder)
    want = REFERENCES[problem.op](x.astype(np.float64), problem.axes)
    np.testing.assert_allclose(got, want, rtol=rtol, atol=1e-6)


def reduction(
    shape: tuple[int, ...], axes: tuple[int, ...], op: str, last: bool, gap: int = 0
) -> ReduceProblem:
    reduced = tuple(1 if d in axes else n for d, n in enumerate(shape))
    return ReduceProblem(view(shape, last, gap), view(reduced, last, gap), axes, op)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("axes", AXES, ids=str)
@pytest.mark.parametrize("last", [False, True])
def test_sum_over_any_axes(shape: tuple[int, ...], axes: tuple[int, ...], last: bool, tmp_path: Path) -> None:
    x = np.random.default_rng(0).uniform(0.5, 1.5, shape).astype(np.float32)
    check(reduction(shape, axes, "mean", last, gap=1), x, tmp_path)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("axes", [(2, 3), (1,)], ids=str)
def test_every_operation(op: str, axes: tuple[int, ...], tmp_path: Path) -> None:
    x = np.random.default_rng(0).uniform(0.5, 1.5, (2, 19, 4, 6)).astype(np.float32)
    if op not in ("log_sum",):
        x[:, ::3] *= -1
    check(reduction(x.shape, axes, op, True), x, tmp_path, rtol=5e-6)


@pytest.mark.parametrize("last", [False, True])
def test_long_sums_stay_accurate(last: bool, tmp_path: Path) -> None:
    shape = (1, 8, 300, 300)
    x = np.random.default_rng(0).uniform(0, 1, shape).astype(np.float32)
    check(reduction(shape, (2, 3), "sum", last), x, tmp_path, rtol=2e-6)


def test_nan_reaches_the_extremes(tmp_path: Path) -> None:
    x = np.arange(40, dtype=np.float32).reshape(2, 20)
    x[1, 7] = np.nan
    problem = ReduceProblem(row_major((2, 20)), row_major((2, 1)), (1,), "max")
    (got,) = run_kernel(Reduce(), problem, [(problem.x, x)], [problem.y], tmp_path)
    assert got[0] == 19 and np.isnan(got[1])


def test_float16_sums_in_float32(tmp_path: Path) -> None:
    x = np.full((3, 5000), 100, np.float16)
    problem = ReduceProblem(row_major((3, 5000), "float16"), row_major((3, 1), "float16"), (1,), "mean")
    (got,) = run_kernel(Reduce(), problem, [(problem.x, x)], [problem.y], tmp_path)
    assert np.all(got == 100)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("axes", [(1,), (3,), (2, 3), (1, 2, 3)], ids=str)
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("logarithm", [False, True])
def test_softmax(
    shape: tuple[int, ...], axes: tuple[int, ...], last: bool, logarithm: bool, tmp_path: Path
) -> None:
    x = (100 * np.random.default_rng(0).normal(size=shape)).astype(np.float32)
    problem = SoftmaxProblem(view(shape, last, 1), view(shape, last), axes, logarithm)
    (got,) = run_kernel(Softmax(), problem, [(problem.x, x)], [problem.y], tmp_path)
    shifted = x.astype(np.float64) - x.max(axes, keepdims=True)
    total = np.exp(shifted).sum(axes, keepdims=True)
    want = shifted - np.log(total) if logarithm else np.exp(shifted) / total
    np.testing.assert_allclose(got, want, rtol=2e-6, atol=1e-7)


@pytest.mark.parametrize("last", [False, True])
def test_softmax_beyond_the_scratch_limit(last: bool, tmp_path: Path) -> None:
    shape = (1, 19, 300, 300)
    x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    problem = SoftmaxProblem(view(shape, last), view(shape, last), (2, 3))
    assert Softmax().scratch_bytes(problem, host_cpu()) == 0
    (got,) = run_kernel(Softmax(), problem, [(problem.x, x)], [problem.y], tmp_path)
    want = np.exp(x.astype(np.float64))
    np.testing.assert_allclose(got, want / want.sum((2, 3), keepdims=True), rtol=3e-6)


def test_softmax_into_another_layout_and_dtype(tmp_path: Path) -> None:
    shape = (2, 16, 4, 9)
    x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    problem = SoftmaxProblem(view(shape, False), view(shape, True, 0, "float16"), (1,))
    (got,) = run_kernel(Softmax(), problem, [(problem.x, x)], [problem.y], tmp_path)
    want = np.exp(x.astype(np.float64))
    np.testing.assert_allclose(got, want / want.sum(1, keepdims=True), rtol=1e-3)


def test_refusals_are_in_words() -> None:
    integers = ReduceProblem(row_major((4,), "int64"), row_major((1,), "int64"), (0,), "sum")
    assert Reduce().why_not(integers, host_cpu()) == "reduction of int64"
    with pytest.raises(ValueError, match="over"):
        ReduceProblem(row_major((4, 3)), row_major((4, 3)), (1,), "sum")
