"""One walk in topological order: infer each node's shapes, then replace it by its value where that is known.

Before:
    g (float[1,8,4,4] x) => (float[1,128] y) <int64[1] axes = {0}, int64[1] rest = {-1}, int64 at = {0}> {
        s = Shape (x)  n = Gather (s, at)  m = Unsqueeze (n, axes)  t = Concat <axis = 0> (m, rest)
        y = Reshape (x, t)
    }
After:
    g (float[1,8,4,4] x) => (float[1,128] y) <int64[2] t = {1, -1}> { y = Reshape (x, t) }

With every input bound, all shape arithmetic of an ordinary network goes and every shape is static; what is
not bound keeps its nodes. An If whose condition is known becomes the nodes of the branch taken: exporters
write one around what depends on an extent (torch's squeeze), and the other branch need not even be valid.
CastLike, of which the bodies of functions are full, becomes Cast. Declared shapes of intermediate values and
outputs are replaced by the inferred ones. A result that is larger than both its inputs and the cap is not
folded: an Expand can fill the memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from convopt.errors import ModelError
from convopt.ir.evaluate import NOT_PURE, NotComputable, evaluate
from convopt.ir.shapes import infer_outputs
from convopt.ir.values import (
    Array,
    attribute,
    constant,
    is_op,
    label,
    new_constant,
    replace_value,
    static_shape,
    unique_name,
)
from convopt.passes.base import Note, PassContext, PassReport


@dataclass(frozen=True)
class FoldConstants:
    """cap: bytes that a folded value may have, even where its inputs are smaller."""

    name: ClassVar[str] = "fold-constants"
    cap: int = 4 << 20

    def run(self, model: ir.Model, context: PassContext) -> PassReport:
        graph, opsets = model.graph, model.opset_imports
        folded, notes = 0, []
        for node in graph:  # also over what is put behind the node at hand
            if is_op(node, "If") and (condition := constant(node.inputs[0])) is not None:
                branch = "then_branch" if condition.reshape(-1)[0] else "else_branch"
                if branch not in node.attributes:
                    raise ModelError(f"{label(node)} has no {branch}; expected one")
                notes.append(Note(node.name or "", f"{branch} taken"))
                _take_branch(node, node.attributes[branch].as_graph())
                folded += 1
                continue
            if is_op(node, "CastLike") and (like := node.inputs[1]) is not None and like.dtype is not None:
                _spell_type(node, like.dtype)
                notes.append(Note(node.name or "", f"CastLike is Cast to {like.dtype}"))
                folded += 1
            declared = [v.shape for v in node.outputs]
            known = infer_outputs(node, opsets)
            for output, shape in zip(node.outputs, declared, strict=True):
                _keep_names(output, shape)
            if not known:
                notes.append(
                    Note(node.name or "", f"{node.domain}.{node.op_type}: shapes not inferred", refused=True)
                )
            values = self._values(node, opsets, notes)
            if values is None:
                continue
            if is_op(node, "Identity") and node.outputs[0].is_graph_output():
                continue  # a constant output has this form already
            for output, array in zip(node.outputs, values, strict=True):
                if output.uses() or output.is_graph_output():
                    stem = output.name or node.op_type
                    replace_value(output, new_constant(graph, array, f"{stem}_value"))
            graph.remove(node, safe=True)
            folded += 1
        return PassReport(folded, tuple(notes))

    def _values(self, node: ir.Node, opsets: dict[str, int], notes: list[Note]) -> list[Array] | None:
        """The outputs' arrays; None where they depend on the model's inputs or are not to be folded."""
        if node.domain not in ("", "ai.onnx") or node.op_type in NOT_PURE:
            return None
        if is_op(node, "Shape", "Size"):
            return _shape_of(node)
        if is_op(node, "Constant") or any(a.type in _GRAPHS for a in node.attributes.values()):
            return None
        if any(v is not None and (not v.is_initializer() or v.is_graph_input()) for v in node.inputs):
            return None
        nbytes = sum(_nbytes(v) or 0 for v in node.outputs)
        if nbytes > max(self.cap, sum(_nbytes(v) or 0 for v in node.inputs if v is not None)):
            notes.append(Note(node.name or "", f"{label(node)} not folded: {nbytes} bytes", refused=True))
            return None
        if any(v.type is not None and not isinstance(v.type, ir.TensorType) for v in node.outputs):
            return None  # sequences are no constants
        if any(v.dtype == ir.DataType.STRING for v in node.outputs):
            return None  # nothing that is compiled depends on one
        try:
            return evaluate(node, [constant(v) for v in node.inputs], opsets)
        except NotComputable as error:
            notes.append(Note(node.name or "", f"{label(node)} not folded: {error}", refused=True))
            return None


def _spell_type(node: ir.Node, dtype: ir.DataType) -> None:
    """CastLike as Cast: whatever it is like, only its type counts."""
    node.op_type = "Cast"
    node.resize_inputs(1)
    node.attributes["to"] = ir.AttrInt64("to", int(dtype))


def _take_branch(node: ir.Node, branch: ir.Graph) -> None:
    """Puts the branch's nodes and constants behind the If, and its outputs in the place of the If's."""
    graph = node.graph
    assert isinstance(graph, ir.Graph)
    outputs, nodes, constants = list(branch.outputs), list(branch), list(branch.initializers.values())
    branch.outputs.clear()
    branch.initializers.clear()
    branch.remove(nodes)
    for value in (*constants, *(v for n in nodes for v in n.outputs)):
        value.name = unique_name(graph, value.name or "")  # another branch may have the name too
    for value in constants:
        graph.register_initializer(value)
    graph.insert_after(node, nodes)
    for old, new in zip(node.outputs, outputs, strict=True):
        replace_value(old, new)
    graph.remove(node, safe=True)


def _keep_names(value: ir.Value, declared: ir.Shape | None) -> None:
    """An unbound dim of an output keeps the name that the model gives it."""
    if value.is_graph_output() and value.shape is not None and declared is not None:
        if len(declared) != len(value.shape):
            return
        pairs = zip(value.shape, declared, strict=True)
        value.shape = ir.Shape(
            [
                d
                if isinstance(s, ir.SymbolicDim) and s.value is None and isinstance(d, ir.SymbolicDim)
                else s
                for s, d in pairs
            ]
        )


_GRAPHS = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)


def _nbytes(value: ir.Value) -> int | None:
    shape = static_shape(value)
    if shape is None or value.dtype is None or value.dtype == ir.DataType.STRING:
        return None
    return prod(shape) * value.dtype.bitwidth // 8


def _shape_of(node: ir.Node) -> list[Array] | None:
    """Shape and Size of a value whose dims are bound, whatever its data; Shape-15 may take a part of them."""
    source = node.inputs[0]
    if source is None or source.shape is None:
        return None
    if is_op(node, "Size"):
        whole = static_shape(source)
        return None if whole is None else [np.array(prod(whole), np.int64)]
    start, end = attribute(node, "start", 0), attribute(node, "end")
    rank = len(source.shape)
    start, end = (max(0, min(rank, i + rank if i < 0 else i)) for i in (start, rank if end is None else end))
    dims = list(source.shape)[start:end]
    return [np.array(dims, np.int64)] if all(isinstance(d, int) for d in dims) else None
