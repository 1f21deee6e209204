"""The geometry that convolutions and pools share: effective kernels, pads, output extents, windows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


class EmptyOutput(ValueError):
    """The kernel doesn't fit the padded input: the output would have an extent below one."""


@dataclass(frozen=True)
class Window:
    """One spatial axis of a sliding window over an input of `size` elements.

    kernel, stride, dilation, begin, end: elements of the input; `end` is the declared end pad, which a window
    may overstep when `ceil_mode` rounded `output` up.
    """

    size: int
    kernel: int
    stride: int
    dilation: int
    begin: int
    end: int
    output: int

    @property
    def effective(self) -> int:
        """The extent a dilated kernel covers: (kernel - 1) * dilation + 1."""
        return (self.kernel - 1) * self.dilation + 1

    @property
    def overhang(self) -> int:
        """Elements of the last window beyond the declared end pad (negative where it stops short of it)."""
        return (self.output - 1) * self.stride + self.effective - (self.size + self.begin + self.end)


def sliding_windows(
    sizes: Sequence[int],
    kernel_shape: Sequence[int],
    strides: Sequence[int] | None = None,
    dilations: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
) -> list[Window]:
    """The windows of Conv, MaxPool and AveragePool, one per spatial axis.

    Explicit pads (Conv-22, MaxPool-22):
        output = floor((size + begin + end - effective) / stride) + 1, with ceil_mode ceil instead of floor,
        less the windows that would start in the right padded region.
    SAME_UPPER, SAME_LOWER:
        output = ceil(size / stride), pad = (output - 1) * stride + effective - size, never negative; the odd
        element goes to the end (UPPER) or to the beginning (LOWER).
    VALID: no pads, output = ceil((size - effective + 1) / stride), whatever ceil_mode says.
    """
    rank = len(sizes)
    strides = strides or [1] * rank
    dilations = dilations or [1] * rank
    pads = pads or [0] * (2 * rank)
    windows = []
    for axis in range(rank):
        size, kernel, stride, dilation = sizes[axis], kernel_shape[axis], strides[axis], dilations[axis]
        effective = (kernel - 1) * dilation + 1
        if auto_pad in ("SAME_UPPER", "SAME_LOWER"):
            output = -(-size // stride)
            total = max((output - 1) * stride + effective - size, 0)
            begin, end = split_pad(total, auto_pad)
        else:
            begin, end = (0, 0) if auto_pad == "VALID" else (pads[axis], pads[axis + rank])
            room = size + begin + end - effective
            if room < 0:
                raise EmptyOutput(
                    f"axis {axis}: kernel extent {effective} > padded input {size + begin + end}"
                )
            output = room // stride + 1
            if ceil_mode and auto_pad == "NOTSET":
                output = -(-room // stride) + 1
                if (output - 1) * stride >= size + begin:
                    output -= 1
        windows.append(Window(size, kernel, stride, dilation, begin, end, output))
    return windows


def split_pad(total: int, auto_pad: str) -> tuple[int, int]:
    """Begin and end of a SAME padding: the odd element at the end for UPPER, at the beginning for LOWER."""
    small, large = total // 2, total - total // 2
    return (small, large) if auto_pad == "SAME_UPPER" else (large, small)


def gather_windows(x: np.ndarray, windows: Sequence[Window], fill: float) -> np.ndarray:
    """All windows of x [N, C, *sizes], padded with `fill`: [N, C, *outputs, *kernels]."""
    rank = len(windows)
    padding = [(0, 0), (0, 0)] + [(w.begin, max(w.end + w.overhang, 0)) for w in windows]
    padded = np.pad(x, padding, constant_values=fill)
    view = np.lib.stride_tricks.sliding_window_view(
        padded, tuple(w.effective for w in windows), axis=tuple(range(2, 2 + rank))
    )
    starts = tuple(slice(0, (w.output - 1) * w.stride + 1, w.stride) for w in windows)
    taps = tuple(slice(None, None, w.dilation) for w in windows)
    return view[(slice(None), slice(None), *starts, *taps)]
