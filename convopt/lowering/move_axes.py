"""What the data-movement operators say about axes, read from their nodes."""

from __future__ import annotations

import onnx_ir as ir

from convopt.ir.groups import body_of
from convopt.ir.slices import slice_range
from convopt.ir.values import attribute, constant, input_at, static_shape


def rank_of(value: ir.Value | None) -> int:
    return len(static_shape(value) or ())


def concat_axis(group: ir.Node) -> int:
    node = next(iter(body_of(group)))
    return int(attribute(node, "axis")) % rank_of(node.outputs[0])


def transpose_perm(node: ir.Node) -> tuple[int, ...]:
    perm = attribute(node, "perm")
    return tuple(perm) if perm else tuple(reversed(range(rank_of(node.inputs[0]))))


def split_sizes(node: ir.Node) -> tuple[int, ...]:
    axis = int(attribute(node, "axis", 0)) % rank_of(node.inputs[0])
    return tuple((static_shape(v) or ())[axis] for v in node.outputs)


def slices_of(node: ir.Node) -> list[tuple[int, int, int, int]] | None:
    """(axis, start, step, extent) of every sliced axis, clamped as ONNX says; None if not constant."""
    shape = static_shape(node.inputs[0])
    starts, ends = constant(input_at(node, 1)), constant(input_at(node, 2))
    if shape is None or starts is None or ends is None:
        return None
    axes, steps = input_at(node, 3), input_at(node, 4)
    axis_list = range(len(starts)) if axes is None else constant(axes)
    step_list = [1] * len(starts) if steps is None else constant(steps)
    if axis_list is None or step_list is None:
        return None
    result = []
    for axis, start, end, step in zip(axis_list, starts, ends, step_list, strict=True):
        axis, step = int(axis) % len(shape), int(step)
        taken = slice_range(int(start), int(end), step, shape[axis])
        result.append((axis, taken.start, step, len(taken)))
    return result
