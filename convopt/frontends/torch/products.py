"""Convolutions and matrix products."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from convopt.frontends.torch.builder import Builder, Missing, Operand, Tensor, Untranslatable, held

aten = torch.ops.aten


def convolution(
    b: Builder,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Any:
    """weight: (K, C / groups, spatial...); of a transposed convolution (C, K / groups, spatial...)."""
    rank = input.rank - 2
    held(weight, "the weight"), held(bias, "the bias")
    attributes: dict[str, Any] = {
        "strides": _spatial(stride, rank),
        "dilations": _spatial(dilation, rank),
        "group": groups,
    }
    padding = _spatial(padding, rank)
    if not transposed:
        attributes["pads"] = [*padding, *padding]
        if any(p < 0 for p in padding):
            raise Untranslatable("negative padding")
        return b.op("Conv", input, weight, bias, **attributes)
    if any(p < 0 for p in padding):
        raise Untranslatable("negative padding")
    attributes["pads"] = [*padding, *padding]
    attributes["output_padding"] = _spatial(output_padding, rank)
    return b.op("ConvTranspose", input, weight, bias, **attributes)


def _spatial(values: Sequence[int], rank: int) -> list[int]:
    return [*values] * (rank if len(values) == 1 else 1)


def mm(b: Builder, self: Tensor, mat2: Tensor) -> Any:
    return b.op("MatMul", self, mat2)


def addmm(b: Builder, self: Tensor, mat1: Tensor, mat2: Tensor, beta: float = 1, alpha: float = 1) -> Any:
    return _added(b, self, b.op("MatMul", mat1, mat2), beta, alpha)


def baddbmm(
    b: Builder, self: Tensor, batch1: Tensor, batch2: Tensor, beta: float = 1, alpha: float = 1
) -> Any:
    return _added(b, self, b.op("MatMul", batch1, batch2), beta, alpha)


def _added(b: Builder, bias: Tensor, product: Operand, beta: float, alpha: float) -> Any:
    """beta * bias + alpha * product; with beta 0 the bias is not read, NaNs in it don't count."""
    if alpha != 1:
        product = b.op("Mul", product, float(alpha))
    if beta == 0:
        return product
    return b.op("Add", product, bias if beta == 1 else b.op("Mul", bias, float(beta)))


def linear(b: Builder, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Any:
    product = b.op("MatMul", input, _transposed(b, weight))
    return product if bias is None else b.op("Add", product, bias)


def _transposed(b: Builder, weight: Tensor) -> Operand:
    array = held(weight, "") if weight.array is not None else None
    if array is None:
        return b.op("Transpose", weight, perm=[1, 0]) if weight.rank == 2 else weight.value
    return b.constant(np.ascontiguousarray(array.T))


def attention(
    b: Builder,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> Any:
    """softmax(query key^T * scale + mask) value; scale is 1 / sqrt(the last extent) unless given."""
    if dropout_p:
        raise Untranslatable("attention with dropout")
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else float(scale)
    rank = key.rank
    turned = b.op("Transpose", key, perm=[*range(rank - 2), rank - 1, rank - 2])
    scores = b.op("MatMul", b.op("Mul", query, factor), turned)
    if is_causal:
        allowed = np.tril(np.ones((query.shape[-2], key.shape[-2]), bool))
        scores = b.op("Add", scores, b.constant(np.where(allowed, 0, -np.inf).astype(np.float32)))
    if attn_mask is not None:
        if attn_mask.dtype == torch.bool:
            raise Untranslatable("attention with a mask of truth values")
        scores = b.op("Add", scores, attn_mask)
    return b.op("MatMul", b.op("Softmax", scores, axis=-1), value), Missing("the log-sum-exp of attention")


TABLE: dict[Any, Callable[..., Any]] = {
    aten.convolution.default: convolution,
    aten.mm.default: mm,
    aten.bmm.default: mm,
    aten.mv.default: lambda b, self, vec: b.op("MatMul", self, vec),
    aten.addmm.default: addmm,
    aten.baddbmm.default: baddbmm,
    aten.linear.default: linear,
    aten._scaled_dot_product_flash_attention_for_cpu.default: attention,
}
