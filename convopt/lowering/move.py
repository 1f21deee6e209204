"""Move groups: operators that only place elements. Each is a few strided copies.

A copy's source is a view of an input with strides of any sign, or 0 to repeat; its destination is a view of
the output. What the storage plan could make a view or write in place never comes here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from convopt.ir.groups import body_of
from convopt.ir.values import Array, attribute, constant, input_at
from convopt.lowering.base import Constant, KernelCall, LoweringContext, Operand, Refused
from convopt.lowering.move_axes import concat_axis, slices_of, split_sizes, transpose_perm
from convopt.lowering.pointwise import broadcast_to
from convopt.lowering.simple import simple_call
from convopt.schedules.base import TensorView
from convopt.schedules.pointwise_problem import copy_problem


@dataclass(frozen=True)
class Region:
    """Part of an operand: a view and the offset of its element 0, in elements."""

    operand: Operand
    view: TensorView
    offset: int = 0

    def part(self, axis: int, start: int, extent: int, step: int = 1) -> Region:
        """`extent` elements of `axis` from `start` on, `step` apart (0 repeats one)."""
        shape, strides = list(self.view.shape), list(self.view.strides)
        offset = self.offset + start * strides[axis]
        shape[axis], strides[axis] = extent, strides[axis] * step
        return self.viewed(shape, strides, offset)

    def viewed(self, shape: Sequence[int], strides: Sequence[int], offset: int | None = None) -> Region:
        view = TensorView(tuple(shape), tuple(strides), self.view.dtype)
        return Region(self.operand, view, self.offset if offset is None else offset)


Copies = list[tuple[Region, Region]]  # source, destination


def lower(group: ir.Node, context: LoweringContext) -> list[KernelCall]:
    node = next(iter(body_of(group)))
    if node.op_type not in _COPIES:
        raise Refused(f"no copies for {node.op_type}")
    label = f"{node.op_type} {group.name}"
    return [
        copy_region(source, destination, context, label)
        for source, destination in _COPIES[node.op_type](group, node, context)
        if destination.view.size
    ]


def copy_region(source: Region, destination: Region, context: LoweringContext, label: str) -> KernelCall:
    problem = copy_problem(source.view, destination.view)
    operands = (source.operand, destination.operand)
    return simple_call(problem, operands, context, label, (source.offset, destination.offset))


def _region(value: ir.Value | None, context: LoweringContext) -> Region:
    if value is None:
        raise Refused("an input is left out")
    return Region(value, context.views[value])


def _ends(group: ir.Node, context: LoweringContext) -> tuple[Region, Region]:
    return _region(group.inputs[0], context), _region(group.outputs[0], context)


def _concat(group: ir.Node, node: ir.Node, context: LoweringContext) -> Copies:
    outer = dict(zip(body_of(group).inputs, group.inputs, strict=True))
    y, axis, start = _region(group.outputs[0], context), concat_axis(group), 0
    copies: Copies = []
    for inner in node.inputs:
        array = constant(inner)
        if array is not None:  # a small constant that lives in the body
            x = _of_array(array)
        else:
            x = _region(outer[inner] if inner is not None else None, context)
        extent = x.view.shape[axis]
        copies.append((x, y.part(axis, start, extent)))
        start += extent
    return copies


def _of_array(array: Array) -> Region:
    dense = np.ascontiguousarray(array)
    strides = tuple(s // dense.itemsize for s in dense.strides)
    return Region(Constant(dense), TensorView(dense.shape, strides, dense.dtype.name))


def _slice(group: ir.Node, node: ir.Node, context: LoweringContext) -> Copies:
    x, y = _ends(group, context)
    ranges = slices_of(node)
    if ranges is None:
        raise Refused("the bounds of the slice are computed")
    for axis, start, step, extent in ranges:
        x = x.part(axis, start, extent, step)
    return [(x, y)]


def _split(group: ir.Node, node: ir.Node, context: LoweringContext) -> Copies:
    x = _region(group.inputs[0], context)
    axis, start = int(attribute(node, "axis", 0)) % len(x.view.shape), 0
    outer = dict(zip(body_of(group).outputs, group.outputs, strict=True))
    copies: Copies = []
    for inner, extent in zip(node.outputs, split_sizes(node), strict=True):
        if inner in outer:
            copies.append((x.part(axis, start, extent), _region(outer[inner], context)))
        start += extent
    return copies


def _transpose(group: ir.Node, node: ir.Node, context: LoweringContext) -> Copies:
    x, y = _ends(group, context)
    perm = transpose_perm(node)
    return [(x.viewed([x.view.shape[p] for p in perm], [x.view.strides[p] for p in perm]), y)]


def _expand(group: ir.Node, node: ir.Node, context: LoweringContext) -> Copies:
    x, y = _ends(group, context)
    return [(Region(x.operand, broadcast_to(x.view, y.view.shape), x.offset), y)]


def _tile(group: ir.Node, node: ir.Node, context: LoweringContext) -> Copies:
    """Both sides as (repeats, extent) for every dim."""
    x, y = _ends(group, context)
    shape: list[int] = []
    source: list[int] = []
    destination: list[int] = []
    for extent, total, s, t in zip(x.view.shape, y.view.shape, x.view.strides, y.view.strides, strict=True):
        shape += [total // extent, extent]
        source += [0, s]
        destination += [extent * t, t]
    return [(x.viewed(shape, source), y.viewed(shape, destination))]


def _depth_space(group: ir.Node, node: ir.Node, context: LoweringContext) -> Copies:
    """Both sides as (n, block row, block column, c, h, w), c the channels of the deep side's groups."""
    x, y = _ends(group, context)
    to_space = node.op_type == "DepthToSpace"
    deep, wide = (x, y) if to_space else (y, x)
    block = int(attribute(node, "blocksize"))
    n, _, h, w = deep.view.shape
    channels = wide.view.shape[1]
    shape = (n, block, block, channels, h, w)
    sn, sc, sh, sw = wide.view.strides
    wide = wide.viewed(shape, (sn, sh, sw, sc, block * sh, block * sw))
    sn, sc, sh, sw = deep.view.strides
    if attribute(node, "mode", "DCR") == "CRD":
        deep = deep.viewed(shape, (sn, block * sc, sc, block * block * sc, sh, sw))
    else:
        deep = deep.viewed(shape, (sn, block * channels * sc, channels * sc, sc, sh, sw))
    return [(deep, wide) if to_space else (wide, deep)]


