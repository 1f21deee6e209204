"""Operators that move elements: views, concatenation, padding, resizing, shuffles."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from convopt.frontends.torch.builder import Builder, Operand, Tensor, Untranslatable

aten = torch.ops.aten
LAST = 1 << 62  # an end beyond every extent


def same(b: Builder, self: Tensor, **how: Any) -> Tensor:
    """Copies and aliases: memory is not the graph's concern."""
    del b, how
    return self


def view(b: Builder, self: Tensor, size: Sequence[int]) -> Any:
    del size  # may hold a -1
    return b.reshape(self, b.shape) if b.shape != self.shape else self


def reshaped(b: Builder, self: Tensor, *how: Any, **more: Any) -> Any:
    """squeeze, unsqueeze and the like: the result's shape says it all."""
    del how, more
    return b.reshape(self, b.shape) if b.shape != self.shape else self


def as_strided(
    b: Builder, self: Tensor, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None
) -> Tensor:
    """The same elements where strides differ in dims of one only, as between two layouts of 1 x 1 pixels."""
    del b
    moved = [1 for n, old, new in zip(self.shape, self.stride, stride, strict=False) if n > 1 and old != new]
    if tuple(size) != self.shape or moved or storage_offset is not None:  # counted from the storage's begin
        raise Untranslatable("another view of the memory: as_strided")
    return self


def permute(b: Builder, self: Tensor, dims: Sequence[int]) -> Any:
    return b.op("Transpose", self, perm=[d % self.rank for d in dims])


def transpose(b: Builder, self: Tensor, dim0: int, dim1: int) -> Any:
    perm = [*range(self.rank)]
    if perm:
        perm[dim0], perm[dim1] = perm[dim1], perm[dim0]
    return b.op("Transpose", self, perm=perm)


def t(b: Builder, self: Tensor) -> Any:
    return b.op("Transpose", self, perm=[1, 0]) if self.rank == 2 else self


def expand(b: Builder, self: Tensor, size: Sequence[int], implicit: bool = False) -> Any:
    del size, implicit
    return b.op("Expand", self, b.shape) if b.shape != self.shape else self


def repeat(b: Builder, self: Tensor, repeats: Sequence[int]) -> Any:
    x = b.reshape(self, (*(1,) * (len(repeats) - self.rank), *self.shape))
    return b.op("Tile", x, repeats)


def select(b: Builder, self: Tensor, dim: int, index: int) -> Any:
    dim, index = dim % self.rank, index % self.shape[dim]
    return b.reshape(b.op("Slice", self, [index], [index + 1], [dim]), b.shape)


