"""Remove nodes that hand their input on: Identity, Dropout, and others whose shapes and constants say so.

Before:
    a = Dropout (x)  b = Cast <to = 1> (a)  c = Reshape (b, s)        # x float 1x8x4, s = 1,8,4
    d = Reshape (c, t)  y = Reshape (d, u)
After:
    y = Reshape (x, u)

Reshape, Flatten, Squeeze and Unsqueeze in a row become one Reshape to the last shape, where it is bound.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from convopt.ir.values import (
    attribute,
    constant,
    input_at,
    is_op,
    label,
    new_constant,
    remove_if_unused,
    replace_value,
    static_shape,
)
from convopt.passes.base import Note, PassContext, PassReport

_VIEWS = ("Reshape", "Flatten", "Squeeze", "Unsqueeze")


@dataclass(frozen=True)
class RemoveNoOps:
    name: ClassVar[str] = "remove-no-ops"

    def run(self, model: ir.Model, context: PassContext) -> PassReport:
        notes: list[Note] = []
        for node in list(model.graph):
            notes += _merge_views(node)
            reason = _does_nothing(node)
            source, output = input_at(node, 0), node.outputs[0] if node.outputs else None
            if not reason or source is None or output is None:
                continue
            if output.is_graph_output() and _must_keep(source):
                continue  # an input, constant or other output can't take the output's name
            replace_value(output, source)
            remove_if_unused(node)
            notes.append(Note(node.name or "", f"{label(node)} removed: {reason}"))
        return PassReport(len(notes), tuple(notes))


def _must_keep(source: ir.Value) -> bool:
    return source.producer() is None or source.is_graph_output()


def _does_nothing(node: ir.Node) -> str:
    """Why the first output is the first input, or nothing where it isn't."""
    if is_op(node, "Identity"):
        return "identity"
    if is_op(node, "Dropout"):
        training = constant(input_at(node, 2))
        mask_used = len(node.outputs) > 1 and (node.outputs[1].uses() or node.outputs[1].is_graph_output())
        off = input_at(node, 2) is None or (training is not None and not training.any())
        return "inference" if off and not mask_used else ""
    source, output = input_at(node, 0), node.outputs[0] if node.outputs else None
    if source is None or output is None:
        return ""
    if is_op(node, "Cast"):
        return "same dtype" if source.dtype is not None and source.dtype == attribute(node, "to") else ""
    if is_op(node, "Concat", "Sum", "Mean", "Max", "Min"):
        return "one input" if len(node.inputs) == 1 else ""
    if is_op(node, "Pad"):
        pads = constant(input_at(node, 1))
        return "pads nothing" if pads is not None and not pads.any() else ""
    shape = static_shape(source)
    if shape is None or shape != static_shape(output):
        return ""
    if is_op(node, *_VIEWS, "Expand"):
        return "same shape"
    if is_op(node, "Slice"):
        steps = constant(input_at(node, 4))
        forward = input_at(node, 4) is None or (steps is not None and bool((steps > 0).all()))
        return "takes everything" if forward else ""
    if is_op(node, "Split"):
        return "one part" if len(node.outputs) == 1 else ""
    if is_op(node, "Tile"):
        return "repeats once"
    return ""


def _merge_views(node: ir.Node) -> list[Note]:
    """Points a view of a view at the first one's input."""
    graph, source = node.graph, input_at(node, 0)
    if not is_op(node, *_VIEWS) or source is None or not isinstance(graph, ir.Graph):
        return []
    first, shape = source.producer(), static_shape(node.outputs[0])
    if first is None or not is_op(first, *_VIEWS) or shape is None or 0 in shape:
        return []  # a 0 in Reshape's shape copies an extent, so empty tensors stay as they are
    target = new_constant(graph, np.array(shape, np.int64), f"{node.outputs[0].name}_shape")
    node.op_type = "Reshape"
    node.attributes.clear()
    node.resize_inputs(2)
    node.replace_input_with(0, first.inputs[0])
    node.replace_input_with(1, target)
    text = f"merged with {label(first)} into a Reshape to {list(shape)}"
    remove_if_unused(first)
    return [Note(node.name or "", text)]
