"""The roofline of each convolution: its GEMM, its work, its least traffic, and what bounds its speed.

Williams, Waterman and Patterson, "Roofline", CACM 52(4), 2009: at intensity I (FLOP per byte), a machine with
peak P and bandwidth B reaches at most min(P, I * B).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Literal

import onnx_ir as ir

from convopt.errors import InputError
from convopt.ir.precision import FP32, NARROW, Precision
from convopt.ir.values import attribute, input_at, is_op, static_shape


@dataclass(frozen=True)
class Roof:
    """What the machine can do: FLOP/s with everything in registers, and bytes/s from memory."""

    flops: float
    bandwidth: float

    @property
    def ridge(self) -> float:
        """The intensity in FLOP/byte above which memory no longer bounds."""
        return self.flops / self.bandwidth


@dataclass(frozen=True)
class ConvCost:
    """One Conv or ConvTranspose as a GEMM of m x n x k, `groups` times, and what it must move.

    Conv: m = output pixels (batch included), n = output channels of a group, k = kernel positions times input
    channels of a group. ConvTranspose computes the transposed product before it scatters: m = input pixels,
    n = output channels of a group times kernel positions, k = input channels of a group.
    nbytes: input, weight, bias and output once each: no cache can do with less.
    """

    node: str
    op: str
    kernel: tuple[int, ...]
    m: int
    n: int
    k: int
    groups: int
    nbytes: int

    @property
    def flop(self) -> int:
        """A multiply and an add are two; multiplications by padding count."""
        return 2 * self.m * self.n * self.k * self.groups

    @property
    def intensity(self) -> float:
        """FLOP per byte."""
        return self.flop / self.nbytes if self.nbytes else 0.0

    def bound(self, roof: Roof) -> Literal["compute", "memory"]:
        return "compute" if self.intensity >= roof.ridge else "memory"

    def seconds(self, roof: Roof) -> float:
        """The least time that the roof allows."""
        return max(self.flop / roof.flops, self.nbytes / roof.bandwidth)


def conv_costs(model: ir.Model, precision: Precision = FP32) -> list[ConvCost]:
    """The cost of each convolution of the main graph, in its order, with float32 stored in that precision.

    Raises:
        InputError: a convolution whose shapes are not all bound.
    """
    return [_cost(node, precision) for node in model.graph if is_op(node, "Conv", "ConvTranspose")]


def _cost(node: ir.Node, precision: Precision) -> ConvCost:
    operands = [v for v in (input_at(node, 0), input_at(node, 1), input_at(node, 2), node.outputs[0]) if v]
    shapes = [static_shape(value) for value in operands]
    if any(shape is None for shape in shapes):
        raise InputError(f"{node.op_type} {node.name!r} has no static shape; bind the inputs' dims")
    bound = [shape for shape in shapes if shape is not None]
    x, weight, y = bound[0], bound[1], bound[-1]
    groups, positions = int(attribute(node, "group", 1)), prod(weight[2:])
    if node.op_type == "Conv":
        m, n, k = y[0] * prod(y[2:]), weight[0] // groups, weight[1] * positions
    else:
        m, n, k = x[0] * prod(x[2:]), weight[1] * positions, weight[0] // groups
    narrow = NARROW.get(precision.name) if node.name not in precision.keep_fp32 else None
    types = [v.dtype or ir.DataType.FLOAT for v in operands]
    stored = [narrow if narrow and dtype == ir.DataType.FLOAT else dtype for dtype in types]
    nbytes = sum(prod(shape) * dtype.itemsize for shape, dtype in zip(bound, stored, strict=True))
    return ConvCost(node.name or "", node.op_type, weight[2:], m, n, k, groups, int(nbytes))
