"""Pooling and reductions.

Window positions are torch's: with ceil_mode a last window counts if it begins inside the input or its left
padding. They are written as explicit end pads, which may be less than those given where windows end early.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from math import inf, prod
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import torch

from convopt.frontends.torch.builder import Builder, Missing, OnDemand, Operand, Tensor, Untranslatable

aten = torch.ops.aten
MOST_ELEMENTS = 64  # of a window whose maximum's place is wanted: each is a slice
MOST_WINDOWS = 64  # of one axis of an adaptive pool whose windows differ: each is a node


def _all(values: Sequence[int], rank: int) -> list[int]:
    return [*values] * (rank if len(values) == 1 else 1)


def _end_pads(
    b: Builder, x: Tensor, kernel: list[int], stride: list[int], padding: list[int], dilation: list[int]
) -> list[int]:
    """What makes exactly as many windows as torch has; 0 where the last window ends inside."""
    rank = len(kernel)
    reach = [
        (o - 1) * s + d * (k - 1) + 1
        for o, s, d, k in zip(b.shape[-rank:], stride, dilation, kernel, strict=True)
    ]
    return [max(0, r - extent - p) for r, extent, p in zip(reach, x.shape[-rank:], padding, strict=True)]


def _batched(b: Builder, x: Tensor, rank: int) -> Operand:
    """With a batch of one where there is none."""
    return x if x.rank == rank + 2 else b.reshape(x, (1, *x.shape))


def _max_pool(rank: int) -> Callable[..., Any]:
    def translate(
        b: Builder,
        self: Tensor,
        kernel_size: Sequence[int],
        stride: Sequence[int] = (),
        padding: Sequence[int] = (0,),
        dilation: Sequence[int] = (1,),
        ceil_mode: bool = False,
    ) -> Any:
        del ceil_mode  # the result's shape tells
        kernel, pads, dilations = (_all(v, rank) for v in (kernel_size, padding, dilation))
        strides = _all(stride or kernel, rank)
        end = _end_pads(b, self, kernel, strides, pads, dilations)
        made = b.op(
            "MaxPool", _batched(b, self, rank), kernel_shape=kernel, strides=strides,
            dilations=dilations, pads=[*pads, *end],
        )  # fmt: skip
        windows = [
            np.arange(o) * s - p + d * np.arange(k)[:, None]
            for o, s, p, d, k in zip(b.shape[-rank:], strides, pads, dilations, kernel, strict=True)
        ]
        return _as_given(b, made, self, rank), OnDemand(lambda: _indices(b, self, windows))

    return translate


def _indices(b: Builder, x: Tensor, windows: Sequence[npt.NDArray[np.int64]]) -> ir.Value:
    """Where each maximum is: its offset in its image, as a number that float32 holds exactly.

    `windows` has, for each spatial axis, the input positions of (elements of a window, windows), beyond the
    input where padding is. The first of equal elements, as in ATen. A window's elements are taken one after
    the other, each a slice of the padded input, beside the offsets that they have.
    """
    rank = len(windows)
    spatial, outputs = x.shape[-rank:], b.shape[-rank:]
    if prod(spatial) >= 1 << 24 or prod(len(w) for w in windows) > MOST_ELEMENTS:
        raise Untranslatable("indices of so many elements")
    begin = [max(0, -int(w.min())) for w in windows]
    end = [max(0, int(w.max()) + 1 - n) for w, n in zip(windows, spatial, strict=True)]
    padded = b.reshape(x, (-1, 1, *spatial))
    if any((*begin, *end)):
        padded = b.op("Pad", padded, [0, 0, *begin, 0, 0, *end], -inf)
    # A window's element before the image stands for its first one inside: the answer if all are -inf.
    first_inside = [np.where(w >= 0, w, n).min(axis=0) for w, n in zip(windows, spatial, strict=True)]
    best, where = None, None
    for tap in product(*(range(len(w)) for w in windows)):
        at = [w[t] for w, t in zip(windows, tap, strict=True)]
        found = _elements(b, padded, [p + before for p, before in zip(at, begin, strict=True)])
        grid = [
            np.clip(np.where(p < 0, first, p), 0, n - 1)
            for p, first, n in zip(at, first_inside, spatial, strict=True)
        ]
        offsets = np.ravel_multi_index(np.meshgrid(*grid, indexing="ij"), spatial).astype(np.float32)
        offset = b.constant(offsets.reshape(1, 1, *outputs))
        if best is None:
            best, where = found, offset
            continue
        # A window's first elements may lie in the padding: -inf there gives way to anything inside it.
        inside = np.ones(outputs, bool)
        for axis, (p, n) in enumerate(zip(at, spatial, strict=True)):
            shape = [-1 if a == axis else 1 for a in range(rank)]
            inside &= ((p >= 0) & (p < n)).reshape(shape)
        taken = b.op("Greater", found, best)
        if not inside.all():
            taken = b.op("And", taken, b.constant(inside.reshape(1, 1, *outputs)))
        best, where = b.op("Where", taken, found, best), b.op("Where", taken, offset, where)
    assert best is not None
    if all(len(w) == 1 for w in windows):
        where = b.op("Expand", where, (prod(x.shape[:-rank]), 1, *outputs))
    return b.reshape(where, b.shape)


def _elements(b: Builder, x: Operand, positions: Sequence[npt.NDArray[np.int64]]) -> Operand:
    """The elements of x at these positions of its spatial axes: one slice, but for axes of uneven steps."""
    first, last, axes, steps = [], [], [], []
    for axis, at in enumerate(positions, 2):
        step = int(at[1] - at[0]) if len(at) > 1 else 1
        if step > 0 and (np.diff(at) == step).all():
            first.append(int(at[0]))
            last.append(int(at[-1]) + 1)
            axes.append(axis)
            steps.append(step)
            continue
        parts = [b.op("Slice", x, [int(p)], [int(p) + 1], [axis]) for p in at]
        x = b.op("Concat", *parts, axis=axis)
    return b.op("Slice", x, first, last, axes, steps) if axes else x


def _as_given(b: Builder, made: Operand, x: Tensor, rank: int) -> Any:
    return made if x.rank == rank + 2 else b.reshape(made, b.shape)


def _avg_pool(rank: int) -> Callable[..., Any]:
    def translate(
        b: Builder,
        self: Tensor,
        kernel_size: Sequence[int],
        stride: Sequence[int] = (),
        padding: Sequence[int] = (0,),
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Any:
        del ceil_mode
        kernel, pads = (_all(v, rank) for v in (kernel_size, padding))
        strides = _all(stride or kernel, rank)
        end = _end_pads(b, self, kernel, strides, pads, [1] * rank)
        x = _batched(b, self, rank)

        def pool(x: Operand, begin: list[int], end: list[int], include: bool) -> Any:
            return b.op(
                "AveragePool", x, kernel_shape=kernel, strides=strides, pads=[*begin, *end],
                count_include_pad=int(include),
            )  # fmt: skip

        if divisor_override is not None:
            if divisor_override == 0:
                raise Untranslatable("a divisor of 0")
            made = b.op("Mul", pool(x, pads, end, True), prod(kernel) / divisor_override)
        elif count_include_pad and any(e > p for e, p in zip(end, pads, strict=True)):
            # What ceil_mode adds beyond the padding doesn't count, the padding does.
            if any(pads):
                x = b.op("Pad", x, [0, 0, *pads] * 2)
            made = pool(x, [0] * rank, [max(0, e - p) for e, p in zip(end, pads, strict=True)], False)
        else:
            made = pool(x, pads, end, count_include_pad)
        return _as_given(b, made, self, rank)

    return translate


def _adaptive(rank: int, maximum: bool) -> Callable[..., Any]:
    def translate(b: Builder, self: Tensor, output_size: Sequence[int]) -> Any:
        outputs, extents = _all(output_size, rank), self.shape[-rank:]
        x = _batched(b, self, rank)
        if all(extent % o == 0 for extent, o in zip(extents, outputs, strict=True)):
            kernel = [extent // o for extent, o in zip(extents, outputs, strict=True)]
            if set(outputs) == {1}:
                made = b.op("GlobalMaxPool" if maximum else "GlobalAveragePool", x)
            else:
                pool = "MaxPool" if maximum else "AveragePool"
                made = b.op(pool, x, kernel_shape=kernel, strides=kernel)
        else:
            made = _windows(b, x, extents, outputs, "ReduceMax" if maximum else "ReduceMean")
        made = _as_given(b, made, self, rank)
        if not maximum:
            return made
        windows = [_adaptive_windows(n, m) for n, m in zip(extents, outputs, strict=True)]
        return made, OnDemand(lambda: _indices(b, self, windows))

    return translate


def _adaptive_bounds(n: int, m: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Window o of m over n inputs: from floor(o n / m) to ceil((o + 1) n / m)."""
    return np.arange(m) * n // m, -(-np.arange(1, m + 1) * n // m)


