"""GPU kernels without tiles on an OpenCL device, against float64."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import pytest

from convopt.schedules import gpu_pointwise, gpu_pool, gpu_reduce, gpu_resize, gpu_softmax
from convopt.schedules.base import TensorView, row_major
from convopt.schedules.conv_problem import ConvProblem
from convopt.schedules.gpu_conv_direct import GpuDirectConv
from convopt.schedules.gpu_pointwise import GpuPointwise
from convopt.schedules.gpu_pool import GpuPool
from convopt.schedules.gpu_reduce import GpuReduce
from convopt.schedules.gpu_softmax import GpuSoftmax
from convopt.schedules.pointwise_problem import PointwiseProblem, copy_problem
from convopt.schedules.pool_problem import PoolProblem
from convopt.schedules.primitives.expression import Expression, Op, identity
from convopt.schedules.primitives.gpu_reduction import Reduction
from convopt.schedules.reduce import ReduceProblem
from convopt.schedules.resize import ResizeProblem
from convopt.schedules.softmax import SoftmaxProblem
from tests.gpu_harness import OPENCL, run_gpu_kernel

pytestmark = pytest.mark.opencl

TOLERANCE = {"float32": 1e-5, "float16": 2e-3}
DTYPES = list(TOLERANCE)


def _random(shape: tuple[int, ...], dtype: str, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


def _close(found: np.ndarray[Any, Any], expected: np.ndarray[Any, Any], dtype: str) -> None:
    scale = max(float(np.abs(expected).max()), 1e-2)
    assert np.abs(found.astype(np.float64) - expected).max() <= TOLERANCE[dtype] * scale


def _channels_last(shape: tuple[int, ...], dtype: str) -> TensorView:
    """(n, c, spatial...) with the channels next to each other."""
    c, *spatial = shape[1:]
    strides, step = [], c
    for extent in reversed(spatial):
        strides.append(step)
        step *= extent
    return TensorView(shape, (step, 1, *reversed(strides)), dtype)


@pytest.mark.parametrize(
    ("dtype", "shape", "alignment", "vector"),
    [
        ("float32", (3, 7, 16), 16, 4),
        ("float32", (3, 7, 16), 4, 1),
        ("float32", (2, 5, 7), 16, 1),
        ("float16", (3, 7, 16), 16, 8),
        ("float16", (3, 7, 16), 4, 2),
        ("float16", (2, 5, 7), 16, 1),
    ],
)
def test_pointwise_is_vectorised_where_operands_are_aligned(
    dtype: str, shape: tuple[int, ...], alignment: int, vector: int
) -> None:
    dense = row_major(shape, dtype)
    view = TensorView(dense.shape, dense.strides, dtype, alignment)
    bias = TensorView(shape, (0, 0, 1), dtype, alignment)
    expression = Expression(2, (Op("add", (0, 1)), Op("sigmoid", (2,)), Op("mul", (2, 3))), (4, 2))
    problem = PointwiseProblem((view, bias), (view, view), expression)
    schedule = gpu_pointwise.default(problem, OPENCL)
    assert schedule == GpuPointwise(vector)
    x, b = _random(shape, dtype), _random(shape[-1:], dtype, 1)
    swish, plain = run_gpu_kernel(schedule, problem, [(view, x), (bias, b)], [view, view])
    total = x.astype(np.float64) + b
    _close(plain, total, dtype)
    _close(swish, total / (1 + np.exp(-total)), dtype)


@pytest.mark.parametrize("dtype", ["float32", "float16", "int64", "uint8"])
def test_copies_between_layouts_move_bits(dtype: str) -> None:
    shape = (2, 5, 3, 7)
    to = _channels_last(shape, dtype)
    x = np.arange(prod(shape)).reshape(shape).astype(dtype)
    problem = copy_problem(row_major(shape, dtype), to)
    (found,) = run_gpu_kernel(
        gpu_pointwise.default(problem, OPENCL), problem, [(row_major(shape, dtype), x)], [to]
    )
    assert np.array_equal(found, x)


def test_wide_vectors_are_refused_in_words() -> None:
    view = row_major((3, 6))
    problem = PointwiseProblem((view,), (view,), identity())
    assert GpuPointwise(4).why_not(problem, OPENCL) == "18 elements in a row, not a multiple of 4"
    apart = TensorView((3, 8), (9, 1))
    problem = PointwiseProblem((apart,), (apart,), identity())
    assert GpuPointwise(4).why_not(problem, OPENCL) == "operand 0 has no aligned vectors of 4"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mode", ["max", "average", "counting pads"])
@pytest.mark.parametrize("channels", [8, 3])
def test_pools(dtype: str, mode: str, channels: int) -> None:
    x_view = _channels_last((2, channels, 1, 9, 11), dtype)
    y_view = _channels_last((2, channels, 1, 5, 6), dtype)
    average = mode != "max"
    problem = PoolProblem(
        x_view, y_view, (1, 3, 3), (1, 2, 2), (1, 1, 1), (0, 1, 1), (0, 1, 1),
        "average" if average else "max", mode == "counting pads",
    )  # fmt: skip
    schedule = gpu_pool.default(problem, OPENCL)
    assert schedule == GpuPool({"float32": 4, "float16": 8}[dtype] if channels == 8 else 1)
    x = _random((2, channels, 1, 9, 11), dtype)
    (found,) = run_gpu_kernel(schedule, problem, [(x_view, x)], [y_view])
    fill = 0.0 if mode == "counting pads" else np.nan
    padded = np.pad(x[:, :, 0].astype(np.float64), ((0, 0), (0, 0), (1, 1), (1, 1)), constant_values=fill)
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))[:, :, ::2, ::2]
    _close(found[:, :, 0], (np.nanmean if average else np.nanmax)(windows, axis=(-1, -2)), dtype)


def test_a_nan_comes_out_of_every_window_that_holds_it() -> None:
    view = _channels_last((2, 3, 1, 9, 11), "float32")
    out = _channels_last((2, 3, 1, 7, 9), "float32")
    problem = PoolProblem(view, out, (1, 3, 3), (1, 1, 1), (1, 1, 1), (0, 0, 0), (0, 0, 0), "max", False)
    x = _random(view.shape, "float32")
    x[np.random.default_rng(1).random(x.shape) < 0.05] = np.nan
    (found,) = run_gpu_kernel(gpu_pool.default(problem, OPENCL), problem, [(view, x)], [out])
    windows = np.lib.stride_tricks.sliding_window_view(x, (3, 3), (3, 4))
    np.testing.assert_array_equal(found, windows.max(axis=(-1, -2)))


REDUCTIONS = [((2, 5, 7, 9), (2, 3)), ((2, 300, 40), (1,)), ((3, 50, 7), (0, 1, 2)), ((4, 6, 1000), (2,))]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("shape", "axes"), REDUCTIONS)
def test_reductions(dtype: str, shape: tuple[int, ...], axes: tuple[int, ...]) -> None:
    x, x_view = _random(shape, dtype), row_major(shape, dtype)
    y_view = row_major(tuple(1 if d in axes else n for d, n in enumerate(shape)), dtype)
    exact = x.astype(np.float64)
    expected = {
        "mean": exact.mean(axis=axes, keepdims=True),
        "max": exact.max(axis=axes, keepdims=True),
        "l2": np.sqrt((exact**2).sum(axis=axes, keepdims=True)),
    }
    for op, values in expected.items():
        problem = ReduceProblem(x_view, y_view, axes, op)
        (found,) = run_gpu_kernel(gpu_reduce.default(problem, OPENCL), problem, [(x_view, x)], [y_view])
        _close(found, values, dtype)
    problem = SoftmaxProblem(x_view, x_view, axes)
    (found,) = run_gpu_kernel(gpu_softmax.default(problem, OPENCL), problem, [(x_view, x)], [x_view])
    powers = np.exp(exact - exact.max(axis=axes, keepdims=True))
    _close(found, powers / powers.sum(axis=axes, keepdims=True), dtype)


@pytest.mark.parametrize("width", [1, 32, 256])
def test_every_number_of_threads_per_result_is_right(width: int) -> None:
    """Also where it is not what the rule takes: more results than threads, fewer elements than threads."""
    shape, axes = (9, 33, 5), (1,)
    x, view = _random(shape, "float32"), row_major(shape)
    problem = ReduceProblem(view, row_major((9, 1, 5)), axes, "sum")
    (found,) = run_gpu_kernel(GpuReduce(width), problem, [(view, x)], [row_major((9, 1, 5))])
    _close(found, x.astype(np.float64).sum(axis=1, keepdims=True), "float32")
    logarithm = SoftmaxProblem(view, view, axes, logarithm=True)
    (found,) = run_gpu_kernel(GpuSoftmax(width), logarithm, [(view, x)], [view])
    exact = x.astype(np.float64)
    _close(found, exact - np.log(np.exp(exact).sum(axis=1, keepdims=True)), "float32")


def test_few_results_get_many_threads_each() -> None:
    one = Reduction.of([row_major((1, 4096)), row_major((1, 1))], (1,))
    many = Reduction.of([row_major((100, 1 << 18)), row_major((1, 1 << 18))], (0,))
    assert one.threads_per_result(OPENCL) == 128 and many.threads_per_result(OPENCL) == 1


@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_resize_follows_its_tables(mode: Any) -> None:
    x_view, y_view = _channels_last((1, 3, 4, 5), "float32"), _channels_last((1, 3, 7, 9), "float32")
    problem = ResizeProblem(x_view, y_view, (2, 3), mode)
    x, rng = _random((1, 3, 4, 5), "float32"), np.random.default_rng(1)
    index = [rng.integers(0, n, (m, problem.taps)) for n, m in ((4, 7), (5, 9))]
    weight = [rng.uniform(size=i.shape) if mode == "linear" else np.ones(i.shape) for i in index]
    strides = (x_view.strides[2], x_view.strides[3])
    offsets = np.concatenate([(i * s).reshape(-1) for i, s in zip(index, strides, strict=True)])
    tables = [(problem.operands[1], offsets.astype(np.int32))]
    if mode == "linear":
        tables.append((problem.operands[2], np.concatenate([w.reshape(-1) for w in weight])))
    (found,) = run_gpu_kernel(gpu_resize.GpuResize(), problem, [(x_view, x), *tables], [y_view])
    rows = np.einsum("nchtw,ht->nchw", x.astype(np.float64)[:, :, index[0]], weight[0])
    _close(found, np.einsum("nchwt,wt->nchw", rows[:, :, :, index[1]], weight[1]), "float32")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("groups", [1, 3])
def test_direct_convolution(dtype: str, groups: int) -> None:
    """Strides, dilation, pads that differ, groups, a bias, and an epilogue with an operand."""
    n, c, k, h, w, oh, ow = 2, 4, 5, 9, 10, 4, 8
    x_view = TensorView(
        (groups, n, 1, h, w, c), (c, h * w * groups * c, 0, w * groups * c, groups * c, 1), dtype
    )
    pixel = groups * k
    y_view = TensorView((groups, n, 1, oh, ow, k), (k, oh * ow * pixel, 0, ow * pixel, pixel, 1), dtype)
    relu_of_sum = Expression(2, (Op("add", (0, 1)), Op("relu", (2,))), (3,))
    problem = ConvProblem(
        x_view, y_view, (1, 3, 2), (1, 2, 1), (1, 1, 3), (0, 0, 1), relu_of_sum, (y_view,), True
    )
    x, other = _random(x_view.shape, dtype), _random(y_view.shape, dtype, 1)
    weight, bias = _random((groups, k, c, 1, 3, 2), "float32", 2), _random((groups, k), "float32", 3)
    schedule = GpuDirectConv()
    packed = schedule.pack(problem, OPENCL, weight, bias)
    flat = [(row_major((a.size,)), a.reshape(-1)) for a in packed]
    (found,) = run_gpu_kernel(schedule, problem, [(x_view, x), *flat, (y_view, other)], [y_view])
    padded = np.pad(x[:, :, 0].astype(np.float64), ((0, 0), (0, 0), (0, 1), (1, 1), (0, 0)))
    expected = other[:, :, 0].astype(np.float64) + bias[:, None, None, None]
    for r in range(3):
        for s in range(2):
            rows = padded[:, :, r : r + 2 * oh : 2, 3 * s : 3 * s + ow]
            expected = expected + np.einsum("gnhwc,gkc->gnhwk", rows, weight[..., 0, r, s].astype(np.float64))
    _close(found[:, :, 0], np.maximum(expected, 0), dtype)
