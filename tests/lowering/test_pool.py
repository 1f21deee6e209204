"""Pool groups against the float64 oracle: attributes, automatic pads, ranks, layouts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from onnx import helper

from convopt.lowering.base import Refused
from convopt.lowering.pool import lower
from tests.lowering.group_harness import check_group, model_of, run_group, single

pytestmark = pytest.mark.kernels


def image(*shape: int) -> dict[str, np.ndarray[Any, Any]]:
    return {"x": np.random.default_rng(0).normal(size=shape).astype(np.float32)}


CASES: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "3x3 s2": ((2, 10, 13, 12), {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}),
    "begin unlike end": ((1, 8, 9, 9), {"kernel_shape": [3, 2], "pads": [0, 1, 2, 0]}),
    "ceil": ((1, 8, 10, 9), {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1}),
    "ceil with pads": (
        (1, 3, 7, 7),
        {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 2, 2], "ceil_mode": 1},
    ),
    "same upper": ((1, 4, 8, 7), {"kernel_shape": [2, 4], "auto_pad": "SAME_UPPER"}),
    "same lower s2": ((1, 4, 8, 7), {"kernel_shape": [3, 3], "strides": [2, 2], "auto_pad": "SAME_LOWER"}),
    "valid": ((1, 4, 8, 7), {"kernel_shape": [3, 2], "strides": [2, 3], "auto_pad": "VALID"}),
    "1-D": ((2, 5, 31), {"kernel_shape": [7], "strides": [3], "pads": [3, 3], "ceil_mode": 1}),
    "3-D": ((1, 9, 5, 6, 7), {"kernel_shape": [2, 3, 3], "strides": [1, 2, 1], "pads": [1, 0, 1, 0, 1, 2]}),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(
    ("op", "more"), [("MaxPool", {}), ("AveragePool", {}), ("AveragePool", {"count_include_pad": 1})], ids=str
)
@pytest.mark.parametrize("channels_last", [False, True])
def test_pool(name: str, op: str, more: dict[str, int], channels_last: bool, tmp_path: Path) -> None:
    shape, attributes = CASES[name]
    model = single(op, image(*shape), opset=22, **attributes, **more)
    check_group(model, "Pool", lower, image(*shape), tmp_path, channels_last=channels_last, gap=1)


@pytest.mark.parametrize("op", ["MaxPool", "AveragePool"])
def test_dilation(op: str, tmp_path: Path) -> None:
    inputs = image(1, 11, 14, 15)
    model = single(
        op, inputs, opset=22, kernel_shape=[3, 2], dilations=[2, 3], strides=[1, 2], pads=[1, 0, 2, 3]
    )
    check_group(model, "Pool", lower, inputs, tmp_path, channels_last=True)


@pytest.mark.parametrize("op", ["GlobalMaxPool", "GlobalAveragePool"])
@pytest.mark.parametrize("shape", [(2, 13, 7, 7), (1, 40, 56, 56), (1, 3, 9)], ids=str)
@pytest.mark.parametrize("channels_last", [False, True])
def test_global_pool(op: str, shape: tuple[int, ...], channels_last: bool, tmp_path: Path) -> None:
    check_group(
        single(op, image(*shape)), "Pool", lower, image(*shape), tmp_path, channels_last=channels_last
    )


def test_indices_are_refused(tmp_path: Path) -> None:
    inputs = image(1, 2, 6, 6)
    node = helper.make_node("MaxPool", ["x"], ["y", "i"], kernel_shape=[2, 2])
    with pytest.raises(Refused, match="indices"):
        run_group(model_of([node], inputs, {}, ["y", "i"]), "Pool", lower, inputs, tmp_path)


def test_four_spatial_dimensions_are_refused(tmp_path: Path) -> None:
    inputs = image(1, 2, 3, 3, 3, 3)
    model = single("MaxPool", inputs, kernel_shape=[2] * 4)
    assert len(ir.from_proto(model).graph.outputs[0].shape or ()) == 6
    with pytest.raises(Refused, match="4 spatial dimensions"):
        run_group(model, "Pool", lower, inputs, tmp_path)
