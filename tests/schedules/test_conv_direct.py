"""Direct convolution kernels against float64 sums, every operand at the edge of readable memory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from convopt.schedules.conv_direct import DirectConv
from convopt.schedules.conv_problem import pack_weight
from convopt.targets import CpuTarget
from tests.fenced_kernels import FencedKernels, FencedOperand, flat
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
    Data,
    check,
    instances,
)

# Channels 1, 3, 17, 33; features 1, 4, 27, 33, 64; widths 1, 5, 7, 14, 31: every tail of M, N and K appears.
CASES = {
    "stem 3x3 s2": Case(3, 27, (1, 9, 31), (1, 3, 3), (1, 2, 2), begin=(0, 1, 1), end=(0, 1, 1)),
    "3x3 33->33": Case(
        33,
        33,
        (1, 5, 7),
        (1, 3, 3),
        begin=(0, 1, 1),
        end=(0, 1, 1),
        batch=3,
        epilogue=SUM_RELU,
        others=(FULL,),
    ),
    "1x1 17->64": Case(17, 64, (1, 7, 14), batch=3, epilogue=SUM_RELU, others=(ROW,), bias=False),
    "1x1 s2 into a slot": Case(33, 27, (1, 7, 14), strides=(1, 2, 2), y_gap=21, epilogue=RELU),
    "begin unlike end": Case(17, 4, (1, 6, 5), (1, 4, 3), (1, 1, 3), begin=(0, 3, 0), end=(0, 0, 2)),
    "dilated": Case(3, 33, (1, 11, 14), (1, 3, 2), (1, 1, 2), (1, 2, 2), (0, 2, 1), (0, 2, 1), bias=False),
    "groups 2": Case(
        17, 27, (1, 5, 7), (1, 3, 3), begin=(0, 1, 1), end=(0, 1, 1), groups=2, x_gap=5, y_gap=3
    ),
    "groups 4, one feature": Case(
        3, 1, (1, 4, 31), (1, 1, 5), groups=4, batch=3, epilogue=FMA, others=(ROW, FULL)
    ),
    "1-D": Case(1, 64, (1, 1, 31), (1, 1, 7), (1, 1, 3), begin=(0, 0, 4), end=(0, 0, 1)),
    "3-D": Case(
        3,
        4,
        (4, 5, 7),
        (3, 2, 3),
        (2, 1, 2),
        (1, 2, 1),
        (1, 0, 1),
        (1, 1, 1),
        groups=2,
        epilogue=SUM_RELU,
        others=(PLANAR,),
    ),
    "one pixel": Case(64, 33, (1, 1, 1), (1, 3, 3), begin=(0, 1, 1), end=(0, 1, 1), epilogue=RELU),
    "one column": Case(17, 64, (1, 14, 1), (1, 3, 1), begin=(0, 1, 0), end=(0, 1, 0), batch=3),
    "planar x": Case(
        17,
        27,
        (1, 5, 7),
        (1, 3, 3),
        begin=(0, 1, 1),
        end=(0, 1, 1),
        x_planar=True,
        batch=3,
        epilogue=FMA,
        others=(PIXEL, SCALAR),
    ),
    "planar x, one channel": Case(
        1, 33, (1, 7, 14), (1, 3, 3), x_planar=True, begin=(0, 1, 1), end=(0, 1, 1)
    ),
    "x in a slot": Case(33, 64, (1, 7, 5), x_gap=31, batch=3, epilogue=FMA, others=(IMAGE, FULL)),
    "float16 x": Case(17, 27, (1, 5, 14), (1, 3, 3), begin=(0, 1, 1), end=(0, 1, 1), x_dtype="float16"),
    "float16 x and y": Case(
        33, 33, (1, 5, 7), y_gap=3, x_dtype="float16", y_dtype="float16", epilogue=SUM_RELU, others=(FULL,)
    ),
    "bfloat16 x and y": Case(
        17,
        27,
        (1, 5, 7),
        (1, 3, 3),
        begin=(0, 1, 1),
        end=(0, 1, 1),
        x_dtype="bfloat16",
        y_dtype="bfloat16",
        epilogue=SUM_RELU,
        others=(FULL,),
    ),
    "many channels": Case(1040, 27, (1, 3, 5), (1, 1, 3), begin=(0, 0, 1), end=(0, 0, 1), epilogue=RELU),
    "panels, a tail, groups": Case(
        272,
        33,
        (1, 2, 7),
        (1, 3, 3),
        begin=(0, 1, 1),
        end=(0, 1, 1),
        groups=2,
        y_gap=2,
        bias=False,
        epilogue=SUM_RELU,
        others=(FULL,),
    ),
}


def sample(case: Case, target: CpuTarget, offset: int, most: int) -> list[DirectConv]:
    """A few instances; the offset moves through all of them from case to case."""
    everything = instances(DirectConv, case, target)
    step = -(-len(everything) // most)
    return everything[offset % step :: step]


@pytest.mark.kernels
@pytest.mark.parametrize("name", CASES)
def test_some_instances(name: str, tmp_path: Path) -> None:
    check(CASES[name], sample(CASES[name], HOST, list(CASES).index(name) * 5, 3), HOST, tmp_path)


@pytest.mark.kernels
@pytest.mark.parametrize("lanes", ["4 lanes", "16 lanes"])
@pytest.mark.parametrize("name", ["3x3 33->33", "1x1 s2 into a slot", "panels, a tail, groups"])
def test_other_vector_widths(name: str, lanes: str, tmp_path: Path) -> None:
    target = TARGETS[lanes]
    check(CASES[name], sample(CASES[name], target, 7, 2), target, tmp_path)


@pytest.mark.slow
@pytest.mark.kernels
@pytest.mark.parametrize("lanes", TARGETS)
@pytest.mark.parametrize("name", CASES)
def test_every_instance(name: str, lanes: str, tmp_path: Path) -> None:
    """All for this machine, an eighth of them or so for the other widths."""
    most = 999 if lanes == "host" else 8
    check(CASES[name], sample(CASES[name], TARGETS[lanes], 0, most), TARGETS[lanes], tmp_path)


@pytest.mark.kernels
@pytest.mark.parametrize("chunks", [(1, 1), (2, 3), (99, 99)], ids=str)
@pytest.mark.parametrize("flat", [False, True], ids=["rows", "flat"])
def test_any_chunks(chunks: tuple[int, int], flat: bool, tmp_path: Path) -> None:
    """Chunks that don't divide the work, of one unit, and larger than all of it."""
    name, (features, rows) = "groups 2", chunks
    check(CASES[name], [DirectConv(3, 1, 17, flat, features, rows)], HOST, tmp_path)


