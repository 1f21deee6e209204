"""Small models for the command line's tests."""

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def conv_relu(path: Path, shape: tuple[int | str, ...] = (1, 3, 8, 8)) -> Path:
    """x -> Pad -> Conv -> BatchNormalization -> Relu -> y: something for every pass, 4 channels out."""
    rng = np.random.default_rng(3)
    scale, bias, mean = (rng.standard_normal(4).astype(np.float32) for _ in range(3))
    constants = {
        "pads": np.array([0, 0, 1, 1, 0, 0, 1, 1], np.int64),
        "weight": rng.standard_normal((4, 3, 3, 3)).astype(np.float32),
        "scale": scale,
        "bias": bias,
        "mean": mean,
        "variance": rng.uniform(0.5, 2.0, 4).astype(np.float32),
    }
    nodes = [
        helper.make_node("Pad", ["x", "pads"], ["padded"], name="pad"),
        helper.make_node("Conv", ["padded", "weight"], ["c"], name="conv"),
        helper.make_node(
            "BatchNormalization", ["c", "scale", "bias", "mean", "variance"], ["n"], name="norm"
        ),
        helper.make_node("Relu", ["n"], ["y"], name="relu"),
    ]
    graph = helper.make_graph(
        nodes,
        "conv_relu",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (shape[0], 4, *shape[2:]))],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, path)
    return path
