"""What the conformance tests share: running through the public interface and comparing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx

import convopt


def outputs_by_name(model: onnx.ModelProto, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The model's outputs, compiled for exactly the shapes of these inputs."""
    return run(compiled(model, inputs), inputs)


def compiled(model: onnx.ModelProto, inputs: Mapping[str, np.ndarray], **options: Any) -> Any:
    """The module for the shapes of these inputs, one thread unless the options say otherwise."""
    shapes = {name: value.shape for name, value in inputs.items()}
    return convopt.optimize(model, shapes=shapes, **({"threads": 1} | options))


def run(module: Any, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return dict(module.run(dict(inputs)))


def fallbacks(module: Any) -> list[str]:
    """The nodes that onnxruntime runs, with the reason."""
    return [f"{p.node} ({p.op}): {p.detail}" for p in module.placement if p.where == "fallback"]


def assert_close(actual: np.ndarray, expected: np.ndarray, rtol: float, atol: float, what: str = "") -> None:
    """Equal shapes and values; compared in float64, infinities and NaN where they are expected."""
    assert actual.shape == expected.shape, f"{what}: shape {actual.shape}, expected {expected.shape}"
    if expected.dtype.kind in "biu":
        np.testing.assert_array_equal(actual, expected.astype(actual.dtype), err_msg=what)
        return
    actual, expected = actual.astype(np.float64), expected.astype(np.float64)
    np.testing.assert_allclose(actual, expected, rtol=rtol, atol=atol, err_msg=what)


def assert_within_scale(actual: np.ndarray, expected: np.ndarray, fraction: float, what: str = "") -> None:
    """The largest difference is at most `fraction` of the largest expected magnitude."""
    assert actual.shape == expected.shape, f"{what}: shape {actual.shape}, expected {expected.shape}"
    scale = float(np.max(np.abs(expected), initial=0.0)) or 1.0
    error = float(np.max(np.abs(actual.astype(np.float64) - expected.astype(np.float64)), initial=0.0))
    assert error <= fraction * scale, f"{what}: error {error:.3g} > {fraction:g} of {scale:.3g}"


def reference(model: onnx.ModelProto | bytes, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """onnxruntime with its optimisations off, one thread."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    data = model if isinstance(model, bytes) else model.SerializeToString()
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(inputs)), strict=True))
