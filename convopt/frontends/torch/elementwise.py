"""Elementwise ATen operators: arithmetic with type promotion, comparisons, activations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from convopt.frontends.torch.builder import Builder, Missing, Operand, Tensor, Untranslatable

aten = torch.ops.aten
Number = float | bool


def _unary(op_type: str, **attributes: float) -> Callable[..., Any]:
    return lambda b, self: b.op(op_type, self, **attributes)


def _binary(op_type: str) -> Callable[..., Any]:
    def translate(b: Builder, self: Operand, other: Operand) -> Any:
        return b.op(op_type, _number(b, self), _number(b, other))

    return translate


def _compare(op_type: str) -> Callable[..., Any]:
    def translate(b: Builder, self: Operand, other: Operand) -> Any:
        if any(isinstance(x, Tensor) and x.dtype == torch.bool for x in (self, other)):
            raise Untranslatable("a comparison of truth values")
        return b.op(op_type, self, other)

    return translate


def _logic(op_type: str) -> Callable[..., Any]:
    def translate(b: Builder, self: Operand, other: Operand) -> Any:
        return b.op(op_type, _truth(b, self), _truth(b, other))

    return translate


def _number(b: Builder, x: Operand) -> Operand:
    """Truth values take part in arithmetic as 0 and 1."""
    if isinstance(x, bool):
        return float(x)
    return b.op("Cast", x, to=1) if isinstance(x, Tensor) and x.dtype == torch.bool else x


def _truth(b: Builder, x: Operand) -> Operand:
    return x if isinstance(x, Tensor) and x.dtype == torch.bool else b.op("Cast", x, to=9)


def _scaled(b: Builder, x: Operand, alpha: Number) -> Operand:
    x = _number(b, x)
    if alpha == 1:
        return x
    return x * alpha if isinstance(x, (int, float)) else b.op("Mul", x, float(alpha))


def add(b: Builder, self: Operand, other: Operand, alpha: Number = 1) -> Any:
    return b.op("Add", _number(b, self), _scaled(b, other, alpha))


def sub(b: Builder, self: Operand, other: Operand, alpha: Number = 1) -> Any:
    return b.op("Sub", _number(b, self), _scaled(b, other, alpha))


def rsub(b: Builder, self: Operand, other: Operand, alpha: Number = 1) -> Any:
    return b.op("Sub", _number(b, other), _scaled(b, self, alpha))


def div(b: Builder, self: Operand, other: Operand, rounding_mode: str | None = None) -> Any:
    quotient = b.op("Div", _number(b, self), _number(b, other))
    if rounding_mode is not None:
        raise Untranslatable(f"a division rounded by {rounding_mode}")
    return quotient


def pow_(b: Builder, self: Operand, exponent: Operand) -> Any:
    return b.op("Pow", self, exponent)


def addcmul(b: Builder, self: Tensor, tensor1: Tensor, tensor2: Tensor, value: Number = 1) -> Any:
    return b.op("Add", self, _scaled(b, b.op("Mul", tensor1, tensor2), value))


def addcdiv(b: Builder, self: Tensor, tensor1: Tensor, tensor2: Tensor, value: Number = 1) -> Any:
    return b.op("Add", self, _scaled(b, b.op("Div", tensor1, tensor2), value))


def clamp(b: Builder, self: Tensor, min: Operand = None, max: Operand = None) -> Any:
    """As ATen does it: `max` wins where the bounds cross."""
    result: Operand = self
    if all(isinstance(bound, (int, float)) or bound is None for bound in (min, max)):
        if isinstance(min, (int, float)) and isinstance(max, (int, float)) and min > max:
            min = max
        return b.op("Clip", self, min, max)
    if min is not None:
        result = b.op("Max", result, min)
    return b.op("Min", result, max) if max is not None else result


def hardtanh(b: Builder, self: Tensor, min_val: float = -1, max_val: float = 1) -> Any:
    return b.op("Clip", self, float(min_val), float(max_val))


def elu(b: Builder, self: Tensor, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Any:
    if input_scale != 1:
        raise Untranslatable("elu with an input_scale")
    made = b.op("Elu", self, alpha=float(alpha))
    return made if scale == 1 else b.op("Mul", made, float(scale))


def celu(b: Builder, self: Tensor, alpha: float = 1.0) -> Any:
    return b.op("Celu", self, alpha=float(alpha))


def leaky_relu(b: Builder, self: Tensor, negative_slope: float = 0.01) -> Any:
    return b.op("LeakyRelu", self, alpha=float(negative_slope))


def hardsigmoid(b: Builder, self: Tensor) -> Any:
    return b.op("HardSigmoid", self, alpha=1 / 6, beta=0.5)


def gelu(b: Builder, self: Tensor, approximate: str = "none") -> Any:
    return b.op("Gelu", self, approximate=approximate)


def softplus(b: Builder, self: Tensor, beta: float = 1, threshold: float = 20) -> Any:
    """x itself where beta * x > threshold; below, log(1 + exp(beta x)) / beta."""
    if beta == 0:
        raise Untranslatable("softplus with beta 0")
    scaled = self if beta == 1 else b.op("Mul", self, float(beta))
    soft = b.op("Softplus", scaled)
    soft = soft if beta == 1 else b.op("Div", soft, float(beta))
    return b.op("Where", b.op("Greater", scaled, float(threshold)), self, soft)


def log_sigmoid(b: Builder, self: Tensor) -> Any:
    return b.op("Neg", b.op("Softplus", b.op("Neg", self))), Missing("the buffer of its derivative")


def prelu(b: Builder, self: Tensor, weight: Tensor) -> Any:
    return b.op("PRelu", self, weight)


def threshold(b: Builder, self: Tensor, threshold: float, value: float) -> Any:
    return b.op("Where", b.op("LessOrEqual", self, float(threshold)), float(value), self)


def hardshrink(b: Builder, self: Tensor, lambd: float = 0.5) -> Any:
    return b.op("Where", b.op("LessOrEqual", b.op("Abs", self), float(lambd)), 0.0, self)


def softshrink(b: Builder, self: Tensor, lambd: float = 0.5) -> Any:
    """x - lambd above lambd, x + lambd below -lambd, 0 between; NaN stays."""
    inside = b.op("Clip", self, -float(lambd), float(lambd))
    return b.op("Sub", self, inside)


def glu(b: Builder, self: Tensor, dim: int = -1) -> Any:
    first, second = b.op("Split", self, outputs=2, axis=dim % self.rank, num_outputs=2)
    return b.op("Mul", first, b.op("Sigmoid", second))


def where(b: Builder, condition: Tensor, self: Operand, other: Operand) -> Any:
    if condition.dtype != torch.bool:
        raise Untranslatable(f"where by {condition.dtype}")
    return b.op("Where", condition, _number(b, self), _number(b, other))


def rsqrt(b: Builder, self: Tensor) -> Any:
    return b.op("Reciprocal", b.op("Sqrt", self))


def expm1(b: Builder, self: Tensor) -> Any:
    raise Untranslatable("exp(x) - 1 would lose its small results")


def sign(b: Builder, self: Tensor) -> Any:
    """0 of NaN and of -0.0, where ONNX's Sign gives the operand."""
    below = b.op("Where", b.op("Less", self, 0.0), -1.0, 0.0)
    return b.op("Where", b.op("Greater", self, 0.0), 1.0, below)


