"""A lowered model as an ONNX file: each kernel is a call of a model-local function that defines it."""

from __future__ import annotations

import onnx_ir as ir

from convopt.ir.groups import DOMAIN, body_of, explicit_casts, is_group

FUNCTIONS_SINCE = 8  # the IR version that knows model-local functions


def groups_to_functions(model: ir.Model) -> None:
    """Turns every group into a call of a function `convopt::<Kind>_<N>` with the group's body, in place.

    A runtime that has no such kernels inlines the functions and computes the same.
    """
    graph = model.graph
    for index, group in enumerate([node for node in graph if is_group(node)]):
        explicit_casts(group)
        body = body_of(group).clone()
        _initializers_to_constants(body)
        body.opset_imports.pop(DOMAIN, None)
        function = ir.Function(DOMAIN, f"{group.op_type}_{index}", graph=body, attributes=())
        model.functions[function.identifier()] = function
        call = ir.Node(DOMAIN, function.name, group.inputs, num_outputs=len(group.outputs), name=group.name)
        graph.insert_before(group, call)
        for old, new in zip(group.outputs, call.outputs, strict=True):
            new.name, new.type, new.shape = old.name, old.type, old.shape
            old.replace_all_uses_with(new, replace_graph_outputs=True)
        graph.remove(group, safe=True)
        graph.opset_imports[DOMAIN] = 1
    model.ir_version = max(model.ir_version, FUNCTIONS_SINCE)


def _initializers_to_constants(body: ir.Graph) -> None:
    """Functions have no initializers."""
    for value in list(body.initializers.values()):
        assert value.const_value is not None
        output = ir.Value(name=value.name, type=value.type, shape=value.shape)
        node = ir.Node("", "Constant", [], [ir.AttrTensor("value", value.const_value)], outputs=[output])
        value.replace_all_uses_with(output)
        del body.initializers[str(value.name)]
        if len(body):
            body.insert_before(body.node(0), node)
        else:
            body.append(node)
