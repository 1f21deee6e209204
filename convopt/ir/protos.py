"""A model as one protobuf that needs no file beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir

if TYPE_CHECKING:
    import onnx


def whole_proto(model: ir.Model) -> onnx.ModelProto:
    """With every weight inside, also those that are mapped from another file; the model stays as it is.

    onnxruntime looks for a weight's file beside the model, which a model in memory has no place for.
    """
    graphs = tuple(model.graphs())
    values = [
        v for g in graphs for v in g.initializers.values() if isinstance(v.const_value, ir.ExternalTensor)
    ]
    before = [v.const_value for v in values]
    try:
        for value in values:
            assert value.const_value is not None
            value.const_value = ir.tensor(value.const_value.numpy(), name=value.name)
        return ir.to_proto(model)
    finally:
        for value, tensor in zip(values, before, strict=True):
            value.const_value = tensor
