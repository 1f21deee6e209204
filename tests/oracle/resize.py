"""Resize (and Upsample): every axis is resampled by a matrix of weights [length_resized, length_original]."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Axis:
    """One axis being resized. `target` is length * scale, which can be fractional; `resized` its floor."""

    length: int
    resized: int
    scale: float
    target: float
    roi: tuple[float, float]


def _tf_crop_and_resize(x: float, a: Axis) -> float:
    start, end = a.roi
    if a.resized > 1:
        return start * (a.length - 1) + x * (end - start) * (a.length - 1) / (a.resized - 1)
    return 0.5 * (start + end) * (a.length - 1)


# x_resized -> x_original, as listed under coordinate_transformation_mode.
COORDINATES: dict[str, Callable[[float, Axis], float]] = {
    "half_pixel": lambda x, a: (x + 0.5) / a.scale - 0.5,
    "half_pixel_symmetric": lambda x, a: (
        a.length / 2 * (1 - a.resized / a.target) + (x + 0.5) / a.scale - 0.5
    ),
    "pytorch_half_pixel": lambda x, a: (x + 0.5) / a.scale - 0.5 if a.resized > 1 else 0.0,
    "align_corners": lambda x, a: x * (a.length - 1) / (a.resized - 1) if a.resized > 1 else 0.0,
    "asymmetric": lambda x, a: x / a.scale,
    "tf_half_pixel_for_nn": lambda x, a: (x + 0.5) / a.scale,
    "tf_crop_and_resize": _tf_crop_and_resize,
}

NEAREST: dict[str, Callable[[float], int]] = {
    "round_prefer_floor": lambda x: math.ceil(x - 0.5),
    "round_prefer_ceil": lambda x: math.floor(x + 0.5),
    "floor": math.floor,
    "ceil": math.ceil,
}


def linear_filter(distance: float) -> float:
    return max(1.0 - abs(distance), 0.0)


def cubic_filter(a: float) -> Callable[[float], float]:
    """Keys' cubic convolution kernel, equation (4) of https://ieeexplore.ieee.org/document/1163711."""

    def weight(distance: float) -> float:
        s = abs(distance)
        if s <= 1.0:
            return (a + 2.0) * s**3 - (a + 3.0) * s**2 + 1.0
        return a * s**3 - 5.0 * a * s**2 + 8.0 * a * s - 4.0 * a if s < 2.0 else 0.0

    return weight


def interpolation(
    axis: Axis, coordinate: str, sample: Callable[[float], dict[int, float]], outside: bool
) -> np.ndarray:
    """The weights [resized, length] of one axis: sample(x_original) gives {position: weight}.

    Positions beyond the border repeat the border's element, or with `outside` are left out and the rest
    renormalised.
    """
    matrix = np.zeros((axis.resized, axis.length))
    for i in range(axis.resized):
        for position, weight in sample(COORDINATES[coordinate](float(i), axis)).items():
            inside = min(max(position, 0), axis.length - 1)
            if inside == position or not outside:
                matrix[i, inside] += weight
        if outside:
            matrix[i] /= matrix[i].sum()
    return matrix


def filtered(
    kernel: Callable[[float], float], radius: float, stretch: float
) -> Callable[[float], dict[int, float]]:
    """Samples around x weighted by a filter, stretched for antialiasing (then normalised)."""

    def sample(x: float) -> dict[int, float]:
        reach = radius * stretch
        positions = range(math.floor(x - reach), math.ceil(x + reach) + 1)
        weights = {position: kernel((position - x) / stretch) for position in positions}
        scale = sum(weights.values()) if stretch > 1.0 else 1.0
        return {position: weight / scale for position, weight in weights.items() if weight != 0.0}

    return sample


def resize(
    x: np.ndarray,
    roi: np.ndarray | None = None,
    scales: np.ndarray | None = None,
    sizes: np.ndarray | None = None,
    *,
    mode: str = "nearest",
    coordinate_transformation_mode: str = "half_pixel",
    nearest_mode: str = "round_prefer_floor",
    cubic_coeff_a: float = -0.75,
    exclude_outside: int = 0,
    extrapolation_value: float = 0.0,
    antialias: int = 0,
    axes: Sequence[int] | None = None,
    keep_aspect_ratio_policy: str = "stretch",
) -> np.ndarray:
    """Resize-19. x of any rank; scales or sizes (one of them, the other None or empty) for `axes`."""
    selected = list(range(x.ndim)) if axes is None else [axis % x.ndim for axis in axes]
    crops = coordinate_transformation_mode == "tf_crop_and_resize"
    plan = _axes(x.shape, selected, roi if crops else None, scales, sizes, keep_aspect_ratio_policy)
    y, outside = x, np.zeros((), bool)
    for number, axis in plan.items():
        stretch = max(1.0, 1.0 / axis.scale) if antialias else 1.0
        if mode == "nearest":
            sample: Callable[[float], dict[int, float]] = lambda at: {NEAREST[nearest_mode](at): 1.0}  # noqa: E731
        elif mode in ("linear", "bilinear"):
            sample = filtered(linear_filter, 1.0, stretch)
        else:
            sample = filtered(cubic_filter(cubic_coeff_a), 2.0, stretch)
        unchanged = axis.resized == axis.length and axis.scale == 1.0 and not crops
        if not unchanged:
            matrix = interpolation(axis, coordinate_transformation_mode, sample, bool(exclude_outside))
            y = np.moveaxis(np.tensordot(matrix, y, axes=([1], [number])), 0, number)
        if crops:
            at = np.array([_tf_crop_and_resize(float(i), axis) for i in range(axis.resized)])
            beyond = (at < 0) | (at > axis.length - 1)
            outside = outside | beyond.reshape([-1 if n == number else 1 for n in range(x.ndim)])
    y = np.where(outside, extrapolation_value, y) if crops else y
    return y.astype(x.dtype)


def _axes(
    shape: Sequence[int],
    selected: Sequence[int],
    roi: np.ndarray | None,
    scales: np.ndarray | None,
    sizes: np.ndarray | None,
    policy: str,
) -> dict[int, Axis]:
    """The axes to resize with their lengths, by `scales` or by `sizes` under the aspect ratio policy."""
    by_sizes = sizes is not None and len(sizes) > 0
    if by_sizes and policy != "stretch":
        ratios = [int(n) / shape[axis] for n, axis in zip(sizes, selected, strict=True)]
        ratio = min(ratios) if policy == "not_larger" else max(ratios)
        scales, sizes = None, [math.floor(ratio * shape[axis] + 0.5) for axis in selected]
    plan = {}
    for position, axis in enumerate(selected):
        length = shape[axis]
        region = (0.0, 1.0) if roi is None else (float(roi[position]), float(roi[position + len(selected)]))
        if by_sizes:
            resized = int(sizes[position])
            plan[axis] = Axis(length, resized, resized / length, float(resized), region)
        else:
            scale = float(scales[position])
            target = length * (region[1] - region[0]) * scale
            plan[axis] = Axis(length, math.floor(target), scale, target, region)
    return plan


def upsample(x: np.ndarray, scales: np.ndarray, *, mode: str = "nearest") -> np.ndarray:
    """Upsample-9: Resize with x_original = x_resized / scale and the nearest element below."""
    return resize(
        x, None, scales, mode=mode, coordinate_transformation_mode="asymmetric", nearest_mode="floor"
    )
