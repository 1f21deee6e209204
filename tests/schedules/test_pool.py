"""Pooling kernels against a loop over every output, written from the operator's specification."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from convopt.schedules.base import TensorView
from convopt.schedules.pool import ChannelPool, PixelPool, default
from convopt.schedules.pool_problem import PoolProblem
from convopt.targets import host_cpu
from tests.kernel_harness import run_kernel

pytestmark = pytest.mark.kernels


def view(shape: tuple[int, ...], channels_last: bool, gap: int = 0, dtype: str = "float32") -> TensorView:
    order = (0, 2, 3, 4, 1) if channels_last else (0, 1, 2, 3, 4)
    strides, step = [0] * 5, 1
    for d in reversed(order):
        strides[d] = step
        step *= shape[d] + gap
    return TensorView(shape, tuple(strides), dtype)


def expected(p: PoolProblem, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    result = np.empty(p.y.shape)
    for index in np.ndindex(*p.y.shape[2:]):
        taps = []
        padded = 1
        for o, extent, k, s, d, b, e in zip(
            index, p.x.shape[2:], p.kernel, p.strides, p.dilations, p.begin, p.end, strict=True
        ):
            positions = [o * s - b + t * d for t in range(k)]
            taps.append([i for i in positions if 0 <= i < extent])
            padded *= sum(i < extent + e for i in positions)
        window = np.stack([x[:, :, d, h, w] for d, h, w in product(*taps)]).astype(np.float64)
        if p.mode == "max":
            result[:, :, *index] = window.max(0)
        else:
            result[:, :, *index] = window.sum(0) / (padded if p.count_include_pad else len(window))
    return result


def problem(
    extents: tuple[int, int, int], kernel: tuple[int, int, int], strides: Any = (1, 1, 1),
    dilations: Any = (1, 1, 1), begin: Any = (0, 0, 0), end: Any = (0, 0, 0), mode: Any = "max",
    include: bool = False, channels: int = 20, ceil: bool = False, batch: int = 2,
) -> PoolProblem:  # fmt: skip
    outputs = []
    for n, k, s, d, b, e in zip(extents, kernel, strides, dilations, begin, end, strict=True):
        span = n + b + e - (k - 1) * d - 1
        out = (-(-span // s) if ceil else span // s) + 1
        outputs.append(out - 1 if ceil and (out - 1) * s >= n + b else out)
    return PoolProblem(
        view((batch, channels, *extents), True),
        view((batch, channels, *outputs), True),
        kernel, strides, dilations, begin, end, mode, include,
    )  # fmt: skip


CASES = {
    "3x3 s2 p1": problem((1, 12, 13), (1, 3, 3), (1, 2, 2), begin=(0, 1, 1), end=(0, 1, 1)),
    "2x2 s2": problem((1, 8, 10), (1, 2, 2), (1, 2, 2), channels=64),
    "5x5 p2": problem((1, 9, 11), (1, 5, 5), begin=(0, 2, 2), end=(0, 2, 2), channels=35),
    "begin unlike end": problem((1, 7, 6), (1, 4, 3), (1, 2, 1), begin=(0, 2, 0), end=(0, 1, 2)),
    "dilated": problem((1, 14, 15), (1, 3, 3), (1, 2, 1), (1, 2, 3), begin=(0, 2, 1), end=(0, 1, 2)),
    "1-D": problem((1, 1, 29), (1, 1, 7), (1, 1, 3), begin=(0, 0, 3), end=(0, 0, 3), ceil=True, channels=3),
    "3-D": problem((5, 6, 7), (2, 3, 2), (2, 1, 2), begin=(1, 1, 0), end=(0, 1, 1), channels=9),
    "larger than the input": problem((1, 3, 2), (1, 5, 3), begin=(0, 2, 1), end=(0, 2, 1), channels=8),
    "large window": problem((1, 20, 21), (1, 9, 17), (1, 3, 2), begin=(0, 4, 8), end=(0, 4, 8), channels=16),
    "ceil": problem((1, 10, 10), (1, 3, 3), (1, 2, 2), begin=(0, 1, 1), end=(0, 2, 2), ceil=True),
    "one channel": problem((1, 17, 40), (1, 3, 3), (1, 2, 2), begin=(0, 1, 1), end=(0, 1, 1), channels=1),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(("x_last", "y_last"), [(True, True), (False, True)])
@pytest.mark.parametrize(("mode", "include"), [("max", False), ("average", False), ("average", True)])
def test_pool(name: str, mode: Any, include: bool, x_last: bool, y_last: bool, tmp_path: Path) -> None:
    p = CASES[name]
    p = replace(
        p, mode=mode, count_include_pad=include, x=view(p.x.shape, x_last, 1), y=view(p.y.shape, y_last, 2)
    )
    x = np.random.default_rng(0).normal(size=p.x.shape).astype(np.float32)
    schedule = default(p, host_cpu())
    (got,) = run_kernel(schedule, p, [(p.x, x)], [p.y], tmp_path)
    np.testing.assert_allclose(got, expected(p, x), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("block", [1, 2, 8])
def test_blocks_of_channels(block: int, tmp_path: Path) -> None:
    p = replace(CASES["3x3 s2 p1"], x=view((1, 77, 1, 12, 13), True), y=view((1, 77, 1, 6, 7), True))
    x = np.random.default_rng(0).normal(size=p.x.shape).astype(np.float32)
    (got,) = run_kernel(ChannelPool(block), p, [(p.x, x)], [p.y], tmp_path)
    np.testing.assert_array_equal(got, expected(p, x))


def test_float16_accumulates_in_float32(tmp_path: Path) -> None:
    p = problem((1, 16, 16), (1, 9, 9), mode="average")
    p = replace(p, x=replace(p.x, dtype="float16"), y=replace(p.y, dtype="float16"))
    x = np.random.default_rng(0).uniform(900, 1000, p.x.shape).astype(np.float16)
    (got,) = run_kernel(ChannelPool(), p, [(p.x, x)], [p.y], tmp_path)
    np.testing.assert_allclose(got, expected(p, x), rtol=1e-3)


def test_maximum_of_negative_infinities(tmp_path: Path) -> None:
    p = CASES["3x3 s2 p1"]
    x = np.full(p.x.shape, -np.inf, np.float32)
    (got,) = run_kernel(ChannelPool(), p, [(p.x, x)], [p.y], tmp_path)
    assert np.all(got == -np.inf)


@pytest.mark.parametrize("name", ["3x3 s2 p1", "3-D"])
@pytest.mark.parametrize("x_last", [True, False])
def test_a_nan_comes_out_of_every_window_that_holds_it(name: str, x_last: bool, tmp_path: Path) -> None:
    """Whichever tap it is, as in torch and numpy; the operator's text is silent on it."""
    p = replace(CASES[name], x=view(CASES[name].x.shape, x_last))
    rng = np.random.default_rng(0)
    x = rng.normal(size=p.x.shape).astype(np.float32)
    x[rng.random(x.shape) < 0.05] = np.nan
    (got,) = run_kernel(default(p, host_cpu()), p, [(p.x, x)], [p.y], tmp_path)
    assert 0 < np.isnan(got).sum() < got.size
    np.testing.assert_array_equal(got, expected(p, x))


def test_refusals_are_in_words() -> None:
    p = CASES["2x2 s2"]
    planar = replace(p, x=view(p.x.shape, False))
    assert ChannelPool().why_not(planar, host_cpu()) == "channels are not contiguous"
    assert isinstance(default(planar, host_cpu()), PixelPool)
    integers = replace(p, x=replace(p.x, dtype="int8"))
    assert PixelPool().why_not(integers, host_cpu()) == "pooling of int8"
