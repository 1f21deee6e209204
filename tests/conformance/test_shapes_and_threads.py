"""Open dims are bound by each call; threads are obeyed per module, and any number of them may call."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import convopt
from tests.conformance.problems import values
from tests.conformance.small import assert_right, image, small

pytestmark = pytest.mark.kernels


def test_shapes_are_bound_by_each_call(module: Any) -> None:
    for n, h, w in [(1, 6, 7), (2, 6, 7), (1, 9, 5), (1, 1, 1), (1, 6, 7)]:
        assert_right(module(image(n, h, w)), image(n, h, w))


def test_programs_are_kept_but_not_for_ever() -> None:
    optimized = convopt.optimize(small(), threads=1)
    for width in range(3, 15):
        assert_right(optimized(image(1, 3, width)), image(1, 3, width))
    assert 1 <= len(optimized.programs) < 12
    last = optimized.programs[-1]
    optimized(image(1, 3, 14))
    assert optimized.programs[-1] is last, "a shape met before was compiled again"


def test_a_batch_of_none() -> None:
    y, z = convopt.optimize(small(), threads=1)(image(0))
    assert y.shape == (0, 4, 6, 7)
    assert z.shape == (0, 4, 1, 1)


def test_modules_obey_their_own_thread_counts() -> None:
    """Alternating calls of two modules in one process: each is right, with the threads that it was given."""
    one = convopt.optimize(small(), shapes={"x": (1, 3, 6, 7)}, threads=1)
    two = convopt.optimize(small(), shapes={"x": (1, 3, 6, 7)}, threads=2)
    before = _threads()
    one(image())
    assert _threads() == before, "one thread is the caller's own"
    for _ in range(3):
        assert_right(one(image()), image())
        assert_right(two(image()), image())
    assert _threads() - before <= 1, "two threads are the caller's and one more"


def _threads() -> int:
    """How many threads this process has, by Linux's count."""
    return len(list(Path("/proc/self/task").iterdir()))


def test_one_module_serves_many_callers(module: Any) -> None:
    """Also with different shapes at a time, each caller checking its own results."""
    inputs = [image(1 + i % 2, 6, 5 + i % 3) * np.float32(i + 1) for i in range(8)]
    expected = [module(x) for x in inputs]

    def caller(i: int) -> None:
        for _ in range(25):
            for result, value in zip(module(inputs[i]), expected[i], strict=True):
                np.testing.assert_array_equal(result, value)

    with ThreadPoolExecutor(len(inputs)) as pool:
        list(pool.map(caller, range(len(inputs))))


def test_the_number_of_threads_does_not_change_the_result() -> None:
    shapes = {"x": (2, 3, 19, 23)}
    x = values(shapes["x"], "x")
    results = [convopt.optimize(small(), shapes=shapes, threads=n)(x) for n in (1, 2, 3)]
    for other in results[1:]:
        for a, b in zip(results[0], other, strict=True):
            np.testing.assert_array_equal(a, b)
