"""Small questions to, and safe edits of, values and nodes of an onnx-ir graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

Array = np.ndarray[Any, Any]
_NAMES = "convopt.names"


def is_op(node: ir.Node | None, *op_types: str) -> bool:
    """Whether the node is a standard ONNX operator of one of these types."""
    return node is not None and node.domain in ("", "ai.onnx") and node.op_type in op_types


def attribute(node: ir.Node, name: str, default: Any = None) -> Any:
    """The attribute's value (tuples for lists), or the default where it is not given."""
    found = node.attributes.get(name)
    if found is None:
        return default
    return tuple(found.value) if isinstance(found.value, (list, tuple)) else found.value


def input_at(node: ir.Node, index: int) -> ir.Value | None:
    """The input, None where it is left out or the list is shorter."""
    return node.inputs[index] if index < len(node.inputs) else None


def constant(value: ir.Value | None) -> Array | None:
    """The array of an initializer; None for anything else. Treat it as read-only."""
    if value is None or value.const_value is None or not value.is_initializer() or value.is_graph_input():
        return None
    return value.const_value.numpy()


def scalar(value: ir.Value | None) -> float | None:
    """The number in a one-element initializer, None for anything else."""
    array = constant(value) if value is not None and element_count(value) == 1 else None
    return None if array is None else float(array.reshape(()))


def dims_of(value: ir.Value | None) -> tuple[int | None, ...] | None:
    """The shape with None for each dim that is not bound; None where the rank is unknown.

    A sequence or an optional has no shape, whatever its elements have.
    """
    if value is None or value.shape is None or not isinstance(value.type, ir.TensorType | None):
        return None
    return tuple(dim if isinstance(dim, int) else None for dim in value.shape)


def static_shape(value: ir.Value | None) -> tuple[int, ...] | None:
    """The shape where every dim is bound, else None."""
    dims = dims_of(value)
    return None if dims is None or None in dims else tuple(int(d or 0) for d in dims)


def element_count(value: ir.Value) -> int | None:
    shape = static_shape(value)
    return None if shape is None else int(np.prod(shape, dtype=np.int64))


def label(node: ir.Node) -> str:
    """How messages name a node: `Conv 'stem'`."""
    return f"{node.op_type} {node.name!r}"


def unique_name(graph: ir.Graph, stem: str) -> str:
    """`stem`, or `stem_1`, ... : a name that no value of the graph has yet.

    The names in use are collected once and kept until `forget_names`, which runs before each pass. A subgraph
    sees the names around it only behind `share_names`.
    """
    taken = graph.meta.get(_NAMES)
    if taken is None:
        taken = graph.meta[_NAMES] = _names_in(graph)
    name, number = stem, 0
    while name in taken or name in graph.initializers:
        number += 1
        name = f"{stem}_{number}"
    taken.add(name)
    return name


def forget_names(graph: ir.Graph) -> None:
    graph.meta.pop(_NAMES, None)


def share_names(graph: ir.Graph) -> None:
    """What `unique_name` gives a subgraph is new in the graphs around it too, whose values it may read."""
    taken = _names_in(graph)
    for one in (graph, *graph.subgraphs()):
        one.meta[_NAMES] = taken


def _names_in(graph: ir.Graph) -> set[str | None]:
    """Of all values of the graph and its subgraphs."""
    values = [v for one in (graph, *graph.subgraphs()) for v in (*one.inputs, *one.initializers.values())]
    return {v.name for v in (*values, *(o for node in graph.all_nodes() for o in node.outputs))}


def new_constant(graph: ir.Graph, array: Array, stem: str) -> ir.Value:
    """A new initializer of the graph that holds the array."""
    name = unique_name(graph, stem)
    tensor = ir.Tensor(np.ascontiguousarray(array).reshape(array.shape), name=name)
    value = ir.Value(
        name=name, shape=ir.Shape(array.shape), type=ir.TensorType(tensor.dtype), const_value=tensor
    )
    graph.register_initializer(value)
    return value


def new_node(
    before: ir.Node,
    op_type: str,
    inputs: Sequence[ir.Value | None],
    attributes: dict[str, Any] | None = None,
    *,
    stem: str,
    dtype: ir.DataType | None = None,
    shape: Sequence[int | None] | None = None,
) -> ir.Value:
    """Inserts a one-output standard node before `before`; returns its output, named after `stem`."""
    graph = before.graph
    assert graph is not None
    name = unique_name(graph, stem)
    output = ir.Value(
        name=name,
        type=None if dtype is None else ir.TensorType(dtype),
        shape=None if shape is None else ir.Shape(shape),
    )
    node = ir.node(op_type, inputs, attributes or {}, outputs=[output], name=name)
    graph.insert_before(before, node)
    return output


def replace_value(old: ir.Value, new: ir.Value) -> None:
    """Every use of `old` becomes one of `new`; an output of the graph keeps its name, dtype and place.

    Where `new` can't take over the output's name (it is an input, a constant or an output itself) an
    Identity stands between.
    """
    if not old.is_graph_output():
        old.replace_all_uses_with(new)
        return
    producer, graph = old.producer(), old.graph
    assert producer is not None and graph is not None
    if new.is_graph_output() or new.producer() is None or new.graph is not graph:
        output = ir.Value(name=old.name, type=old.type, shape=old.shape)
        # Any use of the old value goes straight to the new one, the Identity serves the output alone.
        for index, value in enumerate(graph.outputs):
            if value is old:
                graph.outputs[index] = output
        old.replace_all_uses_with(new)
        graph.insert_after(producer, ir.node("Identity", [new], outputs=[output], name=output.name))
        old.name = None
        return
    name, old.name = old.name, None
    old.replace_all_uses_with(new, replace_graph_outputs=True)
    new.name = name


def remove_if_unused(node: ir.Node) -> bool:
    """Removes the node if nothing reads its outputs."""
    graph = node.graph
    if graph is None or any(v.uses() or v.is_graph_output() for v in node.outputs):
        return False
    graph.remove(node, safe=True)
    return True


def set_ints(node: ir.Node, name: str, values: Sequence[int]) -> None:
    node.attributes[name] = ir.AttrInt64s(name, [int(v) for v in values])


def set_int(node: ir.Node, name: str, value: int) -> None:
    node.attributes[name] = ir.AttrInt64(name, int(value))
