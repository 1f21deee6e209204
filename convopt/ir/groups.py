"""Groups: nodes of the "convopt" domain that hold what they compute as a graph of standard operators."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from convopt.ir.values import constant, new_constant

DOMAIN = "convopt"
REFUSED = "convopt.refused"  # metadata of a fallback node: why it is not compiled


def body_of(group: ir.Node) -> ir.Graph:
    """The group's meaning; its inputs and outputs correspond to the node's, in order."""
    return group.attributes["body"].as_graph()


def is_group(node: ir.Node | None) -> bool:
    return node is not None and node.domain == DOMAIN


def make_group(
    graph: ir.Graph, kind: str, members: Sequence[ir.Node], keep: Sequence[ir.Value] = ()
) -> ir.Node:
    """Replaces `members` (in topological order, all of `graph`) by one group node of op_type `kind`.

    The group's outputs are the values that are read outside, are outputs of the model or are in `keep`; they
    keep their names, and the node takes the first member's. Constants that say what an operator does (shapes,
    axes, bounds: integers and single numbers) move into the body; tensors of weights stay operands.
    """
    inside = set(members)
    produced = [v for m in members for v in m.outputs]
    outer_inputs: list[ir.Value] = []
    for member in members:
        for value in member.inputs:
            if value is not None and value.producer() not in inside and value not in outer_inputs:
                outer_inputs.append(value)
        for value in _captured(member):
            if value.producer() not in inside and value not in outer_inputs:
                outer_inputs.append(value)
    structural = [v for v in outer_inputs if _moves_inside(v, kind)]
    outer_inputs = [v for v in outer_inputs if v not in structural]
    leaving = [
        v for v in produced if v in keep or v.is_graph_output() or any(c not in inside for c in v.consumers())
    ]
    copies = {v: _copy(v) for v in (*structural, *outer_inputs, *produced)}
    for value in structural:
        copies[value].const_value = value.const_value
    body_nodes = [
        ir.Node(
            m.domain,
            m.op_type,
            [None if v is None else copies[v] for v in m.inputs],
            list(m.attributes.values()),
            outputs=[copies[v] for v in m.outputs],
            name=m.name,
            metadata_props=dict(m.metadata_props),
        )
        for m in members
    ]
    body = ir.Graph(
        [copies[v] for v in outer_inputs],
        [copies[v] for v in leaving],
        nodes=body_nodes,
        initializers=[copies[v] for v in structural],
        opset_imports=dict(graph.opset_imports),
        name=members[0].name,
    )
    outputs = [_copy(v) for v in leaving]
    group = ir.Node(
        DOMAIN, kind, outer_inputs, [ir.AttrGraph("body", body)], outputs=outputs, name=members[0].name
    )
    graph.insert_before(members[-1], group)
    for old, new in zip(leaving, outputs, strict=True):
        old.replace_all_uses_with(new, replace_graph_outputs=True)
    graph.remove(members, safe=True)
    graph.opset_imports.setdefault(DOMAIN, 1)
    return group


def expand_groups(graph: ir.Graph) -> None:
    """Puts every group's body in its place: the model is standard ONNX again."""
    for group in [node for node in graph if is_group(node)]:
        body = body_of(group)
        mapping: dict[ir.Value, ir.Value | None] = dict(zip(body.inputs, group.inputs, strict=True))
        for inner in body.initializers.values():
            mapping[inner] = _outer_constant(graph, inner)
        for node in body:
            outputs = [_copy(v) for v in node.outputs]
            clone = ir.Node(
                node.domain,
                node.op_type,
                [None if v is None else mapping[v] for v in node.inputs],
                list(node.attributes.values()),
                outputs=outputs,
                name=node.name,
            )
            graph.insert_before(group, clone)
            mapping.update(zip(node.outputs, outputs, strict=True))
        for old, inner in zip(group.outputs, body.outputs, strict=True):
            new = mapping[inner]
            assert new is not None
            old.replace_all_uses_with(new, replace_graph_outputs=True)
        graph.remove(group, safe=True)
    graph.opset_imports.pop(DOMAIN, None)


def _moves_inside(value: ir.Value, kind: str) -> bool:
    array = constant(value)
    if array is None:
        return False
    return kind in ("Island", "Resize") or array.size == 1 or array.dtype.kind in "iub"


def _captured(node: ir.Node) -> list[ir.Value]:
    """Values of the surrounding graph that the node's subgraphs (of If, Loop, Scan) read by name."""
    found: list[ir.Value] = []
    for attr in node.attributes.values():
        graphs = (
            [attr.as_graph()]
            if attr.type == ir.AttributeType.GRAPH
            else attr.as_graphs()
            if attr.type == ir.AttributeType.GRAPHS
            else []
        )
        for graph in graphs:
            own = {*graph.inputs, *graph.initializers.values()}
            for inner in graph.all_nodes():
                own.update(inner.outputs)
                for sub in inner.attributes.values():
                    if sub.type == ir.AttributeType.GRAPH:
                        own.update((*sub.as_graph().inputs, *sub.as_graph().initializers.values()))
            reads = [v for inner in graph.all_nodes() for v in inner.inputs if v is not None]
            found.extend(v for v in (*reads, *graph.outputs) if v not in own and v not in found)
    return found


def _outer_constant(graph: ir.Graph, inner: ir.Value) -> ir.Value:
    """The initializer of the graph that holds the body's constant; made where it is gone or another."""
    assert inner.name is not None and inner.const_value is not None
    existing = graph.initializers.get(inner.name)
    if existing is not None and existing.const_value is inner.const_value:
        return existing
    return new_constant(graph, inner.const_value.numpy(), inner.name)


def _copy(value: ir.Value) -> ir.Value:
    return ir.Value(name=value.name, type=value.type, shape=value.shape)
