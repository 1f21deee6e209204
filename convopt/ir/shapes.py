"""The dtype and shape of a node's outputs.

Windowed operators are computed by `convopt.ir.windows`; everything else asks the onnx package, node by node,
with the values of small constant inputs. Dims that are not bound stay None.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from convopt.errors import ModelError
from convopt.ir.shape_checks import check_shapes
from convopt.ir.values import attribute, dims_of, input_at, label
from convopt.ir.windows import window_axes

if TYPE_CHECKING:
    import onnx

# Inputs that say shapes (Reshape's shape, Slice's starts, Resize's scales) are short, weights are not.
DATA_LIMIT = 1024

_POOLS = ("MaxPool", "AveragePool", "LpPool")
_CONVS = ("Conv", "ConvTranspose")


def infer_outputs(node: ir.Node, opsets: Mapping[str, int]) -> bool:
    """Sets type and shape of the node's outputs; False where nothing is known of the operator.

    What is inferred replaces what the model declares.

    Raises:
        ModelError: the inputs' shapes contradict the operator; names the node and what it expected.
    """
    if node.domain not in ("", "ai.onnx"):
        return False
    if node.op_type in (*_CONVS, *_POOLS) and infer_windows(node):
        return True
    known = _infer_by_onnx(node, opsets)
    if known:
        check_shapes(node)
    return known


def infer_windows(node: ir.Node) -> bool:
    """The outputs of a conv or pool, as far as the input's shape is known."""
    source = node.inputs[0]
    dims = dims_of(source)
    if source is None or source.shape is None or dims is None:
        return False
    if len(dims) < 3:
        raise ModelError(f"{label(node)} has an input of shape {list(dims)}; expected at least 3 dims")
    channels = _output_channels(node, dims) if node.op_type in _CONVS else dims[1]
    spatial: list[int | None] = []
    for index, size in enumerate(dims[2:]):
        # Dims are independent: an unbound one leaves the others computable.
        axes = window_axes(node, [d if d is not None else 1 << 20 for d in dims[2:]])
        if axes is None:
            return False
        output = axes[index].output
        if size is not None and output <= 0:
            raise ModelError(
                f"{label(node)} has no output along spatial dim {index}: input extent {size}, dilated kernel"
                f" {axes[index].effective}, pads {axes[index].begin} and {axes[index].end} give {output};"
                " expected 1 or more"
            )
        spatial.append(output if size is not None else None)
    for index, value in enumerate(node.outputs):
        value.shape = ir.Shape((source.shape[0], channels, *spatial))
        dtype = source.dtype if index == 0 else ir.DataType.INT64  # MaxPool's Indices
        if dtype is not None:
            value.type = ir.TensorType(dtype)
    return True


def _output_channels(node: ir.Node, dims: Sequence[int | None]) -> int | None:
    """Checks channels, groups and bias against each other."""
    for what, index in (("weight", 1), ("bias", 2)):
        value, source = input_at(node, index), input_at(node, 0)
        if value is None or source is None or None in (value.dtype, source.dtype):
            continue
        if value.dtype != source.dtype:
            raise ModelError(
                f"{label(node)} has a {what} of {value.dtype}; expected {source.dtype}, as its input has"
            )
    weight, group = dims_of(input_at(node, 1)), int(attribute(node, "group", 1))
    if weight is None:
        return None
    if len(weight) != len(dims):
        raise ModelError(
            f"{label(node)} has a weight of shape {list(weight)} and an input of shape {list(dims)};"
            " expected the same rank"
        )
    forward = node.op_type == "Conv"
    if group < 1 or (weight[0] is not None and weight[0] % group):
        raise ModelError(
            f"{label(node)} has group {group}; expected a divisor of the weight's extent {weight[0]}"
        )
    expected = (None if weight[1] is None else weight[1] * group) if forward else weight[0]
    if dims[1] is not None and expected is not None and dims[1] != expected:
        raise ModelError(
            f"{label(node)} has {dims[1]} input channels; expected {expected},"
            f" as its weight of shape {list(weight)} with group {group} has"
        )
    channels = weight[0] if forward else (None if weight[1] is None else weight[1] * group)
    bias = dims_of(input_at(node, 2))
    if bias is not None and channels is not None and bias != (channels,) and None not in bias:
        raise ModelError(f"{label(node)} has a bias of shape {list(bias)}; expected [{channels}]")
    return channels


