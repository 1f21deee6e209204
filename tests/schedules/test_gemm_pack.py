"""Packing kernels against slices of the matrix, at the edge of readable memory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from convopt.schedules.base import TensorView, row_major
from convopt.schedules.gemm_pack import PackMatrix, PackProblem
from convopt.targets import host_cpu
from tests.fenced_kernels import Array, FencedKernels, FencedOperand

pytestmark = pytest.mark.kernels

HOST = host_cpu()
LANES = HOST.lanes


def transposed(g: int, k: int, n: int, dtype: str = "float32") -> TensorView:
    return TensorView((g, k, n), (k * n, 1, k), dtype)


CASES = {
    "whole tiles": PackProblem(row_major((1, 5, 4 * LANES)), 2 * LANES),
    "tail": PackProblem(row_major((2, 7, 2 * LANES + 3)), 2 * LANES),
    "tail of more than a vector": PackProblem(row_major((2, 3, 5 * LANES - 1)), 3 * LANES),
    "one column": PackProblem(row_major((3, 9, 1)), LANES),
    "one row": PackProblem(row_major((1, 1, 37)), LANES),
    "less than a vector": PackProblem(row_major((2, 4, 3)), 4 * LANES),
    "transposed": PackProblem(transposed(2, 6, 2 * LANES + 5), 2 * LANES),
    "rows apart": PackProblem(TensorView((2, 4, 13), (77, 19, 1)), LANES),
    "columns apart": PackProblem(TensorView((2, 4, 13), (1, 41, 3)), 2 * LANES),
    "one matrix for all groups": PackProblem(TensorView((3, 4, 11), (0, 11, 1)), LANES),
    "float16": PackProblem(row_major((2, 5, 2 * LANES + 3), "float16"), 2 * LANES),
    "float16 transposed": PackProblem(transposed(1, 5, 11, "float16"), LANES),
}


def expected(problem: PackProblem, matrix: Array) -> Array:
    """(g, panels, k, tile), zeros past the last column."""
    g, k, n = matrix.shape
    padded = np.zeros((g, k, problem.panels * problem.tile))
    padded[..., :n] = matrix
    return padded.reshape(g, k, problem.panels, problem.tile).swapaxes(1, 2)


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> FencedKernels:
    return FencedKernels([(PackMatrix(), p) for p in CASES.values()], HOST, tmp_path_factory.mktemp("pack"))


@pytest.mark.parametrize("at_end", [False, True], ids=["at the beginning", "at the end"])
@pytest.mark.parametrize("name", CASES)
def test_pack(name: str, at_end: bool, kernels: FencedKernels) -> None:
    problem = CASES[name]
    matrix = np.random.default_rng(0).normal(size=problem.matrix.shape).astype(problem.matrix.dtype)
    if problem.matrix.strides[0] == 0:
        matrix[:] = matrix[:1]
    source = FencedOperand.tight(problem.matrix, at_end)
    source.array[...] = matrix
    wanted = expected(problem, matrix)
    packed = FencedOperand.tight(row_major(wanted.shape), at_end)
    before = source.bytes.copy()
    kernels.run(list(CASES).index(name), [source, packed])
    np.testing.assert_array_equal(packed.array, wanted)
    assert np.array_equal(source.bytes, before)


def test_other_vector_widths(tmp_path: Path) -> None:
    for index, width in enumerate((16, 64)):
        target, problem = replace(HOST, vector_bytes=width), PackProblem(row_major((2, 3, 29)), width // 2)
        folder = tmp_path / str(index)
        folder.mkdir()
        kernel = FencedKernels([(PackMatrix(), problem)], target, folder)
        matrix = np.arange(2 * 3 * 29, dtype=np.float32).reshape(2, 3, 29)
        source = FencedOperand.tight(problem.matrix, True)
        source.array[...] = matrix
        wanted = expected(problem, matrix)
        packed = FencedOperand.tight(row_major(wanted.shape), True)
        kernel.run(0, [source, packed])
        np.testing.assert_array_equal(packed.array, wanted)
