"""Write every window out: kernel, strides, dilations, begin and end pads, group; no auto_pad or output_shape.

Before:
    y = Conv <auto_pad = "SAME_UPPER", dilations = [2, 2]> (x, w)                  # x 1x4x9x9, w 8x4x3x3
    z = ConvTranspose <output_shape = [18, 18], strides = [2, 2]> (y, v)           # v 8x4x3x3
After:
    y = Conv <dilations = [2, 2], group = 1, kernel_shape = [3, 3],
              pads = [2, 2, 2, 2], strides = [1, 1]> (x, w)
    z = ConvTranspose <dilations = [1, 1], group = 1, kernel_shape = [3, 3], output_padding = [0, 0],
                       pads = [1, 1, 0, 0], strides = [2, 2]> (y, v)

Pads come from the dilated kernel; a runtime that takes the plain one, or refuses dilation beside SAME, gets
the numbers. ceil_mode becomes end pads, except where an average counts them. Pools and convs of any rank have
this form.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from convopt.ir.shapes import infer_windows
from convopt.ir.values import attribute, dims_of, is_op, label, set_int, set_ints
from convopt.ir.windows import Axis, kernel_of, pool_extent, window_axes
from convopt.passes.base import Note, PassContext, PassReport

_CONVS = ("Conv", "ConvTranspose")
_POOLS = ("MaxPool", "AveragePool", "LpPool")


@dataclass(frozen=True)
class CanonicaliseConv:
    name: ClassVar[str] = "canonicalise-conv"

    def run(self, model: ir.Model, context: PassContext) -> PassReport:
        notes: list[Note] = []
        changed = 0
        for node in model.graph.all_nodes():
            if not is_op(node, *_CONVS, *_POOLS):
                continue
            reason = _why_not(node)
            if reason:
                notes.append(Note(node.name or "", f"{label(node)} keeps its form: {reason}", refused=True))
                continue
            text = _write_out(node)
            if text:
                changed += 1
                notes.append(Note(node.name or "", text))
        return PassReport(changed, tuple(notes))


def _why_not(node: ir.Node) -> str:
    dims = dims_of(node.inputs[0])
    if dims is None:
        return "the input's rank is unknown"
    if kernel_of(node) is None:
        return "the weight's shape is unknown"
    mode = attribute(node, "auto_pad", "NOTSET")
    if None in dims[2:]:
        if mode.startswith("SAME") or "output_shape" in node.attributes:
            return "its pads depend on spatial dims that are not bound"
        if attribute(node, "ceil_mode", 0):
            return "ceil_mode on spatial dims that are not bound"
    return ""


def _write_out(node: ir.Node) -> str:
    """Fills the attributes in; returns what was decided, or nothing where all was there already."""
    infer_windows(node)  # raises for what doesn't fit
    dims = dims_of(node.inputs[0])
    assert dims is not None
    # Where a dim is not bound, the pads don't depend on it (see _why_not).
    sizes = [1 << 20 if d is None else d for d in dims[2:]]
    axes = window_axes(node, sizes)
    assert axes is not None
    before = dict(node.attributes)
    mode = attribute(node, "auto_pad", "NOTSET")
    described = [f"auto_pad {mode}"] if mode not in ("", "NOTSET") else []
    described += ["output_shape"] if "output_shape" in node.attributes else []
    for name in ("auto_pad", "output_shape"):
        node.attributes.pop(name, None)
    pads = [*(a.begin for a in axes), *(a.end for a in axes)]
    set_ints(node, "kernel_shape", [a.kernel for a in axes])
    set_ints(node, "strides", [a.stride for a in axes])
    set_ints(node, "pads", pads)
    if node.op_type in (*_CONVS, "MaxPool") or "dilations" in node.attributes:
        set_ints(node, "dilations", [a.dilation for a in axes])  # AveragePool has them from opset 19 only
    if node.op_type in _CONVS:
        set_int(node, "group", attribute(node, "group", 1))
    if node.op_type == "ConvTranspose":
        set_ints(node, "output_padding", [a.output_padding for a in axes])
    if attribute(node, "ceil_mode", 0):
        ends = [_floor_end(a, s) for a, s in zip(axes, sizes, strict=True)]
        if _ends_mean_the_same(node, axes, ends):
            pads = [*(a.begin for a in axes), *ends]
            set_ints(node, "pads", pads)
            del node.attributes["ceil_mode"]
            described.append("ceil_mode")
    else:
        node.attributes.pop("ceil_mode", None)
    if dict(node.attributes) == before:
        return ""
    return (
        f"{' and '.join(described)} written out as pads {pads}"
        if described
        else "missing attributes filled in"
    )


def _floor_end(axis: Axis, size: int) -> int:
    """The end pad with which rounding down gives the same windows; the pool's own where it does already."""
    if pool_extent(size, axis.effective, axis.stride, axis.begin, axis.end, False) == axis.output:
        return axis.end
    return max((axis.output - 1) * axis.stride + axis.effective - size - axis.begin, 0)


def _ends_mean_the_same(node: ir.Node, axes: Sequence[Axis], ends: Sequence[int]) -> bool:
    """An average that counts its pads doesn't count what is beyond; runtimes want pads below the kernel."""
    if all(a.end == end for a, end in zip(axes, ends, strict=True)):
        return True
    counted = node.op_type == "LpPool" or attribute(node, "count_include_pad", 0)
    return not counted and all(end < a.kernel for a, end in zip(axes, ends, strict=True))
