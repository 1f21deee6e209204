"""The convolution that every conv schedule computes, in one normal form.

Convolutions of any rank, ConvTranspose (one problem per output phase), Gemm and MatMul all become this:

    y[g, n, d, h, w, k] = epilogue(bias[g, k] + sum over (kd, kh, kw, c) of
        x[g, n, d*sd + kd*dd - pd, h*sh + kh*dh - ph, w*sw + kw*dw - pw, c] * weight[g, kd, kh, kw, c, k],
        ...)

Missing spatial dimensions have extent 1. In GEMM terms M = n*d*h*w output pixels, N = k, K = kd*kh*kw*c. The
memory before and after x that the pads reach must exist and hold zeros: the lowering sees to it.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property
from math import prod
from typing import Any, Literal

import numpy as np

from convopt.schedules.base import TensorView
from convopt.schedules.primitives.expression import Expression

Triple = tuple[int, int, int]
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class ConvProblem:
    """x: (g, n, d, h, w, c) and y: (g, n, d, h, w, k), any strides, y's channels contiguous.

    others: further operands of the epilogue, each shaped like y, broadcast by stride 0; the epilogue's input
    0 is the sum. bias: whether there is a bias operand. Operands of a kernel: x, weight, [bias], others...,
    y. arithmetic: "bfloat16" where a schedule may multiply bfloat16 with weights rounded to it, "tf32" where
    it may round float32 to that before it multiplies, both summed in float32. bordered: whether the memory
    that the pads reach is there and zero; without it only a schedule that reads nothing but x will do.
    """

    x: TensorView
    y: TensorView
    kernel: Triple
    strides: Triple
    dilations: Triple
    pads: Triple  # begin pads; the end pads follow from y's extents
    epilogue: Expression
    others: tuple[TensorView, ...] = ()
    bias: bool = True
    arithmetic: Literal["float32", "bfloat16", "tf32"] = "float32"
    bordered: bool = True

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        """Kept: selection asks several caches about one problem for each of hundreds of schedules."""
        return hash(tuple(getattr(self, field.name) for field in fields(self)))

    def __getstate__(self) -> dict[str, Any]:
        """The fields alone: another process hashes texts differently."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @property
    def text(self) -> str:
        """`3x3 s1 1x64->64 @1x1x56x56`: kernel, stride, groups x channels -> features, @ the output."""
        kernel = "x".join(str(k) for k in self.kernel[self.kernel[0] == 1 :])
        extents = "x".join(str(e) for e in self.y.shape[1:5])
        return f"{kernel} s{self.strides[2]} {self.groups}x{self.channels}->{self.features} @{extents}"

    @cached_property
    def groups(self) -> int:
        return self.x.shape[0]

    @cached_property
    def channels(self) -> int:
        """Input channels of a group."""
        return self.x.shape[5]

    @cached_property
    def features(self) -> int:
        """Output channels of a group."""
        return self.y.shape[5]

    @cached_property
    def pixels(self) -> int:
        return prod(self.y.shape[1:5])

    @cached_property
    def taps(self) -> int:
        return prod(self.kernel)

    @cached_property
    def flops(self) -> int:
        """2 per multiply-add, padding counted as work."""
        return 2 * self.groups * self.pixels * self.features * self.taps * self.channels

    @property
    def operands(self) -> tuple[TensorView, ...]:
        """The views whose pointers a kernel gets, in order; weight and bias are flat and packed."""
        weight = TensorView((1,), (1,))
        return (self.x, weight, *((weight,) if self.bias else ()), *self.others, self.y)


def with_narrow_weight(problem: ConvProblem) -> tuple[TensorView, ...]:
    """The operands of a kernel whose packed weight is bfloat16."""
    x, weight, *rest = problem.operands
    return (x, TensorView(weight.shape, weight.strides, "bfloat16"), *rest)


def pack_weight(weight: Array, channel_block: int, tile: int) -> Array:
    """(g, k, c, kd, kh, kw) to (g, c/channel_block, k/tile, kd, kh, kw, channel_block, tile), k padded by
    zeros.

    A kernel then reads one contiguous panel from beginning to end for each tile of pixels, and the panel that
    it needs next lies behind it.
    """
    g, k, c, *taps = weight.shape
    blocks = -(-k // tile)
    padded = np.zeros((g, blocks * tile, c, *taps), np.float32)
    padded[:, :k] = weight
    split = padded.reshape(g, blocks, tile, c // channel_block, channel_block, *taps)
    return np.ascontiguousarray(split.transpose(0, 3, 1, 5, 6, 7, 4, 2))


def pack_bias(bias: Array, tile: int) -> Array:
    """(g, k) to (g, k rounded up to the tile), zeros at the end."""
    g, k = bias.shape
    padded = np.zeros((g, -(-k // tile) * tile), np.float32)
    padded[:, :k] = bias
    return padded
