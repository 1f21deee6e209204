"""Operators that only move data: shape changes, concatenation, slicing, padding, space and depth."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def concat(*values: np.ndarray, axis: int) -> np.ndarray:
    return np.concatenate(values, axis=axis)


def split(
    x: np.ndarray,
    split: Sequence[int] | None = None,
    *,
    axis: int = 0,
    num_outputs: int | None = None,
    outputs: int,
) -> tuple[np.ndarray, ...]:
    """Pieces of the given extents, or `num_outputs` (before Split-18: as many as the node has) equal ones.

    Equal pieces are ceil(extent / number) long, the last one shorter where that doesn't divide.
    """
    if split is None:
        number = num_outputs or outputs
        chunk = -(-x.shape[axis] // number)
        split = [chunk] * (number - 1) + [x.shape[axis] - chunk * (number - 1)]
    return tuple(np.split(x, np.cumsum(split)[:-1], axis=axis))


def slice_(
    x: np.ndarray,
    starts: Sequence[int],
    ends: Sequence[int],
    axes: Sequence[int] | None = None,
    steps: Sequence[int] | None = None,
) -> np.ndarray:
    """Slice: numpy's extended slicing, with ends beyond the tensor clamped for negative steps too."""
    axes = range(len(starts)) if axes is None else axes
    steps = [1] * len(starts) if steps is None else steps
    where = [slice(None)] * x.ndim
    for start, end, axis, step in zip(
        map(int, starts), map(int, ends), map(int, axes), map(int, steps), strict=True
    ):
        size = x.shape[axis]
        start, end = (position + size if position < 0 else position for position in (start, end))
        if step > 0:
            where[axis] = slice(min(max(start, 0), size), min(max(end, 0), size), step)
        else:
            last = min(max(end, -1), size - 1)
            where[axis] = slice(min(max(start, 0), size - 1), None if last < 0 else last, step)
    return x[tuple(where)]


def pad(
    x: np.ndarray,
    pads: Sequence[int],
    constant_value: np.ndarray | float = 0,
    axes: Sequence[int] | None = None,
    *,
    mode: str = "constant",
    value: float = 0.0,
) -> np.ndarray:
    """Pad: negative amounts crop. `value` is Pad-2's attribute, `constant_value` the input since Pad-11."""
    axes = range(x.ndim) if axes is None else [int(axis) % x.ndim for axis in axes]
    amounts = [(0, 0)] * x.ndim
    for position, axis in enumerate(axes):
        amounts[axis] = (int(pads[position]), int(pads[position + len(axes)]))
    crop = tuple(
        slice(max(-begin, 0), size - max(-end, 0))
        for (begin, end), size in zip(amounts, x.shape, strict=True)
    )
    x = x[crop]
    amounts = [(max(begin, 0), max(end, 0)) for begin, end in amounts]
    if mode == "constant":
        fill = constant_value if np.size(constant_value) and np.any(constant_value) else value
        return np.pad(x, amounts, constant_values=np.asarray(fill, x.dtype).item())
    return np.pad(x, amounts, mode=mode)


def transpose(x: np.ndarray, *, perm: Sequence[int] | None = None) -> np.ndarray:
    return np.transpose(x, perm)


def reshape(x: np.ndarray, shape: Sequence[int], *, allowzero: int = 0) -> np.ndarray:
    """0 keeps the input's extent (unless allowzero), one -1 is inferred."""
    wanted = [x.shape[i] if n == 0 and not allowzero else int(n) for i, n in enumerate(shape)]
    return x.reshape(wanted)


def flatten(x: np.ndarray, *, axis: int = 1) -> np.ndarray:
    axis = axis % x.ndim if axis < 0 else axis
    return (
        x.reshape(int(np.prod(x.shape[:axis], dtype=np.int64)), -1)
        if x.size
        else x.reshape(
            int(np.prod(x.shape[:axis], dtype=np.int64)), int(np.prod(x.shape[axis:], dtype=np.int64))
        )
    )


def squeeze(x: np.ndarray, axes: Sequence[int] | None = None) -> np.ndarray:
    return np.squeeze(x, None if axes is None else tuple(int(axis) for axis in axes))


def unsqueeze(x: np.ndarray, axes: Sequence[int]) -> np.ndarray:
    return np.expand_dims(x, tuple(int(axis) for axis in axes))


def expand(x: np.ndarray, shape: Sequence[int]) -> np.ndarray:
    """Two-directional broadcast: an extent of 1 in `shape` keeps the input's."""
    return np.broadcast_to(x, np.broadcast_shapes(x.shape, tuple(int(n) for n in shape)))


def tile(x: np.ndarray, repeats: Sequence[int]) -> np.ndarray:
    return np.tile(x, [int(n) for n in repeats])


def gather(x: np.ndarray, indices: np.ndarray, *, axis: int = 0) -> np.ndarray:
    return np.take(x, indices, axis=axis)


def depth_to_space(x: np.ndarray, *, blocksize: int, mode: str = "DCR") -> np.ndarray:
    """[N, C, H, W] -> [N, C / b², H * b, W * b]: the block index is the slow (DCR) or fast (CRD) part."""
    n, c, h, w = x.shape
    b, depth = blocksize, c // blocksize**2
    if mode == "DCR":
        blocks = x.reshape(n, b, b, depth, h, w).transpose(0, 3, 4, 1, 5, 2)
    else:
        blocks = x.reshape(n, depth, b, b, h, w).transpose(0, 1, 4, 2, 5, 3)
    return blocks.reshape(n, depth, h * b, w * b)


def space_to_depth(x: np.ndarray, *, blocksize: int, mode: str = "DCR") -> np.ndarray:
    """[N, C, H, W] -> [N, C * b², H / b, W / b], the inverse of depth_to_space."""
    n, c, h, w = x.shape
    b = blocksize
    blocks = x.reshape(n, c, h // b, b, w // b, b)
    order = (0, 3, 5, 1, 2, 4) if mode == "DCR" else (0, 1, 3, 5, 2, 4)
    return blocks.transpose(order).reshape(n, c * b * b, h // b, w // b)


def shape(x: np.ndarray, *, start: int = 0, end: int | None = None) -> np.ndarray:
    return np.array(x.shape[start:end], dtype=np.int64)


def size(x: np.ndarray) -> np.ndarray:
    return np.array(x.size, dtype=np.int64)
