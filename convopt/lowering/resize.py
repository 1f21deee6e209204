"""Resize groups: nearest and linear, by tables that are computed here as the operator defines.

Coordinates follow the ONNX operator's documentation (coordinate_transformation_mode, nearest_mode). Those of
linear are in float64. Those of nearest are in float32, as in onnxruntime and torch: there 7 / 0.7 is 10, as
the scale means it; the quotient by the float32 next to 0.7 is above 10, and `ceil` would take it to 11.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil, floor
from typing import Any

import numpy as np
import onnx_ir as ir

from convopt.ir.groups import body_of
from convopt.ir.values import Array, attribute, constant, input_at
from convopt.lowering.base import Constant, KernelCall, LoweringContext, Refused
from convopt.lowering.move import Region, copy_region
from convopt.lowering.simple import simple_call
from convopt.schedules.resize import ResizeProblem


@dataclass(frozen=True)
class Axis:
    """`target` is length * scale, perhaps fractional; `outputs` is its floor, or the size asked for."""

    length: int
    outputs: int
    scale: float | np.floating[Any]
    target: float | np.floating[Any]

    def single(self) -> Axis:
        return Axis(self.length, self.outputs, np.float32(self.scale), np.float32(self.target))


Position = float | np.floating[Any]
COORDINATES: dict[str, Callable[[Position, Axis], Position]] = {
    "half_pixel": lambda o, a: (o + 0.5) / a.scale - 0.5,
    "half_pixel_symmetric": lambda o, a: (
        a.length / 2 * (1 - a.outputs / a.target) + (o + 0.5) / a.scale - 0.5
    ),
    "pytorch_half_pixel": lambda o, a: (o + 0.5) / a.scale - 0.5 if a.outputs > 1 else 0.0,
    "align_corners": lambda o, a: o * (a.length - 1) / (a.outputs - 1) if a.outputs > 1 else 0.0,
    "asymmetric": lambda o, a: o / a.scale,
}
NEAREST: dict[str, Callable[[Position], int]] = {
    "round_prefer_floor": lambda x: ceil(x - 0.5),
    "round_prefer_ceil": lambda x: floor(x + 0.5),
    "floor": floor,
    "ceil": ceil,
}


def lower(group: ir.Node, context: LoweringContext) -> list[KernelCall]:
    node = next(iter(body_of(group)))
    x, y = group.inputs[0], group.outputs[0]
    if x is None:
        raise Refused("the input is left out")
    x_view, y_view = context.views[x], context.views[y]
    mode = attribute(node, "mode", "nearest")
    coordinates = attribute(node, "coordinate_transformation_mode", "half_pixel")
    if mode not in ("nearest", "linear"):
        raise Refused(f"{mode} interpolation")
    if coordinates not in COORDINATES:
        raise Refused(f"coordinates by {coordinates}")
    if attribute(node, "antialias", 0):
        raise Refused("antialiasing")
    axes = _axes(group, node, x_view.shape, y_view.shape)
    resized = tuple(d for d, a in axes.items() if not (a.length == a.outputs and a.scale == 1.0))
    label = f"Resize {mode} to {'x'.join(map(str, y_view.shape))}"
    if not resized:
        return [copy_region(Region(x, x_view), Region(y, y_view), context, label)]
    problem = ResizeProblem(x_view, y_view, resized, mode)
    nearest = NEAREST[attribute(node, "nearest_mode", "round_prefer_floor")]
    offsets: list[Array] = []
    weights: list[Array] = []
    for d in resized:
        place = COORDINATES[coordinates]
        if mode == "linear":
            positions = [place(o, axes[d]) for o in range(axes[d].outputs)]
            index, weight = _linear(positions, axes[d].length)
            weights.append(weight.reshape(-1))
        else:
            single = axes[d].single()
            positions = [place(np.float32(o), single) for o in range(single.outputs)]
            index = np.clip([nearest(p) for p in positions], 0, axes[d].length - 1)
        offsets.append(index.reshape(-1) * x_view.strides[d])
    tables = [Constant(np.concatenate(offsets).astype(np.int32))]
    if mode == "linear":
        tables.append(Constant(np.concatenate(weights).astype(np.float32)))
    return [simple_call(problem, (x, *tables, y), context, label)]


def _linear(positions: Sequence[Position], length: int) -> tuple[Array, Array]:
    """The elements at either side and their weights; beyond the border its element stands in."""
    x = np.array(positions)
    below = np.floor(x)
    index = np.clip(np.stack([below, below + 1], -1), 0, length - 1).astype(np.int64)
    return index, np.stack([1 - (x - below), x - below], -1)


def _axes(group: ir.Node, node: ir.Node, shape: Sequence[int], outputs: Sequence[int]) -> dict[int, Axis]:
    """Of every axis that scales or sizes are given for."""
    given = attribute(node, "axes")
    selected = list(range(len(shape))) if given is None else [int(a) % len(shape) for a in given]
    scales, sizes = _numbers(group, node, 2, "scales"), _numbers(group, node, 3, "sizes")
    policy = attribute(node, "keep_aspect_ratio_policy", "stretch")
    result = {}
    for position, d in enumerate(selected):
        if sizes is None:
            if scales is None:
                raise Refused("neither scales nor sizes are given")
            scale = float(scales[position])
            result[d] = Axis(shape[d], outputs[d], scale, shape[d] * scale)
        elif policy == "stretch":
            result[d] = Axis(shape[d], outputs[d], outputs[d] / shape[d], float(outputs[d]))
        else:
            ratios = [int(n) / shape[a] for n, a in zip(sizes, selected, strict=True)]
            scale = min(ratios) if policy == "not_larger" else max(ratios)
            result[d] = Axis(shape[d], outputs[d], scale, shape[d] * scale)
    return result


def _numbers(group: ir.Node, node: ir.Node, index: int, what: str) -> Array | None:
    """A constant input; None where it is left out or empty."""
    value = input_at(node, index)
    if value is None:
        return None
    outer = dict(zip(body_of(group).inputs, group.inputs, strict=True))
    array = constant(outer.get(value, value))
    if array is None:
        raise Refused(f"the {what} are computed")
    return array if array.size else None
