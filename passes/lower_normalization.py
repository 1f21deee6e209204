"""InstanceNormalization and LayerNormalization as reductions and arithmetic, for which there are kernels.

Before::

    y = InstanceNormalization <epsilon = 1e-05> (x, scale, shift)

After, over the spatial dims (LayerNormalization: over those from `axis` on; n elements are reduced)::

    mean = ReduceMean (x, axes)
    centred = Sub (x, mean)
    squares = ReduceSumSquare (centred, axes)
    variance = Mul (squares, 1 / n)
    deviation = Sqrt (Add (variance, epsilon))
    y = Add (Mul (centred, Div (scale, deviation)), shift)

The variance is that of the centred values: mean(x * x) - mean(x)^2 would cancel. float16 stays as it is: the
operator computes its statistics in float32. So does a LayerNormalization whose statistics are outputs too.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from convopt.ir.values import (
    attribute,
    input_at,
    is_op,
    new_constant,
    new_node,
    replace_value,
    static_shape,
)
from convopt.passes.base import Note, PassContext, PassReport


@dataclass(frozen=True)
class LowerNormalization:
    name: ClassVar[str] = "lower-normalization"

    def run(self, model: ir.Model, context: PassContext) -> PassReport:
        notes = []
        for node in list(model.graph):
            if not is_op(node, "InstanceNormalization", "LayerNormalization"):
                continue
            reason = _why_not(node)
            if reason is None:
                _lower(node)
                notes.append(Note(node.name or "", "written as reductions and arithmetic"))
            else:
                notes.append(Note(node.name or "", f"stays as it is: {reason}", refused=True))
        return PassReport(sum(not note.refused for note in notes), tuple(notes))


def _why_not(node: ir.Node) -> str | None:
    x = node.inputs[0]
    shape = static_shape(x)
    if x is None or shape is None:
        return "the shape of its input is not static"
    if x.dtype != ir.DataType.FLOAT:
        return f"its statistics of {x.dtype} are computed in float32"
    if any(output.uses() or output.is_graph_output() for output in node.outputs[1:]):
        return "its statistics are outputs"
    if 0 in (shape[a] for a in _axes(node, len(shape))):
        return "nothing to reduce"
    return None


def _axes(node: ir.Node, rank: int) -> tuple[int, ...]:
    """What is reduced."""
    if node.op_type == "InstanceNormalization":
        return tuple(range(2, rank))
    return tuple(range(int(attribute(node, "axis", -1)) % rank, rank))


def _lower(node: ir.Node) -> None:
    x, graph, stem = node.inputs[0], node.graph, node.name or node.op_type
    shape = static_shape(x)
    assert x is not None and graph is not None and shape is not None
    axes = _axes(node, len(shape))
    small = tuple(1 if d in axes else n for d, n in enumerate(shape))

    def apply(op: str, inputs: list[ir.Value], extents: tuple[int, ...]) -> ir.Value:
        keepdims = {"keepdims": 1} if op.startswith("Reduce") else {}
        return new_node(
            node, op, inputs, keepdims, stem=f"{stem}_{op.lower()}", dtype=ir.DataType.FLOAT, shape=extents
        )

    def number(value: float, role: str) -> ir.Value:
        return new_constant(graph, np.array(value, np.float32), f"{stem}_{role}")

    def parameter(index: int) -> ir.Value | None:
        """Scale or shift, shaped to broadcast: of InstanceNormalization they are per channel."""
        value = input_at(node, index)
        if value is None or node.op_type == "LayerNormalization":
            return value
        wide = (1, shape[1], *(1,) * (len(shape) - 2))
        extents = new_constant(graph, np.array(wide, np.int64), f"{stem}_per_channel")
        return apply("Reshape", [value, extents], wide)

    over = new_constant(graph, np.array(axes, np.int64), f"{stem}_axes")
    centred = apply("Sub", [x, apply("ReduceMean", [x, over], small)], shape)
    squares = apply("ReduceSumSquare", [centred, over], small)
    variance = apply("Mul", [squares, number(1 / prod(shape[a] for a in axes), "share")], small)
    epsilon = number(attribute(node, "epsilon", 1e-5), "epsilon")
    deviation = apply("Sqrt", [apply("Add", [variance, epsilon], small)], small)
    scale, shift = parameter(1), parameter(2)
    if node.op_type == "InstanceNormalization":
        assert scale is not None
        y = apply("Mul", [centred, apply("Div", [scale, deviation], small)], shape)
    else:  # its scale has the reduced dims
        y = apply("Div", [centred, deviation], shape)
        y = y if scale is None else apply("Mul", [y, scale], shape)
    if shift is not None:
        y = apply("Add", [y, shift], shape)
    replace_value(node.outputs[0], y)
    graph.remove(node, safe=True)
