"""Loop nests, task splits and vector covers, by properties."""

from __future__ import annotations

from math import prod

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from convopt.schedules.base import row_major
from convopt.schedules.primitives.nest import Loop, loops, power_of_two_below, split_tasks, vector_pieces

EXTENTS = st.lists(st.integers(1, 12), min_size=1, max_size=4)


def test_contiguous_dimensions_become_one_loop() -> None:
    view = row_major((2, 3, 4))
    assert loops(view.shape, [view.strides, view.strides], order_by=0) == (Loop(24, (1, 1)),)


def test_a_broadcast_keeps_its_dimension_apart() -> None:
    view = row_major((2, 3, 4))
    found = loops(view.shape, [view.strides, (0, 1, 0)], order_by=0)
    assert found == (Loop(2, (12, 0)), Loop(3, (4, 1)), Loop(4, (1, 0)))


@given(EXTENTS, st.randoms())
def test_loops_visit_every_element_once(shape: list[int], random: object) -> None:
    order = list(range(len(shape)))
    random.shuffle(order)  # type: ignore[attr-defined]
    strides, step = [0] * len(shape), 1
    for d in order:
        strides[d] = step
        step *= shape[d]
    found = loops(shape, [strides], order_by=0)
    assert [loop.strides[0] for loop in found] == sorted((x.strides[0] for x in found), reverse=True)
    offsets = np.zeros(1, int)
    for loop in found:
        offsets = np.add.outer(offsets, np.arange(loop.extent) * loop.strides[0]).reshape(-1)
    assert sorted(offsets) == list(range(prod(shape)))


@given(EXTENTS, st.integers(1, 64), st.sampled_from([1, 4, 16]), st.sampled_from([1, 64, 1024]))
def test_tasks_cover_the_nest(extents: list[int], step_bytes: int, multiple: int, grain: int) -> None:
    tasks = split_tasks(extents, step_bytes, multiple, grain)
    seen = np.zeros(extents[: tasks.depth + 1], int)
    for task in range(tasks.count):
        outer, start = tasks.decode(task)
        assert 0 <= start <= extents[tasks.depth] - tasks.chunk
        seen[(*outer, slice(start, start + tasks.chunk))] += 1
    assert seen.min() >= 1
    if tasks.count > 1:  # never less work than asked for, if there is as much
        assert tasks.chunk * prod(extents[tasks.depth + 1 :]) * step_bytes >= grain


@given(st.integers(1, 100), st.sampled_from([4, 8, 16, 32]))
def test_vectors_cover_the_extent(extent: int, lanes: int) -> None:
    pieces = list(vector_pieces(extent, lanes))
    assert {i for start, width in pieces for i in range(start, start + width)} == set(range(extent))
    assert all(width == min(lanes, power_of_two_below(extent)) for _, width in pieces)


def test_an_empty_nest_has_no_tasks() -> None:
    assert split_tasks([3, 0, 4], 4).count == 0
