"""What must be compiled in the real models, and the models with their shapes left open."""

from __future__ import annotations

from collections import Counter

import onnx

# What a kernel has to be made for, by kind; passes may turn one operator of a kind into another.
KINDS = {
    "Conv": "convolution",
    "ConvTranspose": "convolution",
    "Gemm": "matrix product",
    "MatMul": "matrix product",
    "MaxPool": "pool",
    "AveragePool": "pool",
    "GlobalAveragePool": "pool",
    "GlobalMaxPool": "pool",
}


def kernels_required(model: onnx.ModelProto) -> Counter[str]:
    """How many nodes of each kind the model has."""
    return Counter(KINDS[node.op_type] for node in model.graph.node if node.op_type in KINDS)


def unbound(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with no declared extents, so that onnxruntime takes inputs of another shape than declared."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    del copy.graph.value_info[:]
    for value in (*copy.graph.input, *copy.graph.output):
        for i, dim in enumerate(value.type.tensor_type.shape.dim):
            dim.dim_param = f"{value.name}_{i}"
    return copy
