"""Pointwise kernels and copies: every schedule, layouts, broadcasts, dtypes and tails against numpy."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from convopt.schedules.base import TensorView, row_major
from convopt.schedules.pointwise import Pointwise, default
from convopt.schedules.pointwise_interleaved import InterleavedPointwise
from convopt.schedules.pointwise_problem import PointwiseProblem, copy_problem
from convopt.schedules.pointwise_tiled import TiledPointwise
from convopt.schedules.primitives.expression import Expression, ExpressionBuilder, Op, identity, unary
from convopt.targets import host_cpu
from tests.kernel_harness import run_kernel

pytestmark = pytest.mark.kernels


def in_order(
    shape: tuple[int, ...], order: tuple[int, ...], padding: int = 0, dtype: str = "float32"
) -> TensorView:
    """A view whose dimensions lie in memory in `order`, outermost first, rows `padding` elements longer."""
    strides, step = [0] * len(shape), 1
    for position, d in enumerate(reversed(order)):
        strides[d] = step
        step *= shape[d] + (padding if position < 2 else 0)
    return TensorView(shape, tuple(strides), dtype)


def broadcast(view: TensorView, *dims: int) -> TensorView:
    """The view repeated along `dims`."""
    strides = tuple(0 if d in dims else s for d, s in enumerate(view.strides))
    return TensorView(view.shape, strides, view.dtype)


def random_like(view: TensorView, seed: int = 0) -> np.ndarray[Any, Any]:
    """Random contents that repeat along dimensions of stride 0."""
    generator = np.random.default_rng(seed)
    shape = tuple(n if s else 1 for n, s in zip(view.shape, view.strides, strict=True))
    if view.dtype == "bool":
        return np.broadcast_to(generator.random(shape) < 0.5, view.shape)
    if np.issubdtype(np.dtype(view.dtype), np.integer):
        bounds = np.iinfo(view.dtype)
        values = generator.integers(bounds.min, bounds.max, shape, dtype=view.dtype)
        return np.broadcast_to(values, view.shape)
    return np.broadcast_to(generator.normal(size=shape).astype(view.dtype), view.shape)


NCHW, NHWC = (0, 1, 2, 3), (0, 2, 3, 1)
SHAPES = [
    (2, 3, 5, 7),
    (1, 16, 8, 8),
    (1, 17, 9, 11),
    (2, 64, 7, 7),
    (1, 4, 3, 40),
    (1, 3, 24, 33),
    (3, 1, 1, 1),
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(
    ("source", "target"), list(itertools.product((NCHW, NHWC, (3, 1, 0, 2)), (NCHW, NHWC)))
)
def test_copy_between_layouts(
    shape: tuple[int, ...], source: tuple[int, ...], target: tuple[int, ...], tmp_path: Path
) -> None:
    for padding in (0, 1):
        a, b = in_order(shape, source), in_order(shape, target, padding)
        problem = copy_problem(a, b)
        x = random_like(a)
        for schedule in {default(problem, host_cpu()), Pointwise()}:
            (got,) = run_kernel(schedule, problem, [(a, x)], [b], tmp_path)
            np.testing.assert_array_equal(got, x)


@pytest.mark.parametrize("dtype", ["float16", "int64", "int32", "uint8", "int8", "bool", "float64"])
@pytest.mark.parametrize("target", [NCHW, NHWC])
def test_copy_of_any_dtype(dtype: str, target: tuple[int, ...], tmp_path: Path) -> None:
    shape = (2, 19, 6, 7)
    a, b = row_major(shape, dtype), in_order(shape, target, 0, dtype)
    problem = copy_problem(a, b)
    x = random_like(a)
    (got,) = run_kernel(default(problem, host_cpu()), problem, [(a, x)], [b], tmp_path)
    np.testing.assert_array_equal(got, x)


@pytest.mark.parametrize("step", [2, -1, -3])
def test_copy_of_a_strided_slice(step: int, tmp_path: Path) -> None:
    a, b = TensorView((3, 21), (100, step)), row_major((3, 21))
    problem = copy_problem(a, b)
    x = random_like(a)
    (got,) = run_kernel(Pointwise(), problem, [(a, x)], [b], tmp_path)
    np.testing.assert_array_equal(got, x)


ADD = Expression(2, (Op("add", (0, 1)),), (2,))


@pytest.mark.parametrize("shape", [(2, 3, 5, 7), (1, 20, 9, 9), (1, 3, 16, 16)], ids=str)
@pytest.mark.parametrize("dims", [(), (0, 2, 3), (1,), (0, 1, 2, 3), (3,), (2, 3)], ids=str)
@pytest.mark.parametrize("layouts", list(itertools.product((NCHW, NHWC), repeat=3)), ids=str)
def test_binary_with_broadcast_in_any_layout(
    shape: tuple[int, ...], dims: tuple[int, ...], layouts: Any, tmp_path: Path
) -> None:
    a, b, c = (in_order(shape, order) for order in layouts)
    b = broadcast(b, *dims)
    problem = PointwiseProblem((a, b), (c,), ADD)
    x, y = random_like(a), random_like(b, 1)
    (got,) = run_kernel(default(problem, host_cpu()), problem, [(a, x), (b, y)], [c], tmp_path)
    np.testing.assert_array_equal(got, x + y)


def test_several_outputs_and_dtypes(tmp_path: Path) -> None:
    builder = ExpressionBuilder(2)
    total = builder.add("add", 0, 1)
    expression = builder.build(builder.add("relu", total), total, builder.add("less", 0, 1))
    shape = (2, 9, 5)
    views = (row_major(shape, "float16"), row_major(shape))
    outputs = (row_major(shape), row_major(shape, "float16"), row_major(shape, "bool"))
    problem = PointwiseProblem(views, outputs, expression)
    x, y = random_like(views[0]), random_like(views[1], 1)
    relu, total_got, less = run_kernel(
        Pointwise(), problem, [(views[0], x), (views[1], y)], outputs, tmp_path
    )
    exact = x.astype(np.float32) + y
    np.testing.assert_array_equal(relu, np.maximum(exact, 0))
    np.testing.assert_array_equal(total_got, exact.astype(np.float16))
    np.testing.assert_array_equal(less, x.astype(np.float32) < y)


def test_bool_input_selects(tmp_path: Path) -> None:
    view = row_major((33,))
    problem = PointwiseProblem(
        (row_major((33,), "bool"), view, view), (view,), Expression(3, (Op("where", (0, 1, 2)),), (3,))
    )
    condition, x, y = random_like(problem.inputs[0]), random_like(view), random_like(view, 1)
    inputs = list(zip(problem.inputs, (condition, x, y), strict=True))
    (got,) = run_kernel(Pointwise(), problem, inputs, [view], tmp_path)
    np.testing.assert_array_equal(got, np.where(condition, x, y))


def test_a_constant_fills_a_slab(tmp_path: Path) -> None:
    whole = row_major((3, 5, 20))
    slab = TensorView((3, 2, 7), whole.strides)
    problem = PointwiseProblem((), (slab,), Expression(0, (Op("const", (), (2.5,)),), (0,)))
    (got,) = run_kernel(Pointwise(), problem, [], [slab], tmp_path)
    assert np.all(got == 2.5)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33, 4097, 10000])
@pytest.mark.parametrize("unroll", [1, 2, 4])
def test_every_tail(size: int, unroll: int, tmp_path: Path) -> None:
    view = row_major((size,))
    problem = PointwiseProblem((view,), (view,), unary("neg"))
    x = random_like(view)
    (got,) = run_kernel(Pointwise(unroll), problem, [(view, x)], [view], tmp_path)
    np.testing.assert_array_equal(got, -x)


@pytest.mark.parametrize("block", [8, 16, 32])
def test_tiles_of_every_size(block: int, tmp_path: Path) -> None:
    shape = (1, 37, 1, 41)
    problem = copy_problem(in_order(shape, NHWC), row_major(shape))
    x = random_like(problem.inputs[0])
    (got,) = run_kernel(TiledPointwise(block), problem, [(problem.inputs[0], x)], problem.outputs, tmp_path)
    np.testing.assert_array_equal(got, x)


def test_the_schedule_follows_the_layouts() -> None:
    def choice(channels: int, source: tuple[int, ...], target: tuple[int, ...]) -> type:
        shape = (1, channels, 32, 32)
        return type(default(copy_problem(in_order(shape, source), in_order(shape, target)), host_cpu()))

    assert choice(3, NCHW, NHWC) is choice(3, NHWC, NCHW) is InterleavedPointwise
    assert choice(64, NCHW, NHWC) is choice(64, NHWC, NCHW) is TiledPointwise
    assert choice(64, NHWC, NHWC) is choice(3, NCHW, NCHW) is Pointwise


def test_empty_tensors_have_no_tasks() -> None:
    view = row_major((0, 4))
    problem = copy_problem(view, view)
    assert default(problem, host_cpu()).tasks(problem, host_cpu()) == 0


def test_refusals_are_in_words() -> None:
    view = row_major((4,), "int64")
    problem = PointwiseProblem((view,), (view,), unary("neg"))
    assert Pointwise().why_not(problem, host_cpu()) == "arithmetic on int64"
    with pytest.raises(ValueError, match="shapes differ"):
        PointwiseProblem((row_major((3,)),), (row_major((4,)),), identity())
