"""An ONNX model: optimized, checked against onnxruntime, called, and what became of each node.

python examples/onnx_model.py
"""

from __future__ import annotations

import numpy as np
import onnx.parser
from onnx import numpy_helper

import convopt

MODEL = """<ir_version: 10, opset_import: ["": 20]>
edges (float[N, 3, 64, 64] image) => (float[N, 8, 32, 32] features) {
  c = Conv <pads = [1, 1, 1, 1], strides = [2, 2]> (image, weight)
  features = Relu (c)
}"""


def main() -> None:
    model = onnx.parser.parse_model(MODEL)
    random = np.random.default_rng(0)
    weight = random.standard_normal((8, 3, 3, 3)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(weight, "weight"))

    module = convopt.optimize(model, shapes={"image": (1, 3, 64, 64)}, verify="raise")
    features = module(random.standard_normal((1, 3, 64, 64)).astype(np.float32))
    print(f"features {features.shape}, {(features > 0).mean():.0%} of them positive")
    print(module.summary())


if __name__ == "__main__":
    main()
