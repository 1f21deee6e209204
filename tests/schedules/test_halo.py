"""The border becomes zero, the inner part stays as it was."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from convopt.schedules.base import TensorView, row_major
from convopt.schedules.halo import HaloFill, HaloProblem
from convopt.targets import host_cpu
from tests.kernel_harness import Operand, compile_kernel, ctypes

pytestmark = pytest.mark.kernels

NCHW, NHWC = (0, 1, 2, 3), (0, 2, 3, 1)
Halo = tuple[tuple[int, int], ...]
HALOS: list[Halo] = [
    ((0, 0), (0, 0), (1, 1), (1, 1)),
    ((0, 0), (0, 0), (2, 0), (0, 3)),
    ((0, 0), (0, 0), (0, 0), (1, 2)),
    ((0, 0), (0, 0), (3, 1), (0, 0)),
    ((0, 0), (1, 0), (1, 1), (2, 2)),
    ((1, 1), (0, 1), (0, 0), (0, 1)),
]


@pytest.mark.parametrize("halo", HALOS, ids=str)
@pytest.mark.parametrize("order", [NCHW, NHWC], ids=["nchw", "nhwc"])
@pytest.mark.parametrize("shape", [(2, 3, 5, 7), (1, 20, 9, 30), (1, 1, 4, 4)], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_border(
    halo: Halo, order: tuple[int, ...], shape: tuple[int, ...], dtype: str, tmp_path: Path
) -> None:
    whole = tuple(n + sum(h) for n, h in zip(shape, halo, strict=True))
    strides, step = [0] * 4, 1
    for d in reversed(order):
        strides[d] = step
        step *= whole[d]
    outer = Operand.make(TensorView(whole, tuple(strides), dtype))
    outer.array[...] = np.random.default_rng(0).normal(size=whole).astype(dtype)
    inside = tuple(slice(b, b + n) for n, (b, _) in zip(shape, halo, strict=True))
    want = np.zeros(whole, dtype)
    want[inside] = outer.array[inside]
    around = outer.outside()

    problem = HaloProblem(TensorView(shape, tuple(strides), dtype), halo)
    function = compile_kernel(HaloFill(), problem, tmp_path)
    first = sum(b * s for (b, _), s in zip(halo, strides, strict=True)) * np.dtype(dtype).itemsize
    pointer = ctypes.c_void_p(outer.buffer.ctypes.data + outer.start + first)
    tasks = HaloFill().tasks(problem, host_cpu())
    for begin, end in ((tasks // 2, tasks), (0, tasks // 2)):
        function(ctypes.c_int32(begin), ctypes.c_int32(end), None, pointer)
    np.testing.assert_array_equal(outer.array, want)
    assert np.array_equal(outer.outside(), around)


def test_no_border_is_refused() -> None:
    problem = HaloProblem(row_major((3, 4)), ((0, 0), (0, 0)))
    assert HaloFill().why_not(problem, host_cpu()) == "no border"
