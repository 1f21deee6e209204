"""Winograd kernels against float64 sums, every operand at the edge of readable memory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from convopt.schedules.conv_winograd import TRANSFORMS, WinogradConv
from tests.schedules.conv_cases import (
    FMA,
    FULL,
    HOST,
    PIXEL,
    RELU,
    ROW,
    SUM_RELU,
    TARGETS,
    Case,
    check,
    instances,
)


def square(channels: int, features: int, height: int, width: int, **options: object) -> Case:
    given = {"begin": (0, 1, 1), "end": (0, 1, 1)} | options
    return Case(channels, features, (1, height, width), kernel=(1, 3, 3), **given)  # type: ignore[arg-type]


CASES = {
    "whole tiles": square(16, 32, 8, 8, epilogue=RELU),
    "cut tiles": square(16, 24, 9, 11, batch=3),
    "7x7, tail of channels": square(32, 27, 7, 7, epilogue=SUM_RELU, others=(FULL,)),
    "no pads": square(16, 16, 10, 7, begin=(0, 0, 0), end=(0, 0, 0), bias=False),
    "unlike pads": square(16, 33, 6, 13, begin=(0, 2, 0), end=(0, 0, 3), epilogue=FMA, others=(ROW, PIXEL)),
    "smaller than a tile": square(16, 16, 1, 2),
    "one row": square(16, 16, 1, 17),
    "groups": square(16, 20, 5, 9, groups=2, batch=2),
    "float16": square(16, 17, 7, 9, x_dtype="float16", y_dtype="float16", epilogue=RELU),
    "bfloat16": square(16, 20, 5, 6, x_dtype="bfloat16", y_dtype="bfloat16", epilogue=RELU),
    "stride 2, whole tiles": square(16, 32, 24, 24, strides=(1, 2, 2), epilogue=RELU),
    "stride 2, cut tiles": square(16, 24, 13, 28, strides=(1, 2, 2), batch=2),
    "stride 2, unlike pads": square(
        16, 33, 14, 14, strides=(1, 2, 2), begin=(0, 0, 0), end=(0, 1, 1), epilogue=SUM_RELU, others=(FULL,)
    ),
    "stride 2, groups": square(16, 20, 7, 9, strides=(1, 2, 2), groups=2, x_dtype="float16"),
    "borderless": square(16, 16, 9, 6, bordered=False, epilogue=RELU),
    "borderless, stride 2": square(
        16, 17, 10, 11, strides=(1, 2, 2), begin=(0, 2, 0), end=(0, 0, 2), bordered=False, batch=2
    ),
    "planes": Case(
        16, 20, (4, 6, 9), kernel=(3, 3, 3), begin=(1, 1, 1), end=(1, 1, 1), epilogue=SUM_RELU, others=(FULL,)
    ),
    "planes, strided and dilated": Case(
        16,
        16,
        (7, 5, 6),
        kernel=(2, 3, 3),
        strides=(2, 1, 1),
        dilations=(3, 1, 1),
        begin=(2, 1, 0),
        end=(1, 0, 1),
    ),
    "planes, borderless": Case(
        16, 16, (4, 5, 6), kernel=(2, 3, 3), begin=(0, 1, 1), end=(0, 1, 1), bordered=False
    ),
    "in slots": square(16, 16, 6, 5, x_gap=16, y_gap=24, batch=2),
}


@pytest.mark.kernels
@pytest.mark.parametrize("name", CASES)
def test_some_instances(name: str, tmp_path: Path) -> None:
    everything = instances(WinogradConv, CASES[name], HOST)
    by_m = [[s for s in everything if s.m == m] for m in sorted({s.m for s in everything})]
    start = list(CASES).index(name)
    check(CASES[name], [group[start % len(group)] for group in by_m], HOST, tmp_path)


@pytest.mark.slow
@pytest.mark.kernels
@pytest.mark.parametrize("lanes", TARGETS)
@pytest.mark.parametrize("name", CASES)
def test_every_instance(name: str, lanes: str, tmp_path: Path) -> None:
    check(CASES[name], instances(WinogradConv, CASES[name], TARGETS[lanes]), TARGETS[lanes], tmp_path)


@pytest.mark.parametrize(("stride", "m"), TRANSFORMS)
def test_transforms_convolve(stride: int, m: int) -> None:
    """A^T [(G g G^T) * (B^T d B)] A is the correlation of d with g, in float64."""
    rng, t = np.random.default_rng(0), TRANSFORMS[stride, m]
    b_t, a_t, g = (np.array(matrix) for matrix in (t.b_t, t.a_t, t.g))
    assert t.size == stride * (m - 1) + 3
    data, taps = rng.standard_normal((t.size, t.size)), rng.standard_normal((3, 3))
    found = a_t @ ((g @ taps @ g.T) * (b_t @ data @ b_t.T)) @ a_t.T
    corners = [[(stride * i, stride * j) for j in range(m)] for i in range(m)]
    expected = [[(data[i : i + 3, j : j + 3] * taps).sum() for i, j in row] for row in corners]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-13)


def test_refusals() -> None:
    schedule, plain = WinogradConv(4, 4, 2, 1, 2, 1, 1), CASES["whole tiles"].problem
    assert schedule.why_not(plain, HOST) is None
    assert schedule.why_not(replace(plain, dilations=(1, 2, 2)), HOST) == "only 3x3 with dilation 1"
    for strides in ((1, 1, 2), (1, 3, 3), (2, 2, 1)):
        assert f"strides {strides}" in str(schedule.why_not(replace(plain, strides=strides), HOST))
    odd = square(17, 16, 8, 8).problem
    assert "not contiguous vectors" in str(schedule.why_not(odd, HOST))
    deep = replace(CASES["planes"].problem, bordered=False)
    assert "leaves the input's depth" in str(schedule.why_not(deep, HOST))
    few = square(16, 15, 8, 8).problem
    assert "don't pay" in str(schedule.why_not(few, HOST))
