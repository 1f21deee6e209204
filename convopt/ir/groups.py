"""Groups: nodes of the "convopt" domain that hold what they compute as a graph of standard operators."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import onnx_ir as ir

from convopt.ir.values import constant, new_constant, unique_name

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
        for value in captured(member):
            if value.producer() not in inside and value not in outer_inputs:
                outer_inputs.append(value)
    structural = [v for v in outer_inputs if _moves_inside(v, kind, members)]
    outer_inputs = [v for v in outer_inputs if v not in structural]
    readers = inside | {node for m in members for subgraph in _subgraphs(m) for node in subgraph}
    leaving = [
        v
        for v in produced
        if v in keep or v.is_graph_output() or any(c not in readers for c in v.consumers())
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
    for node in body_nodes:
        _rewire(node, copies)
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


def explicit_casts(group: ir.Node) -> None:
    """Writes into the body what an operand of another type than the body's means: a Cast on load or store."""
    body, graph = body_of(group), group.graph
    assert graph is not None
    for index, (outer, inner) in enumerate(zip(group.inputs, list(body.inputs), strict=True)):
        if outer is None or outer.dtype in (None, inner.dtype):
            continue
        stored = ir.Value(name=inner.name, type=outer.type, shape=inner.shape)
        inner.name = unique_name(graph, f"{inner.name}_wide")
        wide = ir.Value(name=inner.name, type=inner.type, shape=inner.shape)
        inner.replace_all_uses_with(wide, replace_graph_outputs=True)
        body.inputs[index] = stored
        cast = ir.node("Cast", [stored], {"to": int(inner.dtype or 0)}, outputs=[wide], name=wide.name)
        body.insert_before(body[0], cast)
    for index, (outer, inner) in enumerate(zip(group.outputs, list(body.outputs), strict=True)):
        if outer.dtype in (None, inner.dtype):
            continue
        stored = ir.Value(name=inner.name, type=outer.type, shape=inner.shape)
        inner.name = unique_name(graph, f"{inner.name}_wide")
        body.outputs[index] = stored
        body.append(
            ir.node("Cast", [inner], {"to": int(outer.dtype or 0)}, outputs=[stored], name=inner.name)
        )


def expand_groups(graph: ir.Graph) -> None:
    """Puts every group's body in its place: the model is standard ONNX again."""
    for group in [node for node in graph if is_group(node)]:
        _expand(graph, group)
    graph.opset_imports.pop(DOMAIN, None)


def merge_groups(graph: ir.Graph, kind: str, groups: Sequence[ir.Node]) -> ir.Node:
    """One group of `kind` that computes what these, in topological order, compute one after the other."""
    return make_group(graph, kind, [node for group in groups for node in _expand(graph, group)])


def _expand(graph: ir.Graph, group: ir.Node) -> list[ir.Node]:
    """The nodes of the group's body, in its place."""
    explicit_casts(group)
    body, nodes = body_of(group), []
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
        _rewire(clone, mapping)
        graph.insert_before(group, clone)
        nodes.append(clone)
        mapping.update(zip(node.outputs, outputs, strict=True))
    for old, inner in zip(group.outputs, body.outputs, strict=True):
        new = mapping[inner]
        assert new is not None
        old.replace_all_uses_with(new, replace_graph_outputs=True)
        new.name = old.name  # outside it may have been renamed
    graph.remove(group, safe=True)
    return nodes


_ARITHMETIC = ("Conv", "FusedConv", "Gemm", "Pointwise")


def _moves_inside(value: ir.Value, kind: str, members: Sequence[ir.Node]) -> bool:
    """Single numbers of arithmetic, all but the data of other operators, everything of an island."""
    array = constant(value)
    if array is None or kind == "Island":
        return array is not None
    if kind in _ARITHMETIC:
        return bool(array.size == 1)
    return all(
        index > 0 and member.op_type != "Concat"
        for member in members
        for index, used in enumerate(member.inputs)
        if used is value
    )


def captured(node: ir.Node) -> list[ir.Value]:
    """Values of the surrounding graph that the node's subgraphs (of If, Loop, Scan) read by name."""
    own: set[ir.Value] = set()
    reads: list[ir.Value] = []
    for graph in _subgraphs(node):
        own.update((*graph.inputs, *graph.initializers.values()))
        for inner in graph:
            own.update(inner.outputs)
            reads.extend(v for v in inner.inputs if v is not None)
        reads.extend(graph.outputs)
    return [v for v in dict.fromkeys(reads) if v not in own]


def _subgraphs(node: ir.Node) -> Iterator[ir.Graph]:
    """The graphs in the node's attributes, and those inside them."""
    for attr in node.attributes.values():
        if attr.type == ir.AttributeType.GRAPH:
            graphs = [attr.as_graph()]
        else:
            graphs = list(attr.as_graphs()) if attr.type == ir.AttributeType.GRAPHS else []
        for graph in graphs:
            yield graph
            for inner in graph:
                yield from _subgraphs(inner)


def _rewire(node: ir.Node, mapping: Mapping[ir.Value, ir.Value | None]) -> None:
    """Makes the node's subgraphs read the mapped values instead of those that they captured."""
    for graph in _subgraphs(node):
        for inner in graph:
            for index, value in enumerate(inner.inputs):
                if value is not None and value in mapping:
                    inner.replace_input_with(index, mapping[value])
        for index, value in enumerate(graph.outputs):
            new = mapping.get(value)
            if new is not None:
                graph.outputs[index] = new


def _outer_constant(graph: ir.Graph, inner: ir.Value) -> ir.Value:
    """The initializer of the graph that holds the body's constant; made where it is gone or another."""
    assert inner.name is not None and inner.const_value is not None
    existing = graph.initializers.get(inner.name)
    if existing is not None and existing.const_value is inner.const_value:
        return existing
    return new_constant(graph, inner.const_value.numpy(), inner.name)


def _copy(value: ir.Value) -> ir.Value:
    return ir.Value(name=value.name, type=value.type, shape=value.shape)
