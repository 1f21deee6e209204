"""Normalizations and softmax: means, differences, roots; the variance is that of the differences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np
import torch

from convopt.frontends.torch.builder import Builder, Missing, Operand, Tensor, Untranslatable, held

aten = torch.ops.aten
_STATISTICS = Missing("the statistics of a normalization")


def batch_norm(
    b: Builder,
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor,
    running_var: Tensor,
    momentum: float,
    eps: float,
) -> Any:
    """With the statistics that were collected: a scale and a shift per channel."""
    del momentum
    mean, variance = held(running_mean, "the mean"), held(running_var, "the variance")
    assert mean is not None and variance is not None
    scale, shift = held(weight, "the scale"), held(bias, "the shift")
    scale = np.ones_like(mean) if scale is None else scale
    shift = np.zeros_like(mean) if shift is None else shift
    made = b.op(
        "BatchNormalization", input, *map(b.constant, (scale, shift, mean, variance)), epsilon=float(eps)
    )
    return made, _STATISTICS, _STATISTICS


def batch_statistics(
    b: Builder,
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> Any:
    """By each channel's own mean and variance: instance normalization arrives as this, with a batch of 1."""
    del momentum
    if not training:
        raise Untranslatable("no statistics are given")
    axes = [0, *range(2, input.rank)]
    if prod(input.shape[a] for a in axes) < 2:
        raise Untranslatable("statistics of a single value")
    made: Operand = _normalized(b, input, axes, eps)
    if weight is not None:
        made = b.op("Mul", made, b.per_channel(weight, input.rank))
    if bias is not None:
        made = b.op("Add", made, b.per_channel(bias, input.rank))
    return made, _STATISTICS, _STATISTICS


def _normalized(b: Builder, x: Operand, axes: Sequence[int], eps: float) -> Any:
    """(x - mean) / sqrt(variance + eps) over the axes."""
    distance = b.op("Sub", x, b.op("ReduceMean", x, axes, keepdims=1))
    variance = b.op("ReduceMean", b.op("Mul", distance, distance), axes, keepdims=1)
    return b.op("Div", distance, b.op("Sqrt", b.op("Add", variance, float(eps))))


def layer_norm(
    b: Builder,
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
) -> Any:
    axes = [*range(input.rank - len(normalized_shape), input.rank)]
    made = _normalized(b, input, axes, eps)
    if weight is not None:
        made = b.op("Mul", made, weight)
    if bias is not None:
        made = b.op("Add", made, bias)
    return made, _STATISTICS, _STATISTICS


def group_norm(
    b: Builder,
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    N: int,
    C: int,
    HxW: int,
    group: int,
    eps: float,
) -> Any:
    grouped = b.reshape(input, (N, group, C // group * HxW))
    made = b.reshape(_normalized(b, grouped, [2], eps), input.shape)
    if weight is not None:
        made = b.op("Mul", made, b.per_channel(weight, input.rank))
    if bias is not None:
        made = b.op("Add", made, b.per_channel(bias, input.rank))
    return made, _STATISTICS, _STATISTICS


def _softmax(op_type: str) -> Callable[..., Any]:
    def translate(b: Builder, self: Tensor, dim: int, half_to_float: bool) -> Any:
        del half_to_float  # the result's type tells
        if not self.rank:
            raise Untranslatable("softmax of a single number")
        return b.op(op_type, self, axis=dim % self.rank)

    return translate


TABLE: dict[Any, Callable[..., Any]] = {
    aten._native_batch_norm_legit_no_training.default: batch_norm,
    aten._native_batch_norm_legit.no_stats: batch_statistics,
    aten.native_layer_norm.default: layer_norm,
    aten.native_group_norm.default: group_norm,
    aten._softmax.default: _softmax("Softmax"),
    aten._log_softmax.default: _softmax("LogSoftmax"),
}
