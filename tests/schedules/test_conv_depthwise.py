"""Depthwise kernels against float64 sums, every operand at the edge of readable memory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from convopt.schedules.conv_depthwise import DepthwiseConv
from tests.schedules.conv_cases import (
    FMA,
    FULL,
    HOST,
    IMAGE,
    PIXEL,
    PLANAR,
    RELU,
    ROW,
    SCALAR,
    SUM_RELU,
    TARGETS,
    Case,
    check,
    instances,
)


def depthwise(groups: int, extents: tuple[int, int, int], **options: object) -> Case:
    return Case(1, 1, extents, groups=groups, **options)  # type: ignore[arg-type]


CASES = {
    "3x3": depthwise(33, (1, 7, 14), kernel=(1, 3, 3), begin=(0, 1, 1), end=(0, 1, 1), batch=3),
    "3x3 s2": depthwise(
        64, (1, 9, 14), kernel=(1, 3, 3), strides=(1, 2, 2), begin=(0, 1, 1), end=(0, 0, 0), epilogue=RELU
    ),
    "5x5": depthwise(
        17, (1, 5, 31), kernel=(1, 5, 5), begin=(0, 2, 2), end=(0, 2, 2), epilogue=SUM_RELU, others=(FULL,)
    ),
    "7x7, unlike pads": depthwise(8, (1, 9, 5), kernel=(1, 7, 7), begin=(0, 4, 1), end=(0, 2, 5), bias=False),
    "9x9, looped": depthwise(27, (1, 5, 7), kernel=(1, 9, 9), begin=(0, 4, 4), end=(0, 4, 4), batch=3),
    "looped s2 d2": depthwise(
        5,
        (1, 5, 31),
        kernel=(1, 5, 11),
        strides=(1, 2, 2),
        dilations=(1, 2, 2),
        begin=(0, 4, 10),
        end=(0, 4, 10),
    ),
    "dilated": depthwise(
        3, (1, 11, 14), kernel=(1, 3, 2), strides=(1, 1, 2), dilations=(1, 2, 2), end=(0, 1, 0)
    ),
    "s3": depthwise(27, (1, 10, 16), kernel=(1, 2, 3), strides=(1, 3, 3), end=(0, 1, 2), epilogue=RELU),
    "1-D": depthwise(
        33, (1, 1, 31), kernel=(1, 1, 5), begin=(0, 0, 4), batch=3, epilogue=FMA, others=(ROW, IMAGE)
    ),
    "3-D": depthwise(
        17,
        (4, 5, 6),
        kernel=(3, 3, 3),
        strides=(2, 1, 1),
        begin=(1, 1, 1),
        end=(1, 1, 0),
        epilogue=FMA,
        others=(PLANAR, SCALAR),
    ),
    "one channel": depthwise(1, (1, 7, 9), kernel=(1, 3, 3), begin=(0, 1, 1), end=(0, 1, 1)),
    "in slots": depthwise(
        27,
        (1, 5, 7),
        kernel=(1, 3, 3),
        begin=(0, 1, 1),
        end=(0, 1, 1),
        x_gap=6,
        y_gap=37,
        batch=3,
        epilogue=SUM_RELU,
        others=(PIXEL,),
    ),
    "3x3, no border": depthwise(
        21, (1, 7, 14), kernel=(1, 3, 3), begin=(0, 1, 1), end=(0, 1, 1), batch=2, bordered=False
    ),
    "5x5 s2 d2, no border": depthwise(
        11,
        (1, 12, 15),
        kernel=(1, 5, 5),
        strides=(1, 2, 2),
        dilations=(1, 2, 2),
        begin=(0, 4, 3),
        end=(0, 3, 4),
        bordered=False,
        epilogue=SUM_RELU,
        others=(FULL,),
    ),
    "pads wider than the image": depthwise(
        9, (1, 2, 2), kernel=(1, 3, 5), begin=(0, 4, 4), end=(0, 2, 4), bordered=False
    ),
    "3-D, no border in its height": depthwise(
        8, (3, 5, 6), kernel=(2, 3, 3), begin=(0, 1, 0), end=(0, 1, 0), bordered=False
    ),
    "1x1": depthwise(33, (1, 3, 5), kernel=(1, 1, 1), epilogue=SUM_RELU, others=(FULL,)),
    "float16": depthwise(
        27,
        (1, 5, 7),
        kernel=(1, 3, 3),
        begin=(0, 1, 1),
        end=(0, 1, 1),
        x_dtype="float16",
        y_dtype="float16",
        epilogue=SUM_RELU,
        others=(FULL,),
    ),
}


@pytest.mark.kernels
@pytest.mark.parametrize("name", CASES)
def test_some_instances(name: str, tmp_path: Path) -> None:
    everything = instances(DepthwiseConv, CASES[name], HOST)
    start = list(CASES).index(name)
    check(CASES[name], [everything[(start + 3 * i) % len(everything)] for i in range(2)], HOST, tmp_path)


@pytest.mark.slow
@pytest.mark.kernels
@pytest.mark.parametrize("lanes", TARGETS)
@pytest.mark.parametrize("name", CASES)
def test_every_instance(name: str, lanes: str, tmp_path: Path) -> None:
    check(CASES[name], instances(DepthwiseConv, CASES[name], TARGETS[lanes]), TARGETS[lanes], tmp_path)


@pytest.mark.kernels
@pytest.mark.parametrize("chunk", [1, 2, 3, 99])
@pytest.mark.parametrize("groups", [7, 24, 33])
def test_any_run_of_channels(groups: int, chunk: int, tmp_path: Path) -> None:
    """Runs that don't divide the vectors, of one vector, and longer than all; with and without a tail."""
    case = replace(CASES["3x3"], groups=groups)
    check(case, [DepthwiseConv(2, 2, chunk)], HOST, tmp_path)


def test_refusals() -> None:
    problem, schedule = CASES["3x3"].problem, DepthwiseConv(2, 2, 1)
    several = Case(2, 1, (1, 5, 5), groups=3).problem
    assert schedule.why_not(several, HOST) == "groups have more than one channel"
    planar = replace(problem, x=replace(problem.x, strides=(98, 1, 1, 14, 1, 1)))
    assert schedule.why_not(planar, HOST) == "channels are not contiguous"
    assert "vector registers >" in str(DepthwiseConv(9, 9, 1).why_not(problem, HOST))
    large = CASES["9x9, looped"].problem
    assert schedule.why_not(large, HOST) == "81 taps are not unrolled: one row at a time"
    alone = replace(large, bordered=False)
    assert DepthwiseConv(1, 2, 1).why_not(alone, HOST) == "81 taps are not unrolled: they read the border"
    deep = replace(CASES["3-D"].problem, bordered=False)
    assert "input's depth" in str(DepthwiseConv(1, 2, 1).why_not(deep, HOST))
    wide = depthwise(8, (1, 40, 40), kernel=(1, 7, 7), begin=(0, 9, 9), end=(0, 9, 9), bordered=False).problem
    assert "products of border tiles > 8192" in str(DepthwiseConv(1, 1, 1).why_not(wide, HOST))
