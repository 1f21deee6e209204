"""Kernels of convolutions in groups of few channels against float64 sums, operands at the edge of memory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from convopt.codegen.cpu import assembly
from convopt.schedules.base import TensorView
from convopt.schedules.conv_grouped import GroupedConv, channel_step
from convopt.selection.choose import choose_conv
from convopt.targets.cpu import BY_NAME
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
from tests.schedules.test_conv_assembly import inner_loops, spills

PADDED: dict[str, Any] = {"kernel": (1, 3, 3), "begin": (0, 1, 1), "end": (0, 1, 1)}
CASES = {
    "4 to 4": Case(4, 4, (1, 5, 23), groups=6, batch=2, **PADDED),
    "4 to 4, no border": Case(4, 4, (1, 6, 19), groups=7, batch=2, bordered=False, epilogue=RELU, **PADDED),
    "8 to 8 s2, no border": Case(
        8, 8, (1, 9, 14), groups=3, strides=(1, 2, 2), bordered=False, epilogue=SUM_RELU, others=(FULL,),
        **PADDED,
    ),
    "16 to 16": Case(16, 16, (1, 7, 7), groups=3, epilogue=SUM_RELU, others=(FULL,), **PADDED),
    "4 to 4 s2": Case(4, 4, (1, 9, 15), groups=5, strides=(1, 2, 2), bias=False, **PADDED),
    "1x1": Case(4, 4, (1, 3, 37), groups=9, epilogue=FMA, others=(ROW, IMAGE), batch=2),
    "two features per channel": Case(1, 2, (1, 5, 11), groups=11, epilogue=RELU, **PADDED),
    "two channels per feature": Case(2, 1, (1, 5, 11), groups=13, **PADDED),
    "4 to 2, dilated": Case(
        4, 2, (1, 9, 12), groups=7, kernel=(1, 3, 2), dilations=(1, 2, 3), begin=(0, 2, 1), end=(0, 1, 2),
        bordered=False,
    ),
    "5 to 16": Case(5, 16, (1, 4, 9), groups=2, epilogue=FMA, others=(PIXEL, SCALAR), **PADDED),
    "1-D, long": Case(4, 4, (1, 1, 60), groups=5, kernel=(1, 1, 11), begin=(0, 0, 5), end=(0, 0, 5)),
    "1-D s3": Case(
        2, 8, (1, 1, 40), groups=3, kernel=(1, 1, 7), strides=(1, 1, 3), bordered=False, begin=(0, 0, 4)
    ),
    "3-D, no border": Case(
        4, 4, (4, 5, 6), groups=4, kernel=(3, 3, 3), strides=(2, 1, 1), begin=(1, 1, 1), end=(1, 1, 0),
        bordered=False, epilogue=SUM_RELU, others=(PLANAR,),
    ),
    "pads wider than the image": Case(
        4, 4, (1, 2, 2), groups=3, kernel=(1, 3, 5), begin=(0, 4, 4), end=(0, 2, 4), bordered=False
    ),
    "in slots": Case(
        4, 4, (1, 5, 7), groups=5, x_gap=6, y_gap=37, batch=2, epilogue=SUM_RELU, others=(PIXEL,), **PADDED
    ),
    "float16": Case(
        4, 4, (1, 5, 9), groups=5, x_dtype="float16", y_dtype="float16", epilogue=SUM_RELU, others=(FULL,),
        **PADDED,
    ),
}  # fmt: skip


@pytest.mark.kernels
@pytest.mark.parametrize("name", CASES)
def test_some_instances(name: str, tmp_path: Path) -> None:
    everything = instances(GroupedConv, CASES[name], HOST)
    start = list(CASES).index(name)
    check(CASES[name], [everything[(start + 5 * i) % len(everything)] for i in range(2)], HOST, tmp_path)


@pytest.mark.slow
@pytest.mark.kernels
@pytest.mark.parametrize("lanes", TARGETS)
@pytest.mark.parametrize("name", CASES)
def test_every_instance(name: str, lanes: str, tmp_path: Path) -> None:
    possible = instances(GroupedConv, CASES[name], TARGETS[lanes])
    if possible:  # 4 features neither fill vectors of some widths nor divide them
        check(CASES[name], possible, TARGETS[lanes], tmp_path)


# ResNeXt-50 32x4d (Xie et al. 2017, table 1): its grouped layers, with the batch norm's bias and Relu.
RESNEXT = {
    "4 @56": Case(4, 4, (1, 56, 56), groups=32, epilogue=RELU, **PADDED),
    "8 s2 @56": Case(8, 8, (1, 56, 56), strides=(1, 2, 2), groups=32, epilogue=RELU, **PADDED),
    "8 @28": Case(8, 8, (1, 28, 28), groups=32, epilogue=RELU, **PADDED),
    "16 @14": Case(16, 16, (1, 14, 14), groups=32, epilogue=RELU, **PADDED),
    "8 @28, no border": Case(8, 8, (1, 28, 28), groups=32, bordered=False, **PADDED),
}


@pytest.mark.kernels
@pytest.mark.parametrize("target", ["znver3", "haswell", "skylake-avx512", "generic"])
@pytest.mark.parametrize("layer", RESNEXT)
def test_sums_stay_in_registers(layer: str, target: str) -> None:
    problem, cpu = RESNEXT[layer].problem, BY_NAME[target]
    possible = [s for s in GroupedConv.space(problem, cpu) if s.why_not(problem, cpu) is None]
    schedule = min(possible, key=lambda s: s.cost(problem, cpu).seconds)
    loops = inner_loops(assembly(schedule.apply(problem, cpu, "kernel"), cpu))
    assert loops, f"{schedule} has no inner loop of multiply-adds"
    for body in loops:
        assert not spills(body), f"{schedule}: {spills(body)[0]}"


def test_chosen_for_few_channels() -> None:
    assert choose_conv(RESNEXT["4 @56"].problem, BY_NAME["znver3"], 1).name == "grouped"


def test_refusals() -> None:
    schedule, plain, avx2 = GroupedConv(4, 1, 1), CASES["4 to 4"].problem, BY_NAME["haswell"]
    assert schedule.why_not(plain, avx2) is None
    assert schedule.why_not(Case(4, 4, (1, 5, 5)).problem, avx2) == "there are no groups of channels"
    nothing = replace(plain, kernel=(1, 3, 0))
    assert [s.why_not(nothing, avx2) for s in GroupedConv.space(nothing, avx2)] == ["there are no products"]
    odd = Case(4, 6, (1, 5, 5), groups=2).problem
    assert "6 output channels of a group neither fill" in str(schedule.why_not(odd, avx2))
    assert "one shuffle" in str(schedule.why_not(Case(3, 4, (1, 5, 5), groups=2).problem, avx2))
    assert "one shuffle" in str(schedule.why_not(Case(16, 4, (1, 5, 5), groups=2).problem, avx2))
    planar = Case(4, 4, (1, 5, 5), groups=2, x_planar=True).problem
    assert schedule.why_not(planar, avx2) == "input channels are not contiguous"
    assert "vector registers >" in str(replace(schedule, columns=20).why_not(plain, avx2))
    long = Case(4, 4, (1, 1, 60), groups=5, kernel=(1, 1, 11), begin=(0, 0, 5), bordered=False).problem
    assert "they read the border" in str(schedule.why_not(long, avx2))


def test_steps_between_channels() -> None:
    def step(group: int, channel: int, channels: int) -> int | None:
        return channel_step(TensorView((3, 1, 1, 1, 1, channels), (group, 0, 0, 0, 0, channel)))

    assert (step(4, 1, 4), step(20, 5, 4), step(0, 0, 4), step(7, 0, 1)) == (1, 5, 0, 7)
    assert step(8, 1, 4) is None