def logical_not(b: Builder, self: Tensor) -> Any:
    return b.op("Not", _truth(b, self))


def cast(b: Builder, self: Tensor, dtype: torch.dtype | None = None, **placement: Any) -> Any:
    """Among floating-point types nothing happens: all are float32 in here."""
    del placement  # device, layout and memory format are those of the result, which torch allocates
    if self.dtype == torch.bool and b.out.dtype != torch.bool:
        return b.op("Cast", self, to=1)
    return b.op("Cast", self, to=9) if self.dtype != torch.bool and b.out.dtype == torch.bool else self


def copy(b: Builder, self: Tensor, src: Tensor, non_blocking: bool = False) -> Any:
    """`src` as a tensor like `self`."""
    del non_blocking
    return src if src.shape == self.shape else b.op("Expand", src, self.shape)


TABLE: dict[Any, Callable[..., Any]] = {
    aten.abs.default: _unary("Abs"),
    aten.ceil.default: _unary("Ceil"),
    aten.erf.default: _unary("Erf"),
    aten.exp.default: _unary("Exp"),
    aten.floor.default: _unary("Floor"),
    aten.hardswish.default: _unary("HardSwish"),
    aten.log.default: _unary("Log"),
    aten.mish.default: _unary("Mish"),
    aten.neg.default: _unary("Neg"),
    aten.reciprocal.default: _unary("Reciprocal"),
    aten.relu.default: _unary("Relu"),
    aten.round.default: _unary("Round"),
    aten.selu.default: _unary("Selu"),
    aten.sigmoid.default: _unary("Sigmoid"),
    aten.sign.default: sign,
    aten.sqrt.default: _unary("Sqrt"),
    aten.tanh.default: _unary("Tanh"),
    aten.silu.default: lambda b, self: b.op("Mul", self, b.op("Sigmoid", self)),
    aten.relu6.default: lambda b, self: b.op("Clip", self, 0.0, 6.0),
    aten.square.default: lambda b, self: b.op("Mul", self, self),
    aten.mul.Tensor: _binary("Mul"),
    aten.mul.Scalar: _binary("Mul"),
    aten.maximum.default: _binary("Max"),
    aten.minimum.default: _binary("Min"),
    aten.clamp_min.default: lambda b, self, min: clamp(b, self, min),
    aten.clamp_max.default: lambda b, self, max: clamp(b, self, None, max),
    aten.add.Tensor: add,
    aten.add.Scalar: add,
    aten.sub.Tensor: sub,
    aten.sub.Scalar: sub,
    aten.rsub.Tensor: rsub,
    aten.rsub.Scalar: rsub,
    aten.div.Tensor: div,
    aten.div.Scalar: div,
    aten.div.Tensor_mode: div,
    aten.pow.Tensor_Scalar: pow_,
    aten.pow.Tensor_Tensor: pow_,
    aten.pow.Scalar: pow_,
    aten.addcmul.default: addcmul,
    aten.addcdiv.default: addcdiv,
    aten.clamp.default: clamp,
    aten.clamp.Tensor: clamp,
    aten.hardtanh.default: hardtanh,
    aten.elu.default: elu,
    aten.celu.default: celu,
    aten.leaky_relu.default: leaky_relu,
    aten.hardsigmoid.default: hardsigmoid,
    aten.gelu.default: gelu,
    aten.softplus.default: softplus,
    aten.log_sigmoid_forward.default: log_sigmoid,
    aten._prelu_kernel.default: prelu,
    aten.threshold.default: threshold,
    aten.hardshrink.default: hardshrink,
    aten.softshrink.default: softshrink,
    aten.glu.default: glu,
    aten.rsqrt.default: rsqrt,
    aten.expm1.default: expm1,
    aten.where.self: where,
    aten.where.ScalarOther: where,
    aten.where.ScalarSelf: where,
    aten.logical_not.default: logical_not,
    aten.bitwise_not.default: logical_not,
    aten.logical_and.default: _logic("And"),
    aten.bitwise_and.Tensor: _logic("And"),
    aten.logical_or.default: _logic("Or"),
    aten.bitwise_or.Tensor: _logic("Or"),
    aten._to_copy.default: cast,
    aten.copy.default: copy,
} | {
    getattr(getattr(aten, name), overload): _compare(op_type)
    for name, op_type in {
        "eq": "Equal", "gt": "Greater", "ge": "GreaterOrEqual", "lt": "Less", "le": "LessOrEqual",
    }.items()
    for overload in ("Tensor", "Scalar")
}  # fmt: skip
