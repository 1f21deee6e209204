"""Multiply BatchNormalization, and other scales and shifts per channel, into the weights of the conv before.

Before:
    c = Conv (x, w, b)
    n = BatchNormalization <epsilon = 1e-05> (c, scale, shift, mean, var)
    y = Add (n, t)                                                                # t 1xCx1x1
After:
    y = Conv (x, w2, b2)        # w2 = w * s, b2 = (b - mean) * s + shift + t, s = scale / sqrt(var + epsilon)

The same for Neg, for Mul, Sub and Div by a constant per channel or scalar, and for ConvTranspose, whose
output channels are the weight's second dim within each group. Products are taken in float64. A weight with
other readers keeps its old value: the conv gets a copy. Refused: a conv whose output has other readers or is
an output of the model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from convopt.ir.values import (
    Array,
    attribute,
    constant,
    input_at,
    is_op,
    label,
    new_constant,
    replace_value,
)
from convopt.passes.base import Note, PassContext, PassReport


@dataclass(frozen=True)
class FoldBatchNorm:
    name: ClassVar[str] = "fold-batchnorm"

    def run(self, model: ir.Model, context: PassContext) -> PassReport:
        notes: list[Note] = []
        changed = 0
        for conv in list(model.graph):
            if not is_op(conv, "Conv", "ConvTranspose"):
                continue
            affine = _gather(conv, notes)
            if affine.nodes and _apply(conv, affine, notes):
                changed += len(affine.nodes)
        return PassReport(changed, tuple(notes))


@dataclass
class _Affine:
    """y = conv * scale + shift per output channel, and the nodes that it stands for, in order."""

    scale: Array
    shift: Array
    nodes: list[ir.Node]


def _gather(conv: ir.Node, notes: list[Note]) -> _Affine:
    """Follows the chain of foldable nodes behind the conv."""
    channels = _channels(conv)
    affine = _Affine(np.ones(channels or 0), np.zeros(channels or 0), [])
    value = conv.outputs[0]
    while channels is not None:
        found = [
            (n, *s) for n, i in value.uses() if (s := scale_shift(n, i, channels, _rank(conv))) is not None
        ]
        if not found:
            break
        node, scale, shift = found[0]
        if value.is_graph_output() or len(value.uses()) > 1:
            # A scale or shift on a shared value is ordinary arithmetic; only a BatchNormalization is missed.
            if node.op_type == "BatchNormalization":
                why = "is an output of the model" if value.is_graph_output() else "has other readers"
                text = f"{label(node)} not folded into {label(conv)}: the conv's output {why}"
                notes.append(Note(node.name or "", text, refused=True))
            break
        affine.scale, affine.shift = affine.scale * scale, affine.shift * scale + shift
        affine.nodes.append(node)
        value = node.outputs[0]
    return affine


def _apply(conv: ir.Node, affine: _Affine, notes: list[Note]) -> bool:
    graph, weight, bias = conv.graph, constant(conv.inputs[1]), constant(input_at(conv, 2))
    names = ", ".join(label(n) for n in affine.nodes)
    if weight is None or (bias is None and input_at(conv, 2) is not None):
        text = f"{names} not folded into {label(conv)}: its weight or bias is no constant"
        notes.append(Note(conv.name or "", text, refused=True))
        return False
    assert isinstance(graph, ir.Graph)
    with np.errstate(all="ignore"):
        scaled = np.empty_like(weight)  # in float64, rounded once, a buffer at a time
        spread = _spread(conv, affine.scale, weight.shape)
        np.multiply(weight, spread, out=scaled, dtype=np.float64, casting="unsafe")
        moved = 0.0 if bias is None else bias.astype(np.float64)
        moved = (moved * affine.scale + affine.shift).astype(weight.dtype)
    if not (np.isfinite(scaled).all() and np.isfinite(moved).all()):
        text = f"{names} not folded into {label(conv)}: the product exceeds {weight.dtype}"
        notes.append(Note(conv.name or "", text, refused=True))
        return False
    shared = conv.inputs[1] is not None and len(conv.inputs[1].uses()) > 1
    name = affine.nodes[-1].outputs[0].name or "folded"
    if (affine.scale != 1).any():
        conv.replace_input_with(1, new_constant(graph, scaled, f"{name}_weight"))
    conv.resize_inputs(3)
    conv.replace_input_with(2, new_constant(graph, moved, f"{name}_bias"))
    replace_value(affine.nodes[-1].outputs[0], conv.outputs[0])
    for node in reversed(affine.nodes):
        graph.remove(node, safe=True)
    notes.append(
        Note(conv.name or "", f"{names} folded in" + (", on a copy of the shared weight" if shared else ""))
    )
    return True


def _rank(conv: ir.Node) -> int:
    weight = conv.inputs[1]
    return 0 if weight is None or weight.shape is None else len(weight.shape)


def _channels(conv: ir.Node) -> int | None:
    weight = conv.inputs[1]
    if weight is None or weight.shape is None or not weight.shape.is_static():
        return None
    dims = weight.shape.numpy()
    return dims[0] if conv.op_type == "Conv" else dims[1] * int(attribute(conv, "group", 1))


def _spread(conv: ir.Node, scale: Array, shape: tuple[int, ...]) -> Array:
    """The scale of each weight's output channel, in a shape that broadcasts against the weight."""
    spatial = (1,) * (len(shape) - 2)
    if conv.op_type == "Conv":
        return scale.reshape(-1, 1, *spatial)
    # Weight [C, M/group, ...]: the C/group rows of group g make the outputs g * M/group and up.
    group = int(attribute(conv, "group", 1))
    return np.repeat(scale.reshape(group, -1), shape[0] // group, axis=0).reshape(
        shape[0], shape[1], *spatial
    )


def scale_shift(node: ir.Node, index: int, channels: int, rank: int) -> tuple[Array, Array] | None:
    """(scale, shift) in float64 if the node is one per channel of its input `index`, else None."""
    ones, zeros = np.ones(channels), np.zeros(channels)
    if is_op(node, "BatchNormalization") and index == 0 and not attribute(node, "training_mode", 0):
        given = [constant(v) for v in node.inputs[1:5]]
        if len(node.outputs) > 1 or len(given) < 4:
            return None
        arrays = [a.astype(np.float64) for a in given if a is not None and a.shape == (channels,)]
        if len(arrays) < 4:
            return None
        gamma, beta, mean, variance = arrays
        with np.errstate(all="ignore"):
            scale = gamma / np.sqrt(variance + attribute(node, "epsilon", 1e-5))
        return scale, beta - mean * scale
    if is_op(node, "Neg"):
        return -ones, zeros
    if not is_op(node, "Mul", "Add", "Sub", "Div"):
        return None
    other = _per_channel(constant(node.inputs[1 - index]), channels, rank)
    if other is None:
        return None
    if node.op_type == "Mul":
        return other, zeros
    if node.op_type == "Add":
        return ones, other
    if node.op_type == "Sub":
        return (ones, -other) if index == 0 else (-ones, other)
    return (1 / other, zeros) if index == 0 and other.all() else None


def _per_channel(array: Array | None, channels: int, rank: int) -> Array | None:
    """One number per channel in float64, from a constant that broadcasts only along the other dims."""
    if array is None or array.dtype.kind != "f" or array.ndim > rank or array.size not in (1, channels):
        return None
    dims = (1,) * (rank - array.ndim) + array.shape
    if array.size > 1 and dims[1] != channels:
        return None
    return np.broadcast_to(array.astype(np.float64).reshape(-1), (channels,))
