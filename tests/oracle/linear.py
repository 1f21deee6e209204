"""Matrix products, normalisation, softmax and reductions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np


def gemm(
    a: np.ndarray,
    b: np.ndarray,
    c: np.ndarray | None = None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: int = 0,
    transB: int = 0,
) -> np.ndarray:
    """alpha * A' B' + beta * C, C broadcast to [M, N] in one direction."""
    y = alpha * ((a.T if transA else a) @ (b.T if transB else b))
    return y if c is None else y + beta * c


def matmul(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.matmul(a, b)


def batch_normalization(
    x: np.ndarray,
    scale: np.ndarray,
    bias: np.ndarray,
    mean: np.ndarray,
    var: np.ndarray,
    *,
    epsilon: float = 1e-5,
    momentum: float = 0.9,
    training_mode: int = 0,
    spatial: int = 1,
) -> np.ndarray:
    """Inference: (x - mean) / sqrt(var + epsilon) * scale + bias, per channel (axis 1)."""
    if training_mode or not spatial:
        raise NotImplementedError("batch normalization is evaluated for spatial inference only")
    scale, bias, mean, var = (value.reshape(-1, *[1] * (x.ndim - 2)) for value in (scale, bias, mean, var))
    return (x - mean) / np.sqrt(var + epsilon) * scale + bias


def instance_normalization(
    x: np.ndarray, scale: np.ndarray, bias: np.ndarray, *, epsilon: float = 1e-5
) -> np.ndarray:
    """Every [n, c] plane by its own mean and variance, then scale and bias per channel."""
    axes = tuple(range(2, x.ndim))
    scale, bias = (value.reshape(-1, *[1] * len(axes)) for value in (scale, bias))
    centred = x - x.mean(axis=axes, keepdims=True)
    return centred / np.sqrt(np.square(centred).mean(axis=axes, keepdims=True) + epsilon) * scale + bias


def dropout(
    x: np.ndarray, ratio: float = 0.5, training_mode: bool = False, *, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Inference: x itself and a mask of all true."""
    if training_mode:
        raise NotImplementedError("dropout is evaluated for inference only")
    return x, np.ones(x.shape, bool)


def softmax(x: np.ndarray, *, axis: int = -1) -> np.ndarray:
    e = np.exp(x - x.max(axis=axis, keepdims=True))
    return e / e.sum(axis=axis, keepdims=True)


def log_softmax(x: np.ndarray, *, axis: int = -1) -> np.ndarray:
    shifted = x - x.max(axis=axis, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=axis, keepdims=True))


def coerced(function: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    """Softmax and LogSoftmax before opset 13: over all axes from `axis` (default 1) on, as one."""

    def over_rows(x: np.ndarray, *, axis: int = 1) -> np.ndarray:
        rows = x.reshape(int(np.prod(x.shape[:axis], dtype=np.int64)), -1)
        return function(rows, axis=-1).reshape(x.shape)

    return over_rows


def reduction(function: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    """The Reduce* form of function(x, axis, keepdims); axes is an attribute in old opsets, then an input."""

    def reduce(
        x: np.ndarray,
        axes: Sequence[int] | None = None,
        *,
        keepdims: int = 1,
        noop_with_empty_axes: int = 0,
    ) -> np.ndarray:
        if axes is None or len(axes) == 0:
            selected = () if noop_with_empty_axes else tuple(range(x.ndim))
        else:
            selected = tuple(int(axis) for axis in axes)
        return np.asarray(function(x, axis=selected, keepdims=bool(keepdims)))

    return reduce


def _largest(x: np.ndarray, axis: tuple[int, ...], keepdims: bool) -> np.ndarray:
    lowest = {"b": False, "f": -np.inf}.get(x.dtype.kind)
    return np.max(
        x, axis=axis, keepdims=keepdims, initial=np.iinfo(x.dtype).min if lowest is None else lowest
    )


def _smallest(x: np.ndarray, axis: tuple[int, ...], keepdims: bool) -> np.ndarray:
    highest = {"b": True, "f": np.inf}.get(x.dtype.kind)
    return np.min(
        x, axis=axis, keepdims=keepdims, initial=np.iinfo(x.dtype).max if highest is None else highest
    )


def _log_sum_exp(x: np.ndarray, axis: tuple[int, ...], keepdims: bool) -> np.ndarray:
    return np.log(np.sum(np.exp(x), axis=axis, keepdims=keepdims))


reduce_max = reduction(_largest)
reduce_min = reduction(_smallest)
reduce_mean = reduction(np.mean)
reduce_sum = reduction(np.sum)
reduce_prod = reduction(np.prod)
reduce_l1 = reduction(lambda x, axis, keepdims: np.sum(np.abs(x), axis=axis, keepdims=keepdims))
reduce_l2 = reduction(lambda x, axis, keepdims: np.sqrt(np.sum(np.square(x), axis=axis, keepdims=keepdims)))
reduce_sum_square = reduction(lambda x, axis, keepdims: np.sum(np.square(x), axis=axis, keepdims=keepdims))
reduce_log_sum = reduction(lambda x, axis, keepdims: np.log(np.sum(x, axis=axis, keepdims=keepdims)))
reduce_log_sum_exp = reduction(_log_sum_exp)
