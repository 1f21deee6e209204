"""Casts around operators whose element type nothing here computes: neither a kernel nor onnxruntime's CPU.

bfloat16 is computed in float32, whose values hold all of its; 8- and 16-bit integers are compared as int32;
unsigned exponents are float64, which holds every one that is not an overflow anyway.

Before::

    y = Conv(x, w)                        # bfloat16

After::

    x32 = Cast<to = 1>(x)
    w32 = Cast<to = 1>(w)
    y32 = Conv(x32, w32)
    y = Cast<to = 16>(y32)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from convopt.ir.values import constant, is_op, new_constant, new_node, static_shape, unique_name
from convopt.passes.base import Note, PassContext, PassReport

_SMALL = (ir.DataType.INT8, ir.DataType.UINT8, ir.DataType.INT16, ir.DataType.UINT16)
_UNSIGNED = (ir.DataType.UINT32, ir.DataType.UINT64)
# Operators that move or convert bfloat16 as it is, or have subgraphs of their own.
_ANY_TYPE = frozenset(
    {
        *("Cast", "CastLike", "Concat", "Expand", "Flatten", "Gather", "Identity", "If", "Loop", "Reshape"),
        *("Scan", "Shape", "Size", "Slice", "Split", "Squeeze", "Tile", "Transpose", "Unsqueeze"),
    }
)


@dataclass(frozen=True)
class WidenTypes:
    name: ClassVar[str] = "widen-types"

    def run(self, model: ir.Model, context: PassContext) -> PassReport:
        notes = []
        for node in list(model.graph):
            wider = _wider(node)
            if wider:
                _widen(node, wider)
                pairs = ", ".join(f"{a} as {b}" for a, b in wider.items())
                notes.append(Note(node.name or "", f"computes {pairs}"))
        return PassReport(len(notes), tuple(notes))


def _wider(node: ir.Node) -> dict[ir.DataType, ir.DataType]:
    """The types that the node computes in others, with these."""
    dtypes = {v.dtype for v in (*node.inputs, *node.outputs) if v is not None and v.dtype is not None}
    if node.domain not in ("", "ai.onnx"):
        return {}
    if is_op(node, "Min", "Max"):
        return {d: ir.DataType.INT32 for d in dtypes if d in _SMALL} | _bfloat16(dtypes)
    if is_op(node, "Pow") and node.inputs[0] is not None and node.inputs[0].dtype not in _UNSIGNED:
        return {d: ir.DataType.DOUBLE for d in dtypes if d in _UNSIGNED} | _bfloat16(dtypes)
    return {} if node.op_type in _ANY_TYPE else _bfloat16(dtypes)


def _bfloat16(dtypes: set[ir.DataType]) -> dict[ir.DataType, ir.DataType]:
    return {ir.DataType.BFLOAT16: ir.DataType.FLOAT} if ir.DataType.BFLOAT16 in dtypes else {}


def _widen(node: ir.Node, wider: dict[ir.DataType, ir.DataType]) -> None:
    graph = node.graph
    assert graph is not None
    for index, value in enumerate(node.inputs):
        if value is None or value.dtype not in wider:
            continue
        to = wider[value.dtype]
        array = constant(value)
        if array is not None:
            cast = new_constant(graph, array.astype(to.numpy()), f"{value.name}_wide")
        else:
            attributes, stem, shape = {"to": int(to)}, f"{value.name}_wide", static_shape(value)
            cast = new_node(node, "Cast", [value], attributes, stem=stem, dtype=to, shape=shape)
        node.replace_input_with(index, cast)
    for output in node.outputs:
        if output.dtype not in wider:
            continue
        narrow, to = output.dtype, wider[output.dtype]
        name = output.name
        output.name = unique_name(graph, f"{name}_wide")
        output.type = ir.TensorType(to)
        cast = ir.Value(name=name, type=ir.TensorType(narrow), shape=output.shape)
        output.replace_all_uses_with(cast, replace_graph_outputs=True)
        graph.insert_after(
            node, ir.node("Cast", [output], {"to": int(narrow)}, outputs=[cast], name=f"{name}_narrow")
        )
