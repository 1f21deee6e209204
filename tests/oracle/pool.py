"""MaxPool, AveragePool and the global pools, as ONNX specifies them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tests.oracle.windows import gather_windows, sliding_windows


def max_pool(
    x: np.ndarray,
    *,
    kernel_shape: Sequence[int],
    strides: Sequence[int] | None = None,
    dilations: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    storage_order: int = 0,
) -> tuple[np.ndarray, np.ndarray]:
    """MaxPool-22: the largest element of each window, pads excluded, and its index.

    The index is the element's position in x flattened in row-major order, or with the last two axes swapped
    for storage_order 1 (column-major); the first of equal elements counts.
    """
    windows = sliding_windows(x.shape[2:], kernel_shape, strides, dilations, pads, auto_pad, ceil_mode)
    rank = len(windows)
    lowest = -np.inf if np.issubdtype(x.dtype, np.floating) else np.iinfo(x.dtype).min
    values = gather_windows(x, windows, lowest)
    order = tuple(range(x.ndim)) if storage_order == 0 else (0, 1, *range(x.ndim - 1, 1, -1))
    shape = tuple(x.shape[axis] for axis in order)
    flat = np.arange(x.size, dtype=np.int64).reshape(shape).transpose(np.argsort(order))
    positions = gather_windows(flat, windows, -1)
    taps = math.prod(kernel_shape)
    values = values.reshape(*values.shape[: 2 + rank], taps)
    positions = positions.reshape(*positions.shape[: 2 + rank], taps)
    best = np.argmax(np.where(positions >= 0, values, -np.inf), axis=-1)[..., None]
    y = np.take_along_axis(values, best, axis=-1)[..., 0]
    return y, np.take_along_axis(positions, best, axis=-1)[..., 0]


def average_pool(
    x: np.ndarray,
    *,
    kernel_shape: Sequence[int],
    strides: Sequence[int] | None = None,
    dilations: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    count_include_pad: int = 0,
) -> np.ndarray:
    """AveragePool-22: each window's sum over its number of elements.

    Counted are the elements of the input and, with count_include_pad, those of the declared pads; never those
    by which ceil_mode lets the last window overstep the padded input.
    """
    windows = sliding_windows(x.shape[2:], kernel_shape, strides, dilations, pads, auto_pad, ceil_mode)
    taps = tuple(range(-len(windows), 0))
    total = gather_windows(x, windows, 0.0).sum(axis=taps)
    counted = np.ones((1, 1, *x.shape[2:]))
    if count_include_pad:
        counted = np.pad(counted, [(0, 0), (0, 0)] + [(w.begin, w.end) for w in windows], constant_values=1.0)
        windows = [replace(w, size=w.size + w.begin + w.end, begin=0, end=0) for w in windows]
    return total / gather_windows(counted, windows, 0.0).sum(axis=taps)


def global_average_pool(x: np.ndarray) -> np.ndarray:
    """GlobalAveragePool: the mean over all spatial axes, kept with extent 1."""
    return x.mean(axis=tuple(range(2, x.ndim)), keepdims=True)


def global_max_pool(x: np.ndarray) -> np.ndarray:
    """GlobalMaxPool: the maximum over all spatial axes, kept with extent 1."""
    return x.max(axis=tuple(range(2, x.ndim)), keepdims=True)
