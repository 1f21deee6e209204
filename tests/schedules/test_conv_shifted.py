"""Kernels of shifted products against float64 sums, every operand at the edge of readable memory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from convopt.schedules.conv_shifted import ShiftedConv
from convopt.selection.choose import choose_conv
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

CASES = {
    "3x3 to 4": Case(16, 4, (1, 7, 9), kernel=(1, 3, 3), begin=(0, 1, 1), end=(0, 1, 1), batch=2),
    "3x3 to 27": Case(
        12, 27, (1, 10, 11), kernel=(1, 3, 3), begin=(0, 1, 1), end=(0, 1, 1), epilogue=SUM_RELU,
        others=(FULL,),
    ),
    "to 1, unlike pads": Case(
        5, 1, (1, 9, 14), kernel=(1, 5, 2), begin=(0, 4, 0), end=(0, 1, 3), epilogue=RELU, bias=False
    ),
    "dilated, to 3": Case(
        8, 3, (1, 9, 9), kernel=(1, 2, 3), dilations=(1, 3, 2), begin=(0, 2, 1), epilogue=FMA,
        others=(ROW, PIXEL),
    ),
    "no border": Case(
        8, 4, (1, 7, 6), kernel=(1, 3, 3), begin=(0, 1, 1), end=(0, 1, 1), batch=2, groups=2, bordered=False
    ),
    "no pads": Case(6, 5, (1, 6, 11), kernel=(1, 3, 4), batch=3),
    "pads wider than the image": Case(
        9, 2, (1, 1, 2), kernel=(1, 3, 5), begin=(0, 3, 4), end=(0, 2, 4), bordered=False
    ),
    "1-D": Case(7, 6, (1, 1, 50), kernel=(1, 1, 9), begin=(0, 0, 4), end=(0, 0, 4)),
    "images of a volume": Case(8, 3, (3, 4, 5), kernel=(1, 3, 3), begin=(0, 1, 1), end=(0, 1, 1)),
    "groups, planar input": Case(
        4, 3, (1, 5, 6), groups=3, kernel=(1, 3, 3), begin=(0, 1, 1), end=(0, 1, 1), x_planar=True
    ),
    "in slots": Case(6, 3, (1, 5, 6), kernel=(1, 3, 3), x_gap=5, y_gap=7, begin=(0, 1, 1), end=(0, 1, 1)),
    "float16": Case(16, 4, (1, 5, 6), kernel=(1, 3, 3), x_dtype="float16", y_dtype="float16"),
}  # fmt: skip


@pytest.mark.kernels
@pytest.mark.parametrize("name", CASES)
def test_some_instances(name: str, tmp_path: Path) -> None:
    everything = instances(ShiftedConv, CASES[name], HOST)
    start = list(CASES).index(name)
    check(CASES[name], [everything[(start + 2 * i) % len(everything)] for i in range(2)], HOST, tmp_path)


@pytest.mark.slow
@pytest.mark.kernels
@pytest.mark.parametrize("lanes", TARGETS)
@pytest.mark.parametrize("name", CASES)
def test_every_instance(name: str, lanes: str, tmp_path: Path) -> None:
    check(CASES[name], instances(ShiftedConv, CASES[name], TARGETS[lanes]), TARGETS[lanes], tmp_path)


def test_refusals() -> None:
    schedule, plain = ShiftedConv(6, 2, 4), CASES["3x3 to 4"].problem
    assert schedule.why_not(plain, HOST) is None
    assert "stride" in str(schedule.why_not(replace(plain, strides=(1, 1, 2)), HOST))
    assert "nothing to shift" in str(schedule.why_not(Case(16, 4, (1, 5, 5)).problem, HOST))
    assert "three dimensions" in str(schedule.why_not(Case(16, 4, (3, 5, 5), kernel=(2, 2, 2)).problem, HOST))
    assert (
        schedule.why_not(Case(16, 33, (1, 5, 5), kernel=(1, 3, 3)).problem, HOST) == "33 output channels > 32"
    )


def test_chosen_for_the_contests_fourth_of_a_vector() -> None:
    """Case 6 of the contest: 3x3, 320 channels to 4."""
    problem = Case(320, 4, (1, 64, 64), kernel=(1, 3, 3), begin=(0, 1, 1), end=(0, 1, 1), batch=2).problem
    assert choose_conv(problem, HOST, 1).name == "shifted"