def _pad(group: ir.Node, node: ir.Node, context: LoweringContext) -> Copies:
    """The input's copy, then for every dim its two borders, over the whole extent of the dims before it."""
    x, y = _ends(group, context)
    rank, mode = len(x.view.shape), attribute(node, "mode", "constant")
    pads = _pads(node, rank)
    inner = y
    for axis, (begin, end) in enumerate(pads):
        extent = x.view.shape[axis] + min(begin, 0) + min(end, 0)
        x = x.part(axis, max(-begin, 0), extent)
        inner = inner.part(axis, max(begin, 0), extent)
    copies: Copies = [(x, inner)]
    fill = _fill(node, x.view.dtype) if mode == "constant" else None
    for axis, (begin, end) in enumerate(pads):
        extent = x.view.shape[axis]
        line = y  # all of the dims before this one, the inner part of those after it
        for later in range(axis + 1, rank):
            line = line.part(later, max(pads[later][0], 0), x.view.shape[later])
        for width, start in ((begin, 0), (end, max(begin, 0) + extent)):
            if width <= 0:
                continue
            border = line.part(axis, start, width)
            if fill is not None:
                copies.append((fill.viewed(border.view.shape, (0,) * rank), border))
            else:
                source, step = _mirror(mode, max(begin, 0), extent, width, start == 0)
                copies.append((line.part(axis, source, width, step), border))
    return copies


def _mirror(mode: str, begin: int, extent: int, width: int, before: bool) -> tuple[int, int]:
    """(index, step) along a padded axis of what a border repeats. Its inner part starts at `begin`."""
    last = begin + extent - 1
    if mode == "edge":
        return (begin if before else last), 0
    if mode == "reflect" and width < extent:
        return (begin + width, -1) if before else (last - 1, -1)
    if mode == "wrap" and width <= extent:
        return (last + 1 - width, 1) if before else (begin, 1)
    raise Refused(f"padding of {extent} elements by {width} in mode {mode}")


def _pads(node: ir.Node, rank: int) -> list[tuple[int, int]]:
    pads = attribute(node, "pads")
    if pads is None:
        array = constant(input_at(node, 1))
        if array is None:
            raise Refused("the pads are computed")
        pads = tuple(int(p) for p in array)
    axes: Sequence[int] = range(rank)
    if (given := input_at(node, 3)) is not None:
        array = constant(given)
        if array is None:
            raise Refused("the axes are computed")
        axes = [int(a) % rank for a in array]
    result = [(0, 0)] * rank
    for position, axis in enumerate(axes):
        result[axis] = (int(pads[position]), int(pads[position + len(axes)]))
    return result


def _fill(node: ir.Node, dtype: str) -> Region:
    """The padded value as one element in memory."""
    value: Array | float = float(attribute(node, "value", 0.0))
    if (given := input_at(node, 2)) is not None:
        array = constant(given)
        if array is None:
            raise Refused("the padded value is computed")
        value = array.reshape(-1)[0]
    return _of_array(np.full(1, value, dtype))


_COPIES: dict[str, Callable[[ir.Node, ir.Node, LoweringContext], Copies]] = {
    "Concat": _concat,
    "DepthToSpace": _depth_space,
    "Expand": _expand,
    "Pad": _pad,
    "Slice": _slice,
    "SpaceToDepth": _depth_space,
    "Split": _split,
    "Tile": _tile,
    "Transpose": _transpose,
}
