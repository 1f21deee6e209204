"""Elementwise operators: unary functions, activations, arithmetic, comparison and logic with broadcast."""

from __future__ import annotations

import math
from functools import reduce

import numpy as np

erf = np.vectorize(math.erf, otypes=[np.float64])


def add(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return a + b


def sub(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return a - b


def mul(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return a * b


def div(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a / b; integers truncate toward zero."""
    if np.issubdtype(a.dtype, np.integer):
        return np.sign(a) * np.sign(b) * (abs(a) // abs(b))
    return a / b


def power(base: np.ndarray, exponent: np.ndarray) -> np.ndarray:
    """base ** exponent, in the type of the base."""
    if np.issubdtype(base.dtype, np.integer) and np.issubdtype(exponent.dtype, np.integer):
        return np.power(base, exponent).astype(base.dtype)
    return np.power(base.astype(np.float64), exponent).astype(base.dtype)


def mod(a: np.ndarray, b: np.ndarray, *, fmod: int = 0) -> np.ndarray:
    """The remainder with the sign of b, or with the sign of a for fmod."""
    return np.fmod(a, b) if fmod else np.mod(a, b)


def maximum(*values: np.ndarray) -> np.ndarray:
    return reduce(np.maximum, values)


def minimum(*values: np.ndarray) -> np.ndarray:
    return reduce(np.minimum, values)


def total(*values: np.ndarray) -> np.ndarray:
    return reduce(np.add, values)


def mean(*values: np.ndarray) -> np.ndarray:
    return total(*values) / len(values)


def where(condition: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.where(condition, a, b)


def clip(
    x: np.ndarray, min: np.ndarray | float | None = None, max: np.ndarray | float | None = None
) -> np.ndarray:
    """min(max(x, min), max): inputs since Clip-11, attributes before; max wins where max < min."""
    if min is not None:
        x = np.maximum(x, np.asarray(min, x.dtype))
    return x if max is None else np.minimum(x, np.asarray(max, x.dtype))


def relu(x: np.ndarray) -> np.ndarray:
    return np.maximum(x, np.zeros((), x.dtype))


def leaky_relu(x: np.ndarray, *, alpha: float = 0.01) -> np.ndarray:
    return np.where(x < 0, alpha * x, x)


def prelu(x: np.ndarray, slope: np.ndarray) -> np.ndarray:
    """slope * x below zero; slope broadcasts to x in one direction only."""
    return np.where(x < 0, slope * x, x).astype(x.dtype)


def thresholded_relu(x: np.ndarray, *, alpha: float = 1.0) -> np.ndarray:
    return np.where(x > alpha, x, 0.0)


def elu(x: np.ndarray, *, alpha: float = 1.0) -> np.ndarray:
    return np.where(x < 0, alpha * np.expm1(x), x)


def celu(x: np.ndarray, *, alpha: float = 1.0) -> np.ndarray:
    return np.maximum(x, 0) + np.minimum(0, alpha * np.expm1(x / alpha))


def selu(
    x: np.ndarray, *, alpha: float = 1.67326319217681884765625, gamma: float = 1.05070102214813232421875
) -> np.ndarray:
    return gamma * np.where(x > 0, x, alpha * np.expm1(x))


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1.0 / (1.0 + np.exp(-x))


def hard_sigmoid(x: np.ndarray, *, alpha: float = 0.2, beta: float = 0.5) -> np.ndarray:
    return np.clip(alpha * x + beta, 0.0, 1.0)


def hard_swish(x: np.ndarray) -> np.ndarray:
    """x * HardSigmoid(x) with alpha = 1 / 6, beta = 0.5."""
    return x * hard_sigmoid(x, alpha=1.0 / 6.0)


def swish(x: np.ndarray, *, alpha: float = 1.0) -> np.ndarray:
    return x * sigmoid(alpha * x)


def softplus(x: np.ndarray) -> np.ndarray:
    return np.logaddexp(x, 0.0)


def softsign(x: np.ndarray) -> np.ndarray:
    return x / (1.0 + np.abs(x))


def mish(x: np.ndarray) -> np.ndarray:
    return x * np.tanh(softplus(x))


def gelu(x: np.ndarray, *, approximate: str = "none") -> np.ndarray:
    """x times the normal distribution's integral, or its approximation by tanh."""
    if approximate == "tanh":
        return 0.5 * x * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))
    return 0.5 * x * (1.0 + erf(x / math.sqrt(2.0)))


def shrink(x: np.ndarray, *, bias: float = 0.0, lambd: float = 0.5) -> np.ndarray:
    return np.where(x < -lambd, x + bias, np.where(x > lambd, x - bias, 0)).astype(x.dtype)


def is_inf(x: np.ndarray, *, detect_negative: int = 1, detect_positive: int = 1) -> np.ndarray:
    return (np.isposinf(x) & bool(detect_positive)) | (np.isneginf(x) & bool(detect_negative))


def reciprocal(x: np.ndarray) -> np.ndarray:
    return 1.0 / x