def test_the_samples_cover_the_forms() -> None:
    """Flat and by rows, in one panel and in several, with every number of vectors."""
    found = set()
    for index, case in enumerate(CASES.values()):
        for s in sample(case, HOST, index * 5, 3):
            found |= {("vectors", s.vectors), ("form", s.flat, s.channel_block < case.channels)}
    assert {n for kind, n, *_ in found if kind == "vectors"} == {
        s.vectors for case in CASES.values() for s in instances(DirectConv, case, HOST)
    }
    assert {tuple(form) for kind, *form in found if kind == "form"} == {
        (False, False),
        (False, True),
        (True, False),
        (True, True),
    }


@pytest.mark.kernels
@pytest.mark.parametrize("at_end", [False, True])
def test_the_fence_is_felt(at_end: bool, tmp_path: Path) -> None:
    """The check itself: without its halo, the input's memory is left."""
    case = CASES["3x3 33->33"]
    data, schedule = Data.draw(replace(case, batch=1)), DirectConv(4, 1, 33, False, 2, 3)
    problem = data.case.problem
    kernels = FencedKernels([(schedule, problem)], HOST, tmp_path)
    packed = schedule.pack(problem, HOST, data.weight, data.bias)
    x = FencedOperand.tight(problem.x, at_end)
    operands = [x, *(flat(a, at_end) for a in packed)]
    operands += [FencedOperand.tight(v, at_end) for v in (*problem.others, problem.y)]
    with pytest.raises(AssertionError, match=r"left the memory of operand \[0\]"):
        kernels.run(0, operands)


def test_refusals() -> None:
    problem = CASES["3x3 33->33"].problem
    good = next(DirectConv.space(problem, HOST))
    planar = replace(problem, y=replace(problem.y, strides=(0, 5, 4, 3, 2, 7)))
    assert good.why_not(planar, HOST) == "output channels are not contiguous"
    assert "vector registers >" in str(replace(good, pixels=90).why_not(problem, HOST))
    assert replace(good, channel_block=5).why_not(problem, HOST) == "33 channels are not a multiple of 5"
    halves = replace(problem, y=replace(problem.y, dtype="float16"))
    assert (
        replace(good, channel_block=11).why_not(halves, HOST) == "partial sums can't wait in a float16 output"
    )


def test_packed_weights() -> None:
    """Element by element, from the order that the docstring gives."""
    weight = np.arange(2 * 5 * 6 * 1 * 2 * 3, dtype=np.float32).reshape(2, 5, 6, 1, 2, 3)
    packed = pack_weight(weight, 3, 4)
    assert packed.shape == (2, 2, 2, 1, 2, 3, 3, 4)
    for g, panel, block, d, h, w, c, k in np.ndindex(*packed.shape):
        feature = block * 4 + k
        expected = weight[g, feature, panel * 3 + c, d, h, w] if feature < 5 else 0
        assert packed[g, panel, block, d, h, w, c, k] == expected