def _infer_by_onnx(node: ir.Node, opsets: Mapping[str, int]) -> bool:
    import onnx
    from onnx import shape_inference

    version = opsets.get("", 1)
    try:
        schema = onnx.defs.get_schema(node.op_type, version, "")
    except onnx.defs.SchemaError as error:
        raise ModelError(f"{label(node)} is no operator of opset {version}") from error
    if schema.deprecated and node.op_type == "GroupNormalization":  # of opsets 18 to 20; others were upgraded
        return _infer_as_input(node)
    types: dict[str, onnx.TypeProto] = {}
    data: dict[str, onnx.TensorProto] = {}
    values = [v for v in node.inputs if v is not None]
    values += [v for graph in _subgraphs(node) for v in _captured(graph)]
    for value in values:
        if value.name is None:
            continue
        if value.type is None:
            return False
        types[value.name] = type_proto(value)
        if value.is_initializer() and value.const_value is not None and value.const_value.size <= DATA_LIMIT:
            data[value.name] = ir.serde.serialize_tensor(_readable(node, value, value.const_value))
            data[value.name].name = value.name
    imports = [onnx.helper.make_opsetid(domain, number) for domain, number in opsets.items()]
    try:
        found = shape_inference.infer_node_outputs(
            schema, ir.serde.serialize_node(node), types, data, None, imports
        )
    except (shape_inference.InferenceError, onnx.checker.ValidationError) as error:
        raise ModelError(f"{label(node)}: {_first_reason(error)} (input shapes {_shapes(node)})") from error
    for value in node.outputs:
        proto = found.get(value.name or "")
        if proto is None:
            continue
        value.type = ir.serde.deserialize_type_proto_for_type(proto)
        shape = ir.serde.deserialize_type_proto_for_shape(proto)
        if shape is not None:
            value.shape = ir.Shape(list(shape))
        elif value.is_graph_output() and value.shape is not None:
            value.shape = ir.Shape([None] * len(value.shape))  # ONNX wants a rank; the extents may be stale
        else:
            value.shape = None
    return True


def _readable(node: ir.Node, value: ir.Value, tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    """An input as the onnx package reads it: Pad's axes may be int32, but it takes them for int64."""
    if node.op_type == "Pad" and value is input_at(node, 3) and tensor.dtype == ir.DataType.INT32:
        return ir.tensor(tensor.numpy().astype(np.int64), name=tensor.name)
    return tensor


def _infer_as_input(node: ir.Node) -> bool:
    source, output = node.inputs[0], node.outputs[0]
    if source is None or source.type is None:
        return False
    output.type, output.shape = source.type, source.shape
    return True


def type_proto(value: ir.Value) -> onnx.TypeProto:
    """The value's type, which must be known, with its shape."""
    assert value.type is not None
    proto = ir.serde.serialize_type(value.type)
    if value.shape is not None:
        ir.serde.serialize_shape_into(proto, value.shape)
    return proto


def _subgraphs(node: ir.Node) -> list[ir.Graph]:
    graphs: list[ir.Graph] = []
    for one in node.attributes.values():
        if one.type == ir.AttributeType.GRAPH:
            graphs.append(one.as_graph())
        elif one.type == ir.AttributeType.GRAPHS:
            graphs.extend(one.as_graphs())
    return graphs


def _captured(graph: ir.Graph) -> list[ir.Value]:
    """Values that the subgraph reads from around it."""
    inside = {*graph.inputs, *graph.initializers.values(), *(v for n in graph.all_nodes() for v in n.outputs)}
    inside |= {v for sub in graph.subgraphs() for v in (*sub.inputs, *sub.initializers.values())}
    reads = [v for n in graph.all_nodes() for v in n.inputs if v is not None] + list(graph.outputs)
    return [v for v in dict.fromkeys(reads) if v not in inside]


def _shapes(node: ir.Node) -> str:
    return ", ".join("-" if v is None else str(v.shape) for v in node.inputs)


def _first_reason(error: Exception) -> str:
    """The onnx package's words without the node's name that it puts in front."""
    return str(error).splitlines()[0].removeprefix("[ShapeInferenceError] ").strip()
