"""Move groups against the oracle: each operator, in both layouts, for several dtypes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from convopt.lowering.base import Refused
from convopt.lowering.move import lower
from tests.lowering.group_harness import check_group, run_group, single

pytestmark = pytest.mark.kernels

X = np.random.default_rng(0).normal(size=(2, 8, 6, 10)).astype(np.float32)
INPUTS = {"x": X}


def ints(*values: int) -> np.ndarray[Any, Any]:
    return np.array(values, np.int64)


PADS = {"pads": ints(0, 0, 1, 2, 0, 3, 2, 1)}
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "transpose": ("Transpose", {}, {"perm": [0, 2, 3, 1]}),
    "transpose reversed": ("Transpose", {}, {}),
    "slice": ("Slice", {"s": ints(1, -3), "e": ints(100, 100), "a": ints(2, -1)}, {}),
    "slice steps": ("Slice", {"s": ints(0, 1), "e": ints(6, 9), "a": ints(2, 3), "t": ints(2, 3)}, {}),
    "slice back": ("Slice", {"s": ints(-1, 7), "e": ints(-99, 2), "a": ints(3, 1), "t": ints(-1, -2)}, {}),
    "expand": ("Expand", {"s": ints(3, 2, 8, 6, 10)}, {}),
    "tile": ("Tile", {"r": ints(1, 3, 2, 2)}, {}),
    "depth to space": ("DepthToSpace", {}, {"blocksize": 2}),
    "depth to space crd": ("DepthToSpace", {}, {"blocksize": 2, "mode": "CRD"}),
    "space to depth": ("SpaceToDepth", {}, {"blocksize": 2}),
    "pad": ("Pad", PADS, {}),
    "pad with a value": ("Pad", {**PADS, "v": np.array(-2.5, np.float32)}, {}),
    "pad on axes": ("Pad", {"p": ints(1, 2, 0, 3), "v": np.array(1, np.float32), "a": ints(-1, 1)}, {}),
    "crop": ("Pad", {"p": ints(0, -2, 1, -1, 0, 1, -3, 2)}, {}),
    "pad edge": ("Pad", PADS, {"mode": "edge"}),
    "pad reflect": ("Pad", PADS, {"mode": "reflect"}),
    "pad wrap": ("Pad", PADS, {"mode": "wrap"}),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("channels_last", [False, True, ["x"]], ids=str)
def test_move(name: str, channels_last: Any, tmp_path: Path) -> None:
    op, constants, attributes = CASES[name]
    model = single(op, INPUTS, constants, opset=19, **attributes)
    check_group(model, "Move", lower, INPUTS, tmp_path, tolerance=0, channels_last=channels_last, gap=1)


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("channels_last", [False, True])
def test_concat(axis: int, channels_last: bool, tmp_path: Path) -> None:
    shapes = [[2, 3, 4, 5], [2, 3, 4, 5], [2, 3, 4, 5]]
    shapes[1][axis] = 1
    generator = np.random.default_rng(0)
    inputs = {f"x{i}": generator.normal(size=s).astype(np.float32) for i, s in enumerate(shapes)}
    model = single("Concat", inputs, order="x0 x1 x2 x0", axis=axis)
    check_group(model, "Move", lower, inputs, tmp_path, tolerance=0, channels_last=channels_last)


@pytest.mark.parametrize("constants", [{}, {"sizes": ints(1, 5, 2)}], ids=["equal", "given"])
@pytest.mark.parametrize("channels_last", [False, True])
def test_split(constants: dict[str, Any], channels_last: bool, tmp_path: Path) -> None:
    attributes = {} if constants else {"num_outputs": 3}
    model = single("Split", INPUTS, constants, outputs=3, axis=1, **attributes)
    check_group(model, "Move", lower, INPUTS, tmp_path, tolerance=0, channels_last=channels_last)


@pytest.mark.parametrize("dtype", ["float16", "int64", "int32", "uint8", "bool"])
@pytest.mark.parametrize("name", ["transpose", "pad", "slice back"])
def test_any_dtype(name: str, dtype: str, tmp_path: Path) -> None:
    op, constants, attributes = CASES[name]
    inputs = {"x": (X > 0) if dtype == "bool" else (20 * np.abs(X)).astype(dtype)}
    model = single(op, inputs, constants, opset=19, **attributes)
    check_group(model, "Move", lower, inputs, tmp_path, tolerance=0)


def test_refusals_are_in_words(tmp_path: Path) -> None:
    model = single("Pad", INPUTS, {"p": ints(0, 0, 9, 0, 0, 0, 0, 0)}, mode="reflect")
    with pytest.raises(Refused, match="padding of 6 elements by 9 in mode reflect"):
        run_group(model, "Move", lower, INPUTS, tmp_path)
