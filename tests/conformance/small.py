"""A small model with open dims, and its inputs, for tests of the interface rather than of operators."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import numpy_helper

from tests.conformance import support
from tests.conformance.problems import values
from tests.oracle.evaluate import evaluate

HEADER = '<ir_version: 8, opset_import: ["": 17]>'


def small(dims: str = "N, 3, H, W") -> onnx.ModelProto:
    """x -> Conv "c" 3x3 to 4 channels, Relu -> y, and the mean over space -> z."""
    model = onnx.parser.parse_model(f"""{HEADER}
        small (float[{dims}] x) => (float[N, 4, H, W] y, float[N, 4, 1, 1] z) {{
            [c] a = Conv<pads=[1, 1, 1, 1]>(x, w, b)
            [r] y = Relu(a)
            [g] z = GlobalAveragePool(y)
        }}""")
    model.graph.initializer.append(numpy_helper.from_array(values((4, 3, 3, 3), "w"), "w"))
    model.graph.initializer.append(numpy_helper.from_array(values((4,), "b"), "b"))
    return model


def one_output(body: str, signature: str = "(float[2, 3] x) => (float[2, 3] y)") -> onnx.ModelProto:
    return onnx.parser.parse_model(f"{HEADER} graph {signature} {{ {body} }}")


def image(n: int = 1, h: int = 6, w: int = 7) -> np.ndarray:
    return values((n, 3, h, w), "x")


def assert_right(results: tuple[np.ndarray, ...], x: np.ndarray) -> None:
    expected = evaluate(small(), {"x": x})
    for result, value in zip(results, expected.values(), strict=True):
        assert result.dtype == np.float32
        support.assert_within_scale(result, value, 1e-5)
