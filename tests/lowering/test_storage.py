"""Strides of views against numpy's own, by brute force; and where a plan puts values."""

from __future__ import annotations

from math import prod

import numpy as np
import onnx_ir as ir
from hypothesis import given
from hypothesis import strategies as st

from convopt.ir.layout import CHANNELS_LAST, memory_order, set_layout
from convopt.lowering.storage import (
    Place,
    dense_view,
    reshape_transform,
    reshaped_strides,
    slice_transform,
    transpose_transform,
)
from convopt.schedules.base import TensorView


def addresses(view: TensorView, offset: int = 0) -> np.ndarray:
    """The address of every element, in the view's shape."""
    result = np.full(view.shape, offset)
    for dim, (extent, stride) in enumerate(zip(view.shape, view.strides, strict=True)):
        result += (np.arange(extent) * stride).reshape(
            [-1 if d == dim else 1 for d in range(len(view.shape))]
        )
    return result


def expressible(found: np.ndarray) -> bool:
    """Whether one stride per dim gives these addresses."""
    for dim in range(found.ndim):
        steps = np.diff(found, axis=dim)
        if steps.size and (steps != steps.flat[0]).any():
            return False
    return True


@st.composite
def views(draw: st.DrawFn) -> TensorView:
    """Dense, permuted, with gaps, broadcast: up to 4 dims of small extents."""
    shape = tuple(draw(st.lists(st.sampled_from([1, 2, 3, 4, 6]), max_size=4)))
    order = draw(st.permutations(range(len(shape))))
    strides, step = [0] * len(shape), 1
    for dim in order:
        strides[dim] = 0 if draw(st.integers(0, 9)) == 0 else step
        step *= shape[dim] + draw(st.sampled_from([0, 0, 0, 1, 2]))
    return TensorView(shape, tuple(strides))


@st.composite
def factorisations(draw: st.DrawFn, size: int) -> tuple[int, ...]:
    """A shape with that many elements."""
    shape = []
    while size > 1 and len(shape) < 5:
        divisors = [d for d in range(1, size + 1) if size % d == 0]
        shape.append(draw(st.sampled_from(divisors)))
        size //= shape[-1]
    return (*shape, size) if size > 1 or draw(st.booleans()) else tuple(shape)


@given(st.data())
def test_reshaped_strides(data: st.DataObject) -> None:
    """Right where there is an answer, and None only where no strides exist."""
    view = data.draw(views())
    shape = data.draw(factorisations(prod(view.shape)))
    wanted = addresses(view).reshape(shape)
    strides = reshaped_strides(view, shape)
    if strides is None:
        assert not expressible(wanted)
    else:
        np.testing.assert_array_equal(addresses(TensorView(shape, strides)), wanted)


@given(st.data())
def test_slices_and_transposes(data: st.DataObject) -> None:
    view = data.draw(views().filter(lambda v: v.shape))
    place, wanted = Place(view, 7), addresses(view, 7)
    for _ in range(3):
        axis = data.draw(st.integers(0, len(view.shape) - 1))
        extent = place.view.shape[axis]
        start = data.draw(st.integers(0, extent - 1))
        step = data.draw(st.integers(1, 3))
        count = data.draw(st.integers(1, -(-(extent - start) // step)))
        result = slice_transform(axis, start, step, count)(place)
        assert result is not None
        index = [slice(None)] * wanted.ndim
        index[axis] = slice(start, start + (count - 1) * step + 1, step)
        place, wanted = result, wanted[tuple(index)]
        perm = tuple(data.draw(st.permutations(range(wanted.ndim))))
        result = transpose_transform(perm)(place)
        assert result is not None
        place, wanted = result, wanted.transpose(perm)
        np.testing.assert_array_equal(addresses(place.view, place.offset), wanted)


def test_a_reshape_keeps_the_offset_and_the_type() -> None:
    place = Place(TensorView((4, 6), (12, 2), "float16"), 5)
    assert reshape_transform((2, 2, 3, 2))(place) == Place(
        TensorView((2, 2, 3, 2), (24, 12, 4, 2), "float16"), 5
    )
    assert reshape_transform((6, 4))(Place(TensorView((4, 6), (13, 2)), 5)) is None


@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=5),
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), min_size=5, max_size=5),
    st.booleans(),
)
def test_dense_view(shape: list[int], borders: list[tuple[int, int]], last: bool) -> None:
    """With its halo the value fills its memory, in the order it is said to have; a halo is channels-last."""
    value = ir.Value(name="v", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(shape))
    halo = tuple((0, 0) if d < 2 else borders[d] for d in range(len(shape)))
    if last:
        set_layout(value, CHANNELS_LAST)
    view, offset, size = dense_view(value, halo)
    order = memory_order(len(shape), CHANNELS_LAST if last or any(map(any, halo)) else "row-major")
    whole = tuple(e + sum(h) for e, h in zip(shape, halo, strict=True))
    assert size == prod(whole)
    memory = np.arange(size).reshape([whole[d] for d in order]).transpose(np.argsort(order))
    inner = tuple(slice(before, before + e) for e, (before, _) in zip(shape, halo, strict=True))
    np.testing.assert_array_equal(addresses(view, offset), memory[inner])