def _adaptive_windows(n: int, m: int) -> npt.NDArray[np.int64]:
    """The positions of (elements of a window, m windows) over n inputs; short windows repeat their last."""
    first, end = _adaptive_bounds(n, m)
    return np.minimum(first + np.arange((end - first).max())[:, None], end - 1)


def _windows(b: Builder, x: Operand, extents: Sequence[int], outputs: Sequence[int], reduce: str) -> Any:
    """Axis after axis, the reduction of each window of its own extent."""
    for axis, (n, m) in enumerate(zip(extents, outputs, strict=True), 2):
        if n == m:
            continue
        if m > MOST_WINDOWS:
            raise Untranslatable(f"{m} windows of different extents")
        parts = []
        for first, end in zip(*_adaptive_bounds(n, m), strict=True):
            part = b.op("Slice", x, [int(first)], [int(end)], [axis])
            parts.append(b.op(reduce, part, [axis], keepdims=1))
        x = b.op("Concat", *parts, axis=axis)
    return x


def _reduce(op_type: str) -> Callable[..., Any]:
    def translate(
        b: Builder,
        self: Tensor,
        dim: Sequence[int] | None = None,
        keepdim: bool = False,
        dtype: torch.dtype | None = None,
    ) -> Any:
        del dtype  # the result's type tells
        if self.dtype == torch.bool:
            raise Untranslatable("a reduction of truth values")
        if self.rank == 0:
            return self
        axes = sorted(d % self.rank for d in dim) if dim else [*range(self.rank)]
        return b.op(op_type, self, axes, keepdims=int(keepdim))

    return translate


