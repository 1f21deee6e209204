"""Models on which other compilers and runtimes were wrong, with the values that are right.

conv_bugs/index.json lists the cases: the report each one comes from, the attributes at fault, the tolerance,
and where the expected values come from (float64 from the specification, or onnxruntime unoptimised).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tests.conformance import support
from tests.oracle.evaluate import evaluate, supported

FOLDER = Path(__file__).parent / "conv_bugs"
CASES = json.loads((FOLDER / "index.json").read_text(encoding="utf-8"))
COMPILED = {"Conv", "ConvTranspose", "MaxPool", "AveragePool"}


def load(case: dict[str, Any]) -> tuple[onnx.ModelProto, dict[str, np.ndarray], dict[str, np.ndarray]]:
    folder = FOLDER / case["id"]
    inputs = np.load(folder / "in.npz", allow_pickle=False)
    outputs = np.load(folder / "out.npz", allow_pickle=False)
    return onnx.load(folder / "model.onnx"), dict(inputs), dict(outputs)


def label(case: dict[str, Any]) -> str:
    return f"{case['id']}-{case['op']}"


def test_every_case_is_listed() -> None:
    assert sorted(case["id"] for case in CASES) == sorted(
        path.name for path in FOLDER.iterdir() if path.is_dir()
    )


@pytest.mark.parametrize("case", [c for c in CASES if supported(load(c)[0])], ids=label)
def test_the_oracle_agrees(case: dict[str, Any]) -> None:
    """Where it has a rule for each operator."""
    model, inputs, expected = load(case)
    outputs = evaluate(model, inputs)
    for name, value in expected.items():
        support.assert_close(outputs[name], value, case["rtol"], case["atol"], name)


@pytest.mark.kernels
@pytest.mark.parametrize("case", CASES, ids=label)
def test_expected_output(case: dict[str, Any]) -> None:
    model, inputs, expected = load(case)
    module = support.compiled(model, inputs)
    outputs = support.run(module, inputs)
    for name, value in expected.items():
        support.assert_close(outputs[name], value, case["rtol"], case["atol"], name)
    if case["op"] in COMPILED and all(value.dtype == np.float32 for value in inputs.values()):
        assert support.fallbacks(module) == []


@pytest.mark.opencl
@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=label)
def test_expected_output_on_a_device(case: dict[str, Any]) -> None:
    model, inputs, expected = load(case)
    module = support.compiled(model, inputs, target="opencl")
    outputs = support.run(module, inputs)
    for name, value in expected.items():
        support.assert_close(outputs[name], value, case["rtol"], case["atol"], name)
    if case["op"] in COMPILED and all(value.dtype == np.float32 for value in inputs.values()):
        assert support.fallbacks(module) == []
