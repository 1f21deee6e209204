"""Tiles along a dimension: each output in one of them, and which inputs of theirs exist."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from convopt.schedules.primitives.tile_runs import Window, tile_runs

SMALL = st.integers(1, 5)


@given(st.integers(1, 30), st.integers(1, 20), SMALL, SMALL, SMALL, st.integers(0, 9), st.integers(1, 12))
def test_tiles_and_what_they_leave_out(
    inputs: int, outputs: int, taps: int, stride: int, dilation: int, pad: int, most: int
) -> None:
    window = Window(inputs, outputs, taps, stride, dilation, pad, bordered=False)
    positions = []
    for run in tile_runs(window, most):
        assert 1 <= run.size <= most
        assert run.count == 1 or not run.outside
        for tile in range(run.count):
            start = run.start + tile * run.size
            positions += range(start, start + run.size)
            read = {(o * stride + t * dilation) for o in range(run.size) for t in range(taps)}
            missing = {at for at in read if not 0 <= start * stride - pad + at < inputs}
            assert missing == run.outside
    assert positions == list(range(outputs))


def test_a_border_in_memory_needs_no_tiles_of_its_own() -> None:
    (run,) = tile_runs(Window(56, 56, 3, 1, 1, 1, bordered=True), 8)
    assert (run.count, run.size, run.outside) == (7, 8, frozenset())


def test_border_tiles_stand_alone() -> None:
    left, middle, right = tile_runs(Window(56, 56, 3, 1, 1, 1, bordered=False), 8)
    assert (left.count, left.outside) == (1, frozenset({0}))
    assert (middle.start, middle.count, middle.outside) == (8, 5, frozenset())
    assert (right.count, right.outside) == (1, frozenset({9}))
