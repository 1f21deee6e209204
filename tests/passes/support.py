"""Models from ONNX text, and the comparison by data that every pass test makes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort

Arrays = dict[str, np.ndarray[Any, Any]]


def parse(text: str, opset: int = 18, seed: int = 0) -> ir.Model:
    """The model of a graph in ONNX text. Inputs whose names don't begin with x become random constants.

    Constants are positive, so that they may be variances and divisors too.
    """
    local = ', "local" : 1' if "local." in text else ""
    proto = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}{local}]>\n{text}')
    generator = np.random.default_rng(seed)
    for value in [v for v in proto.graph.input if not v.name.startswith("x")]:
        dims = [d.dim_value for d in value.type.tensor_type.shape.dim]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        array = np.round(generator.uniform(0.5, 1.5, dims), 2).astype(dtype)
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, value.name))
        proto.graph.input.remove(value)
    model = ir.from_proto(proto)
    for index, node in enumerate(model.graph.all_nodes()):
        node.name = node.name or (node.outputs[0].name if node.outputs else f"n{index}")
    return model


def draw(model: onnx.ModelProto, shapes: Mapping[str, Sequence[int]], seed: int = 1) -> Arrays:
    generator = np.random.default_rng(seed)
    feeds: Arrays = {}
    for value in model.graph.input:
        kind = value.type.tensor_type
        shape = shapes.get(value.name) or [d.dim_value for d in kind.shape.dim]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)
        array = generator.standard_normal(shape) if dtype.kind == "f" else generator.integers(0, 2, shape)
        feeds[value.name] = array.astype(dtype)
    return feeds


def run_unoptimised(model: onnx.ModelProto, feeds: Arrays) -> Arrays:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = [o.name for o in session.get_outputs()]
    return dict(zip(names, session.run(names, feeds), strict=True))


def assert_same(
    before: onnx.ModelProto, after: onnx.ModelProto, shapes: Mapping[str, Sequence[int]] | None = None
) -> None:
    """Equal outputs on random inputs, to 1e-5 of the output's scale; `shapes` for unbound inputs."""
    onnx.checker.check_model(after, full_check=True)
    feeds = draw(before, shapes or {})
    expected, found = run_unoptimised(before, feeds), run_unoptimised(after, feeds)
    assert expected.keys() == found.keys()
    for name, array in expected.items():
        assert found[name].shape == array.shape, name
        assert found[name].dtype == array.dtype, name
        if array.dtype.kind == "f":
            scale = max(float(np.abs(array).max(initial=0)), 1e-6)
            np.testing.assert_allclose(found[name] / scale, array / scale, rtol=0, atol=1e-5, err_msg=name)
        else:
            np.testing.assert_array_equal(found[name], array, err_msg=name)


def declared_shapes(model: onnx.ModelProto) -> dict[str, list[int]]:
    """Shape by output name, 0 for what is not bound."""
    return {o.name: [d.dim_value for d in o.type.tensor_type.shape.dim] for o in model.graph.output}
