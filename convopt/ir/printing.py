"""The ONNX text form of a model, for people and golden files."""

from __future__ import annotations

import onnx_ir as ir

ELIDED = "elided"


def model_text(model: ir.Model, limit: int = 16) -> str:
    """What `onnx.printer` writes, with constants of more than `limit` elements left out.

    A left-out constant reads `float[64,3,7,7] w = ["location": "elided"]`; with a limit beyond all sizes the
    text is complete and `onnx.parser` reads it back.
    """
    from onnx import TensorProto, printer

    proto = ir.to_proto(model)
    graphs = [proto.graph]
    for graph in graphs:  # grows while it is walked
        constants = {tensor.name for tensor in graph.initializer}
        described = [v for v in graph.value_info if v.name not in constants]
        del graph.value_info[:]
        graph.value_info.extend(described)
        for tensor in graph.initializer:
            count = 1
            for dim in tensor.dims:
                count *= dim
            if count <= limit:
                continue
            for field in ("raw_data", "float_data", "int32_data", "int64_data", "uint64_data", "double_data"):
                tensor.ClearField(field)
            tensor.ClearField("external_data")
            tensor.data_location = TensorProto.EXTERNAL
            tensor.external_data.add(key="location", value=ELIDED)
        for node in graph.node:
            for attribute in node.attribute:
                graphs += [attribute.g] if attribute.HasField("g") else []
                graphs += attribute.graphs
    text: str = printer.to_text(proto)
    return text
