"""Conv and ConvTranspose of any rank, as ONNX specifies them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np

from tests.oracle.windows import EmptyOutput, gather_windows, sliding_windows, split_pad


def conv(
    x: np.ndarray,
    w: np.ndarray,
    b: np.ndarray | None = None,
    *,
    kernel_shape: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
    dilations: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    auto_pad: str = "NOTSET",
    group: int = 1,
) -> np.ndarray:
    """Conv-22. x [N, C, *spatial], w [M, C / group, *kernel], b [M] -> [N, M, *output].

    y[n, m, o] = b[m] + sum over c, k of x[n, c, o * stride + k * dilation - begin] * w[m, c, k], where output
    channel m sees the input channels of its own group only and x is zero outside.
    """
    windows = sliding_windows(x.shape[2:], w.shape[2:], strides, dilations, pads, auto_pad)
    rank = len(windows)
    patches = gather_windows(x, windows, 0.0)  # [N, C, *output, *kernel]
    taps = list(range(2 + rank, 2 + 2 * rank))
    parts = []
    for patch, weight in zip(np.split(patches, group, axis=1), np.split(w, group, axis=0), strict=True):
        part = np.tensordot(
            patch, weight, axes=([1, *taps], [1, *range(2, 2 + rank)])
        )  # [N, *output, M/group]
        parts.append(np.moveaxis(part, -1, 1))
    y = np.concatenate(parts, axis=1)
    return y if b is None else y + b.reshape(-1, *[1] * rank)


def conv_transpose(
    x: np.ndarray,
    w: np.ndarray,
    b: np.ndarray | None = None,
    *,
    kernel_shape: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
    dilations: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    output_padding: Sequence[int] | None = None,
    output_shape: Sequence[int] | None = None,
    auto_pad: str = "NOTSET",
    group: int = 1,
) -> np.ndarray:
    """ConvTranspose-22. x [N, C, *spatial], w [C, M / group, *kernel], b [M] -> [N, M, *output].

    Every input element adds its multiple of the kernel: full[n, m, i * stride + k * dilation] += x[n, c, i] *
    w[c, m, k]. `full` has stride * (size - 1) + effective + output_padding elements per axis, of which the
    pads are cut off. output_shape, or SAME (output = size * stride), decides the pads instead:
        total = stride * (size - 1) + output_padding + effective - output
    split as split_pad has it, with the odd element at the end for SAME_UPPER and at the beginning otherwise.
    A negative total is no padding at all: the output is longer than `full` and ends in elements that only the
    bias reaches.
    """
    rank = x.ndim - 2
    sizes, kernel = x.shape[2:], w.shape[2:]
    strides = strides or [1] * rank
    dilations = dilations or [1] * rank
    output_padding = output_padding or [0] * rank
    pads = pads if pads and auto_pad == "NOTSET" else [0] * (2 * rank)
    if output_shape is None and auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        output_shape = [size * stride for size, stride in zip(sizes, strides, strict=True)]
    full_shape, outputs, begins = [], [], []
    for axis in range(rank):
        effective = (kernel[axis] - 1) * dilations[axis] + 1
        extent = strides[axis] * (sizes[axis] - 1) + effective + output_padding[axis]
        begin, end = pads[axis], pads[axis + rank]
        output = extent - begin - end
        if output_shape is not None:
            output = output_shape[axis]
            begin, end = split_pad(max(extent - output, 0), auto_pad)
        if output < 1:
            raise EmptyOutput(f"axis {axis}: pads {begin} + {end} leave nothing of {extent}")
        full_shape.append(max(extent, begin + output))
        outputs.append(output)
        begins.append(begin)
    parts = []
    for x_g, w_g in zip(np.split(x, group, axis=1), np.split(w, group, axis=0), strict=True):
        full = np.zeros((x.shape[0], w.shape[1], *full_shape))
        for k in product(*map(range, kernel)):
            where = tuple(
                slice(tap * d, tap * d + (size - 1) * s + 1, s)
                for tap, d, size, s in zip(k, dilations, sizes, strides, strict=True)
            )
            term = np.tensordot(
                x_g, w_g[(slice(None), slice(None), *k)], axes=([1], [0])
            )  # [N, *spatial, M/g]
            full[(slice(None), slice(None), *where)] += np.moveaxis(term, -1, 1)
        parts.append(full)
    crop = tuple(slice(begin, begin + output) for begin, output in zip(begins, outputs, strict=True))
    y = np.concatenate(parts, axis=1)[(slice(None), slice(None), *crop)]
    return y if b is None else y + b.reshape(-1, *[1] * rank)
