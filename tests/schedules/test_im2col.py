"""Unfolding kernels against windows cut out by numpy, the input at the edge of readable memory."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from convopt.schedules.base import row_major
from convopt.schedules.im2col import Im2col, Im2colProblem
from convopt.targets import host_cpu
from tests.fenced_kernels import Array, FencedKernels, FencedOperand
from tests.schedules.conv_cases import Case

pytestmark = pytest.mark.kernels

HOST = host_cpu()

CASES = {
    "3x3": Case(33, 1, (1, 5, 7), (1, 3, 3), begin=(0, 1, 1), end=(0, 1, 1), batch=3),
    "stem s2": Case(3, 1, (1, 9, 31), (1, 7, 7), (1, 2, 2), begin=(0, 3, 3), end=(0, 3, 3)),
    "one channel": Case(1, 1, (1, 5, 14), (1, 3, 5), begin=(0, 0, 2), end=(0, 2, 2), batch=2),
    "unlike pads, s3": Case(17, 1, (1, 7, 5), (1, 2, 4), (1, 3, 1), begin=(0, 1, 3), end=(0, 0, 1)),
    "dilated": Case(4, 1, (1, 9, 11), (1, 3, 3), (1, 1, 2), (1, 2, 3), (0, 2, 3), (0, 2, 3)),
    "groups": Case(17, 1, (1, 5, 7), (1, 3, 3), begin=(0, 1, 1), end=(0, 1, 1), groups=2, batch=2),
    "in a slot": Case(8, 1, (1, 5, 7), (1, 3, 3), begin=(0, 1, 1), end=(0, 1, 1), x_gap=5),
    "planar": Case(5, 1, (1, 5, 7), (1, 3, 3), begin=(0, 1, 1), end=(0, 1, 1), x_planar=True, batch=2),
    "planar, one channel": Case(1, 1, (1, 5, 9), (1, 3, 3), begin=(0, 1, 1), end=(0, 1, 1), x_planar=True),
    "1-D": Case(3, 1, (1, 1, 31), (1, 1, 5), (1, 1, 2), begin=(0, 0, 4)),
    "3-D": Case(3, 1, (4, 5, 6), (3, 2, 3), (2, 1, 1), (1, 2, 1), (1, 0, 1), (1, 1, 1), groups=2),
    "float16": Case(9, 1, (1, 5, 7), (1, 3, 3), begin=(0, 1, 1), end=(0, 1, 1), x_dtype="float16"),
}


def problem_of(case: Case) -> Im2colProblem:
    x = case.problem.x
    return Im2colProblem(x, case.outputs, case.kernel, case.strides, case.dilations, case.begin)


def expected(case: Case, x: Array) -> Array:
    """(g, n*od*oh*ow, kd*kh*kw*c) by indices into the padded input."""
    padded = np.pad(x, [(0, 0), (0, 0), *((b, b + 99) for b in case.begin), (0, 0)])
    columns = []
    for tap in product(*map(range, case.kernel)):
        window = padded
        for d in range(3):
            at = np.arange(case.outputs[d]) * case.strides[d] + tap[d] * case.dilations[d]
            window = np.take(window, at, axis=2 + d)
        columns.append(window)
    stacked = np.stack(columns, axis=-2)  # g, n, od, oh, ow, taps, c
    return stacked.reshape(x.shape[0], -1, stacked.shape[-2] * stacked.shape[-1])


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> FencedKernels:
    pairs = [(Im2col(), problem_of(case)) for case in CASES.values()]
    return FencedKernels(pairs, HOST, tmp_path_factory.mktemp("im2col"))


@pytest.mark.parametrize("at_end", [False, True], ids=["at the beginning", "at the end"])
@pytest.mark.parametrize("name", CASES)
def test_im2col(name: str, at_end: bool, kernels: FencedKernels) -> None:
    case, problem = CASES[name], problem_of(CASES[name])
    values = np.random.default_rng(0).normal(size=problem.x.shape).astype(problem.x.dtype)
    x = FencedOperand.tight(problem.x, at_end, case.halo)
    x.bytes[...] = 0
    x.array[...] = values
    wanted = expected(case, values)
    assert wanted.shape == (case.groups, problem.rows, problem.columns)
    matrix = FencedOperand.tight(row_major(wanted.shape), at_end)
    kernels.run(list(CASES).index(name), [x, matrix])
    np.testing.assert_array_equal(matrix.array, wanted)


def test_some_rows_of_one_image(tmp_path: Path) -> None:
    """A chunk as the lowering cuts it: its x begins at the first input row of its first output row."""
    case = CASES["unlike pads, s3"]
    whole, row = problem_of(case), 1
    chunk = replace(whole, outputs=(1, 1, case.outputs[2]))
    assert (chunk.rows, Im2col().tasks(chunk, HOST)) == (case.outputs[2], 1)
    values = np.random.default_rng(0).normal(size=whole.x.shape).astype(np.float32)
    x = FencedOperand.tight(whole.x, True, case.halo)
    x.bytes[...] = 0
    x.array[...] = values
    x.element0 += row * case.strides[1] * whole.x.strides[3] * x.item
    wanted = expected(case, values)[:, row * chunk.rows : (row + 1) * chunk.rows]
    matrix = FencedOperand.tight(row_major(wanted.shape), True)
    FencedKernels([(Im2col(), chunk)], HOST, tmp_path).run(0, [x, matrix])
    np.testing.assert_array_equal(matrix.array, wanted)