def _spread(
    b: Builder, self: Tensor, dim: Sequence[int] | None, correction: float | None, keepdim: bool
) -> tuple[ir.Value, ir.Value, ir.Value]:
    """(v, s, m): v * s * s is the variance, m * s the mean; v and s have the result's shape.

    The variance is the mean of the squared distances from the mean, divided by n - correction instead of n.
    torch has both in float64; here a power of two, which rounds nothing, brings what is above 2**40 or below
    2**-40 near 1 first, so that no square and no sum of float32 leaves its range.
    """
    if self.rank == 0:
        raise Untranslatable("a variance of a scalar")
    axes = sorted(d % self.rank for d in dim) if dim else [*range(self.rank)]
    count = prod(self.shape[a] for a in axes)
    free = count - (1 if correction is None else correction)
    if free <= 0:
        raise Untranslatable("a variance of too few elements")
    largest = b.op("ReduceMax", b.op("Abs", self), axes, keepdims=1)
    scale = b.op("Where", b.op("Less", largest, 2.0**-40), 2.0**-80, 1.0)
    scale = b.op("Where", b.op("Greater", largest, 2.0**40), 2.0**80, scale)
    near = b.op("Mul", self, b.op("Reciprocal", scale))
    mean = b.op("ReduceMean", near, axes, keepdims=1)
    distance = b.op("Sub", near, mean)
    made = b.op("ReduceMean", b.op("Mul", distance, distance), axes, keepdims=int(keepdim))
    made = made if free == count else b.op("Mul", made, count / free)
    return made, b.reshape(scale, b.shape), b.reshape(mean, b.shape)


def _statistics(root: bool, with_mean: bool) -> Callable[..., Any]:
    """The variance or its root, alone or with the mean.

    The mean over an infinity is infinite, as torch.mean has it; var_mean of torch, which updates a mean from
    element to element, has NaN there unless the infinity comes last.
    """

    def translate(
        b: Builder,
        self: Tensor,
        dim: Sequence[int] | None = None,
        correction: float | None = None,
        keepdim: bool = False,
    ) -> Any:
        made, scale, mean = _spread(b, self, dim, correction, keepdim)
        spread = b.op("Sqrt", made) if root else b.op("Mul", made, scale)
        spread = b.op("Mul", spread, scale)
        return (spread, b.op("Mul", mean, scale)) if with_mean else spread

    return translate


def _argument_free(op_type: str) -> Callable[..., Any]:
    """max.dim and min.dim, whose second result are indices."""

    def translate(b: Builder, self: Tensor, dim: int, keepdim: bool = False) -> Any:
        if self.rank == 0:
            return self, Missing("indices")
        return b.op(op_type, self, [dim % self.rank], keepdims=int(keepdim)), Missing("indices")

    return translate


TABLE: dict[Any, Callable[..., Any]] = {
    aten.max_pool2d_with_indices.default: _max_pool(2),
    aten.max_pool3d_with_indices.default: _max_pool(3),
    aten.avg_pool2d.default: _avg_pool(2),
    aten.avg_pool3d.default: _avg_pool(3),
    aten._adaptive_avg_pool2d.default: _adaptive(2, maximum=False),
    aten._adaptive_avg_pool3d.default: _adaptive(3, maximum=False),
    aten.adaptive_max_pool2d.default: _adaptive(2, maximum=True),
    aten.adaptive_max_pool3d.default: _adaptive(3, maximum=True),
    aten.mean.default: _reduce("ReduceMean"),
    aten.mean.dim: _reduce("ReduceMean"),
    aten.sum.default: _reduce("ReduceSum"),
    aten.sum.dim_IntList: _reduce("ReduceSum"),
    aten.amax.default: _reduce("ReduceMax"),
    aten.amin.default: _reduce("ReduceMin"),
    aten.max.dim: _argument_free("ReduceMax"),
    aten.min.dim: _argument_free("ReduceMin"),
    aten.var.correction: _statistics(root=False, with_mean=False),
    aten.std.correction: _statistics(root=True, with_mean=False),
    aten.var_mean.correction: _statistics(root=False, with_mean=True),
    aten.std_mean.correction: _statistics(root=True, with_mean=True),
}
