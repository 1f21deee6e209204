"""What Slice takes along an axis: all bounds around small axes, against the specification's words."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from convopt.ir.slices import slice_range
from tests.oracle.movement import slice_

LARGEST = 2**63 - 1


@pytest.mark.parametrize("size", range(4))
def test_every_slice_of_a_small_axis(size: int) -> None:
    bounds = [*range(-6, 7), LARGEST, -LARGEST]
    x = np.arange(size)
    for start, end, step in itertools.product(bounds, bounds, (1, 2, 3, -1, -2, -3)):
        expected = slice_(x, [start], [end], [0], [step])
        assert list(slice_range(start, end, step, size)) == expected.tolist(), (start, end, step)


def test_backwards_from_before_the_axis() -> None:
    """Python's slice is empty here; ONNX clamps the start to the first element."""
    assert list(slice_range(-4, -LARGEST, -2, 3)) == [0]
    assert list(slice_range(-1, -LARGEST, -1, 3)) == [2, 1, 0]