def slice_(
    b: Builder, self: Tensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Any:
    dim = dim % self.rank
    first, last = _range(self.shape[dim], start, end)
    if (first, last, step) == (0, self.shape[dim], 1):
        return self
    return b.op("Slice", self, [first], [last], [dim], [step])


def _range(extent: int, start: int | None, end: int | None) -> tuple[int, int]:
    """Of a slice: counted from the front and inside the extent, the end not before the start."""
    first = 0 if start is None else start + extent if start < 0 else start
    last = extent if end is None else end + extent if end < 0 else end
    first = min(max(first, 0), extent)
    return first, max(first, min(last, extent))


def slice_scatter(
    b: Builder,
    self: Tensor,
    src: Tensor,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> Any:
    """`self` with a range of one dim replaced."""
    if step != 1:
        raise Untranslatable(f"slice_scatter with step {step}")
    dim = dim % self.rank
    first, last = _range(self.shape[dim], start, end)
    return _replaced(b, self, src, dim, first, last)


def select_scatter(b: Builder, self: Tensor, src: Tensor, dim: int, index: int) -> Any:
    dim = dim % self.rank
    first = index % self.shape[dim]
    shape = (*self.shape[:dim], 1, *self.shape[dim + 1 :])
    return _replaced(b, self, b.reshape(src, shape), dim, first, first + 1)


def _replaced(b: Builder, x: Tensor, new: Operand, dim: int, first: int, last: int) -> Any:
    parts: list[Operand] = []
    if first > 0:
        parts.append(b.op("Slice", x, [0], [first], [dim]))
    parts.append(new)
    if last < x.shape[dim]:
        parts.append(b.op("Slice", x, [last], [x.shape[dim]], [dim]))
    return b.op("Concat", *parts, axis=dim) if len(parts) > 1 else new


def split(b: Builder, self: Tensor, split_size: int | Sequence[int], dim: int = 0) -> Any:
    dim = dim % self.rank
    sizes = [int(out.shape[dim]) for out in b.out]
    made = b.op("Split", self, sizes, outputs=len(sizes), axis=dim)
    return made if len(sizes) > 1 else (made,)


def unbind(b: Builder, self: Tensor, dim: int = 0) -> Any:
    dim, shape = dim % self.rank, tuple(b.out[0].shape)
    return tuple(b.reshape(b.op("Slice", self, [i], [i + 1], [dim]), shape) for i in range(self.shape[dim]))


def cat(b: Builder, tensors: Sequence[Tensor], dim: int = 0) -> Any:
    tensors = [x for x in tensors if x.shape != (0,)]  # what torch skips
    if any(0 in x.shape for x in tensors):
        raise Untranslatable("an operand is empty")
    return b.op("Concat", *tensors, axis=dim % tensors[0].rank)


def stack(b: Builder, tensors: Sequence[Tensor], dim: int = 0) -> Any:
    dim = dim % (tensors[0].rank + 1)
    shape = (*tensors[0].shape[:dim], 1, *tensors[0].shape[dim:])
    return b.op("Concat", *(b.reshape(x, shape) for x in tensors), axis=dim)


def flip(b: Builder, self: Tensor, dims: Sequence[int]) -> Any:
    axes = [d % self.rank for d in dims]
    return b.op("Slice", self, [-1] * len(axes), [-LAST] * len(axes), axes, [-1] * len(axes))


def roll(b: Builder, self: Tensor, shifts: Sequence[int], dims: Sequence[int] = ()) -> Any:
    """Element i goes to (i + shift) mod n."""
    if not dims:
        raise Untranslatable("a roll of the flattened tensor")
    x: Operand = self
    for shift, d in zip(shifts, dims, strict=True):
        axis, n = d % self.rank, self.shape[d]
        if (at := -shift % n) == 0:
            continue
        tail, head = b.op("Slice", x, [at], [n], [axis]), b.op("Slice", x, [0], [at], [axis])
        x = b.op("Concat", tail, head, axis=axis)
    return x


def constant_pad(b: Builder, self: Tensor, pad: Sequence[int], value: float = 0) -> Any:
    """pad: (before, after) of the last dim first. Negative ones cut."""
    begin, end = _pads(self.rank, pad)
    x: Operand = self
    if any(p < 0 for p in pad):
        x = b.op(
            "Slice", x, [max(0, -p) for p in begin],
            [n - max(0, -p) for n, p in zip(self.shape, end, strict=True)], [*range(self.rank)],
        )  # fmt: skip
    grown = [max(0, p) for p in (*begin, *end)]
    return b.op("Pad", x, grown, float(value)) if any(grown) else x


def _pads(rank: int, pad: Sequence[int]) -> tuple[list[int], list[int]]:
    begin, end = [0] * rank, [0] * rank
    for i in range(len(pad) // 2):
        begin[rank - 1 - i], end[rank - 1 - i] = pad[2 * i], pad[2 * i + 1]
    return begin, end


def _pad(mode: str) -> Callable[..., Any]:
    def translate(b: Builder, self: Tensor, padding: Sequence[int]) -> Any:
        if any(p < 0 for p in padding):
            raise Untranslatable(f"negative {mode} padding")
        begin, end = _pads(self.rank, padding)
        return b.op("Pad", self, [*begin, *end], None, mode=mode)

    return translate


def pixel_shuffle(b: Builder, self: Tensor, upscale_factor: int) -> Any:
    """Channel c r^2 + i r + j goes to pixel (i, j) of its block, which is ONNX's mode CRD."""
    x = b.reshape(self, (-1, *self.shape[-3:]))
    return b.reshape(b.op("DepthToSpace", x, blocksize=upscale_factor, mode="CRD"), b.shape)


def pixel_unshuffle(b: Builder, self: Tensor, downscale_factor: int) -> Any:
    (c, h, w), r = self.shape[-3:], downscale_factor
    x = b.reshape(self, (-1, c, h // r, r, w // r, r))
    return b.reshape(b.op("Transpose", x, perm=[0, 1, 3, 5, 2, 4]), b.shape)


def channel_shuffle(b: Builder, self: Tensor, groups: int) -> Any:
    n, c = self.shape[:2]
    x = b.reshape(self, (n, groups, c // groups, *self.shape[2:]))
    return b.reshape(b.op("Transpose", x, perm=[0, 2, 1, *range(3, self.rank + 1)]), b.shape)


def _nearest(exact: bool) -> Callable[..., Any]:
    def translate(b: Builder, self: Tensor, output_size: Sequence[int], *scales: float | None) -> Any:
        tables = [
            nearest_indices(n, m, scale, exact)
            for n, m, scale in zip(self.shape[2:], output_size, _given(scales, output_size), strict=True)
        ]
        return resized_nearest(b, self, tables, [*range(2, self.rank)])

    return translate


def _whole(translate: Callable[..., Any]) -> Callable[..., Any]:
    """The overload that is given either sizes or factors, as torch.export leaves it."""

    def of_vectors(b: Builder, self: Tensor, output_size: Sequence[int] | None, *how: Any) -> Any:
        *flags, factors = how
        return translate(b, self, b.shape[2:], *flags, *(factors or ()))

    return of_vectors


def _given(scales: Sequence[float | None], sizes: Sequence[int]) -> Sequence[float | None]:
    return scales or (None,) * len(sizes)


def nearest_indices(n: int, m: int, scale: float | None, exact: bool) -> np.ndarray[Any, Any]:
    """Which of n elements each of m reads, in the float32 arithmetic of ATen (UpSample.h)."""
    step = np.float32(1 / scale) if scale is not None and scale > 0 else np.float32(n) / np.float32(m)
    position = np.arange(m, dtype=np.float32) + np.float32(0.5 if exact else 0)
    made: np.ndarray[Any, Any] = np.minimum(np.floor(position * step).astype(np.int64), n - 1)
    return made


def resized_nearest(
    b: Builder, x: Tensor, tables: Sequence[np.ndarray[Any, Any]], axes: Sequence[int]
) -> Any:
    """x[..., tables[0], tables[1], ...]: a Resize whose rule makes the same tables.

    Untranslatable where float32 rounding or the tables themselves are of no such rule.
    """
    sizes = [len(table) for table in tables]
    for mode, rule, shift in (("asymmetric", "floor", 0.0), ("half_pixel", "round_prefer_ceil", 0.5)):
        # The operators' formulas, as doubles: floor(o / scale), and floor(((o + 0.5) / scale - 0.5) + 0.5).
        made = [
            np.minimum(
                np.floor(((np.arange(m) + shift) / (m / x.shape[axis]) - shift) + shift), x.shape[axis] - 1
            )
            for m, axis in zip(sizes, axes, strict=True)
        ]
        if all(np.array_equal(a, t) for a, t in zip(made, tables, strict=True)):
            return b.op(
                "Resize", x, None, None, sizes, mode="nearest", coordinate_transformation_mode=mode,
                nearest_mode=rule, axes=[*axes],
            )  # fmt: skip
    raise Untranslatable("elements are picked by a table that no resize makes")


def index(b: Builder, self: Tensor, indices: Sequence[Tensor | None]) -> Any:
    """Nearest interpolation as torch decomposes it: one vector of indices for each resized dim."""
    picked = [(axis, i) for axis, i in enumerate(indices) if i is not None]
    tables, axes = [], []
    for place, (axis, tensor) in enumerate(picked):
        wanted = (-1, *(1,) * (len(picked) - 1 - place))
        if tensor.array is None or tensor.dtype not in (torch.int64, torch.int32):
            raise Untranslatable("indices that are computed")
        array = tensor.array.numpy()
        if array.size != max(array.shape, default=1) or array.reshape(wanted).ndim != max(1, array.ndim):
            raise Untranslatable("indices that are no grid")
        tables.append(array.reshape(-1))
        axes.append(axis)
    if axes != [*range(axes[0], axes[0] + len(axes))] or any((t < 0).any() for t in tables):
        raise Untranslatable("indices that are no grid of neighbouring dims")
    return resized_nearest(b, self, tables, axes)


def _linear(b: Builder, self: Tensor, output_size: Sequence[int], align_corners: bool, *scales: Any) -> Any:
    given = _given(scales, output_size)
    exact = [
        s is None or abs(m / n - s) < 1e-9 for s, m, n in zip(given, output_size, self.shape[2:], strict=True)
    ]
    axes = [*range(2, self.rank)]
    how: dict[str, Any] = {
        "mode": "linear",
        "axes": axes,
        "coordinate_transformation_mode": "align_corners" if align_corners else "half_pixel",
    }
    if align_corners or all(exact):
        return b.op("Resize", self, None, None, output_size, **how)
    factors = [m / n if s is None else s for s, m, n in zip(given, output_size, self.shape[2:], strict=True)]
    return b.op("Resize", self, None, b.constant(np.array(factors, np.float32)), **how)


TABLE: dict[Any, Callable[..., Any]] = {
    aten.alias.default: same,
    aten.as_strided.default: as_strided,
    aten.clone.default: same,
    aten.detach.default: same,
    aten.lift_fresh_copy.default: same,
    aten.contiguous.default: same,
    aten.view.default: view,
    aten._unsafe_view.default: view,
    aten.reshape.default: lambda b, self, shape: view(b, self, shape),
    aten.flatten.using_ints: reshaped,
    aten.unflatten.int: reshaped,
    aten.squeeze.default: reshaped,
    aten.squeeze.dim: reshaped,
    aten.squeeze.dims: reshaped,
    aten.unsqueeze.default: reshaped,
    aten.permute.default: permute,
    aten.transpose.int: transpose,
    aten.t.default: t,
    aten.expand.default: expand,
    aten.repeat.default: repeat,
    aten.select.int: select,
    aten.slice.Tensor: slice_,
    aten.slice_scatter.default: slice_scatter,
    aten.select_scatter.default: select_scatter,
    aten.split.Tensor: split,
    aten.split_with_sizes.default: lambda b, self, split_sizes, dim=0: split(b, self, split_sizes, dim),
    aten.unbind.int: unbind,
    aten.cat.default: cat,
    aten.stack.default: stack,
    aten.flip.default: flip,
    aten.roll.default: roll,
    aten.constant_pad_nd.default: constant_pad,
    aten.pixel_shuffle.default: pixel_shuffle,
    aten.pixel_unshuffle.default: pixel_unshuffle,
    aten.channel_shuffle.default: channel_shuffle,
    aten.native_channel_shuffle.default: channel_shuffle,
    aten.index.Tensor: index,
    aten._unsafe_index.Tensor: index,
} | {
    overload: translate if overload is packet.default else _whole(translate)
    for packet, translate in (
        (aten.upsample_linear1d, _linear),
        (aten.upsample_bilinear2d, _linear),
        (aten.upsample_trilinear3d, _linear),
        (aten.upsample_nearest1d, _nearest(False)),
        (aten.upsample_nearest2d, _nearest(False)),
        (aten.upsample_nearest3d, _nearest(False)),
        (aten._upsample_nearest_exact1d, _nearest(True)),
        (aten._upsample_nearest_exact2d, _nearest(True)),
        (aten._upsample_nearest_exact3d, _nearest(True)),
    )
    for overload in (packet.default, packet.vec)
} | {
    getattr(aten, f"{mode}_pad{rank}d").default: _pad(onnx_mode)
    for mode, onnx_mode in (("reflection", "reflect"), ("replication", "edge"))
    for rank in (1, 2, 3)
}  # fmt: skip
