"""Kernels for few output channels against float64 sums, every operand at the edge of readable memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from convopt.schedules.conv_few_features import FewFeaturesConv
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
    "to 1, strided": Case(
        32, 1, (1, 9, 14), kernel=(1, 5, 3), strides=(1, 2, 2), begin=(0, 2, 0), end=(0, 1, 1), epilogue=RELU
    ),
    "1x1 to 3": Case(48, 3, (1, 5, 7), epilogue=SUM_RELU, others=(FULL,)),
    "dilated, to 2": Case(
        16, 2, (1, 9, 9), kernel=(1, 2, 3), dilations=(1, 2, 2), bias=False, epilogue=FMA, others=(ROW, PIXEL)
    ),
    "rows that touch": Case(4, 5, (1, 6, 11), kernel=(1, 3, 4), batch=3),
    "1-D, long": Case(1, 8, (1, 1, 300), kernel=(1, 1, 64), strides=(1, 1, 5)),
    "3-D": Case(16, 3, (3, 4, 5), kernel=(2, 3, 3), begin=(1, 1, 1), end=(0, 1, 1)),
    "groups, planar output of one": Case(16, 1, (1, 5, 6), groups=3, kernel=(1, 3, 3)),
    "in slots": Case(16, 3, (1, 5, 6), kernel=(1, 3, 3), x_gap=5, y_gap=7, begin=(0, 1, 1), end=(0, 1, 1)),
    "float16": Case(16, 4, (1, 5, 6), kernel=(1, 3, 3), x_dtype="float16", y_dtype="float16"),
}


@pytest.mark.kernels
@pytest.mark.parametrize("name", CASES)
def test_some_instances(name: str, tmp_path: Path) -> None:
    everything = instances(FewFeaturesConv, CASES[name], HOST)
    start = list(CASES).index(name)
    check(CASES[name], [everything[(start + 5 * i) % len(everything)] for i in range(2)], HOST, tmp_path)


@pytest.mark.slow
@pytest.mark.kernels
@pytest.mark.parametrize("lanes", TARGETS)
@pytest.mark.parametrize("name", CASES)
def test_every_instance(name: str, lanes: str, tmp_path: Path) -> None:
    check(CASES[name], instances(FewFeaturesConv, CASES[name], TARGETS[lanes]), TARGETS[lanes], tmp_path)


def test_refusals() -> None:
    schedule = FewFeaturesConv(2, 1)
    assert schedule.why_not(Case(16, 9, (1, 5, 5)).problem, HOST) == "9 output channels > 8"
    assert "no multiple" in str(schedule.why_not(Case(5, 2, (1, 5, 5)).problem, HOST))
    rows = FewFeaturesConv(2, 1, 3).why_not(Case(16, 2, (1, 5, 5), kernel=(1, 2, 3)).problem, HOST)
    assert rows == "3 panels of 2 kernel rows"
    planar = Case(16, 2, (1, 5, 5), x_planar=True).problem
    assert schedule.why_not(planar, HOST) == "input channels are not contiguous"
    assert "vector registers >" in str(FewFeaturesConv(12, 1).why_not(Case(16, 4, (1, 5, 5)).problem, HOST))
