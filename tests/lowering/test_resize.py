"""Resize groups against the float64 oracle: every coordinate and rounding mode, scales and sizes, layouts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from convopt.lowering.base import Refused
from convopt.lowering.resize import COORDINATES, NEAREST, lower
from tests.lowering.group_harness import check_group, run_group, single

pytestmark = pytest.mark.kernels

X = np.random.default_rng(0).normal(size=(2, 11, 6, 9)).astype(np.float32)
INPUTS = {"x": X}


def by_scales(*scales: float, **attributes: Any) -> Any:
    constants = {"scales": np.array(scales, np.float32)}
    return single("Resize", INPUTS, constants, order="x _ scales", opset=19, **attributes)


def by_sizes(*sizes: int, **attributes: Any) -> Any:
    constants = {"sizes": np.array(sizes, np.int64)}
    return single("Resize", INPUTS, constants, order="x _ _ sizes", opset=19, **attributes)


@pytest.mark.parametrize("coordinates", COORDINATES)
@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("channels_last", [False, True])
def test_coordinates(coordinates: str, mode: str, channels_last: bool, tmp_path: Path) -> None:
    attributes = {"mode": mode, "coordinate_transformation_mode": coordinates}
    options = {"channels_last": channels_last, "gap": 1}
    for scales in ((1, 1, 2, 2), (1, 1, 0.6, 1.7)):
        check_group(by_scales(*scales, **attributes), "Resize", lower, INPUTS, tmp_path, **options)


@pytest.mark.parametrize("nearest", NEAREST)
@pytest.mark.parametrize("coordinates", ["half_pixel", "asymmetric"])
def test_nearest_modes(nearest: str, coordinates: str, tmp_path: Path) -> None:
    attributes = {"nearest_mode": nearest, "coordinate_transformation_mode": coordinates}
    for scales in ((1, 1, 2, 3), (1, 1, 0.5, 1.25)):
        check_group(by_scales(*scales, **attributes), "Resize", lower, INPUTS, tmp_path, channels_last=True)


def test_nearest_divides_in_single_precision(tmp_path: Path) -> None:
    """7 / 0.7 is 10; by the float32 next to 0.7 it is a little more, and would be rounded up to 11."""
    inputs = {"x": np.arange(16, dtype=np.float32).reshape(1, 1, 1, 16)}
    scales = {"scales": np.array([1, 1, 1, 0.7], np.float32)}
    attributes = {"nearest_mode": "ceil", "coordinate_transformation_mode": "asymmetric"}
    model = single("Resize", inputs, scales, order="x _ scales", opset=19, **attributes)
    got = run_group(model, "Resize", lower, inputs, tmp_path)["y0"]
    assert got.reshape(-1).tolist() == [0, 2, 3, 5, 6, 8, 9, 10, 12, 13, 15]


@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_sizes(mode: str, tmp_path: Path) -> None:
    check_group(by_sizes(2, 11, 13, 4, mode=mode), "Resize", lower, INPUTS, tmp_path, channels_last=True)
    check_group(by_sizes(13, 4, mode=mode, axes=[2, 3]), "Resize", lower, INPUTS, tmp_path)


@pytest.mark.parametrize("policy", ["not_larger", "not_smaller"])
@pytest.mark.parametrize("sizes", [(13, 14), (7, 20)], ids=str)
def test_aspect_ratio(policy: str, sizes: tuple[int, int], tmp_path: Path) -> None:
    """The common scale, not the rounded sizes, gives the coordinates: onnxruntime is the reference here."""
    import onnxruntime

    model = by_sizes(*sizes, mode="linear", axes=[2, 3], keep_aspect_ratio_policy=policy)
    model.ir_version = 9
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    (want,) = session.run(None, INPUTS)
    got = run_group(model, "Resize", lower, INPUTS, tmp_path)["y0"]
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", [(1, 5, 7), (1, 4, 3, 5, 6)], ids=str)
@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_one_and_three_dimensions(shape: tuple[int, ...], mode: str, tmp_path: Path) -> None:
    inputs = {"x": np.random.default_rng(0).normal(size=shape).astype(np.float32)}
    scales = np.array([1, 1] + [2.5] * (len(shape) - 2), np.float32)
    model = single("Resize", inputs, {"scales": scales}, order="x _ scales", opset=19, mode=mode)
    for channels_last in (False, True):
        check_group(model, "Resize", lower, inputs, tmp_path, channels_last=channels_last)


def test_channels_too_can_be_resized(tmp_path: Path) -> None:
    check_group(by_scales(1, 2, 1, 1.5, mode="linear"), "Resize", lower, INPUTS, tmp_path, channels_last=True)


def test_scale_1_is_a_copy(tmp_path: Path) -> None:
    check_group(by_scales(1, 1, 1, 1), "Resize", lower, INPUTS, tmp_path, channels_last=["x"])


def test_float16(tmp_path: Path) -> None:
    inputs = {"x": X.astype(np.float16)}
    scales = {"scales": np.array([1, 1, 2, 1.5], np.float32)}
    for mode in ("nearest", "linear"):
        model = single("Resize", inputs, scales, order="x _ scales", opset=19, mode=mode)
        check_group(model, "Resize", lower, inputs, tmp_path, tolerance=1e-3, channels_last=True)


@pytest.mark.parametrize(
    ("attributes", "reason"),
    [
        ({"mode": "cubic"}, "cubic interpolation"),
        ({"mode": "linear", "antialias": 1}, "antialiasing"),
        ({"coordinate_transformation_mode": "tf_crop_and_resize"}, "coordinates by tf_crop_and_resize"),
    ],
    ids=str,
)
def test_refusals_are_in_words(attributes: dict[str, Any], reason: str, tmp_path: Path) -> None:
    roi = np.array([0, 0, 0, 0, 1, 1, 1, 1], np.float32)
    constants = {"roi": roi, "scales": np.array([1, 1, 2, 2], np.float32)}
    model = single("Resize", INPUTS, constants, opset=19, **attributes)
    with pytest.raises(Refused, match=reason):
        run_group(model, "Resize", lower, INPUTS, tmp_path)
