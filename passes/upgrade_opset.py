"""Bring the standard operators of older models to one opset, so that later passes know one form of each.

What was an attribute becomes an input (Squeeze's axes, Clip's bounds, Pad's pads, ReduceMean's axes),
what was renamed gets its name (Upsample: Resize; Scatter: ScatterElements), and what changed its meaning is
spelled out: Softmax before opset 13 works on the input flattened to two dims at `axis`.

Before:
    <opset_import: ["" : 9]>
    g (float[1,8,4] x) => (float[1,8,4] y) { c = Clip <min = 0.0, max = 6.0> (x)  y = Softmax <axis = 1> (c) }
After:
    <opset_import: ["" : 18]>
    g (float[1,8,4] x) => (float[1,8,4] y) <float lo = {0.0}, float hi = {6.0}> {
        c = Clip (x, lo, hi)
        shape = Shape (c)  flat = Flatten <axis = 1> (c)  soft = Softmax <axis = -1> (flat)
        y = Reshape (soft, shape)
    }

Models above WORKING_OPSET keep theirs: nothing that the passes look at has another form there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from convopt.errors import ModelError
from convopt.ir.values import (
    attribute,
    constant,
    dims_of,
    input_at,
    is_op,
    label,
    new_constant,
    new_node,
    replace_value,
    share_names,
)
from convopt.passes.base import Note, PassContext, PassReport
from convopt.passes.fold_constants import FoldConstants

# The first opset in which every reduction takes its axes as an input; runtimes know it since 2023.
WORKING_OPSET = 18
WORKING_IR_VERSION = 8


@dataclass(frozen=True)
class UpgradeOpset:
    name: ClassVar[str] = "upgrade-opset"

    def run(self, model: ir.Model, context: PassContext) -> PassReport:
        if "ai.onnx" in model.opset_imports:
            model.opset_imports[""] = model.opset_imports.pop("ai.onnx")
        version = model.opset_imports.get("", WORKING_OPSET)
        notes = []
        if version < WORKING_OPSET:
            share_names(model.graph)
            if _needs_values(model):
                FoldConstants().run(model, context)
            for node in list(model.graph.all_nodes()):
                if version < 6 and node.domain in ("", "ai.onnx"):
                    node.attributes.pop("consumed_inputs", None)  # a permission to work in place
                for since, change in _CHANGES.get(node.op_type, ()) if node.domain in ("", "ai.onnx") else ():
                    if version < since and node.graph is not None:
                        text = change(node, version)
                        if text:
                            notes.append(Note(node.name or "", text))
            model.opset_imports[""] = WORKING_OPSET
            notes.append(Note("", f"opset {version} -> {WORKING_OPSET}"))
        model.ir_version = max(model.ir_version, WORKING_IR_VERSION)
        return PassReport(len(notes), tuple(notes))


Change = Callable[[ir.Node, int], str]


def _graph(node: ir.Node) -> ir.Graph:
    assert isinstance(node.graph, ir.Graph)
    return node.graph


def _append_input(node: ir.Node, index: int, value: ir.Value | None) -> None:
    if len(node.inputs) <= index:
        node.resize_inputs(index + 1)
    node.replace_input_with(index, value)


def _ints_to_input(name: str, index: int) -> Change:
    """The attribute of integers becomes an int64 input at that index."""

    def change(node: ir.Node, version: int) -> str:
        values = attribute(node, name)
        if values is None:
            return ""
        del node.attributes[name]
        stem = f"{node.outputs[0].name}_{name}"
        _append_input(node, index, new_constant(_graph(node), np.array(values, np.int64), stem))
        return f"attribute {name} is an input"

    return change


def _clip(node: ir.Node, version: int) -> str:
    moved = ""
    for index, name in ((1, "min"), (2, "max")):
        bound = attribute(node, name)
        if bound is not None:
            del node.attributes[name]
            _append_input(node, index, _number_like_input(node, bound, name))
            moved = "attributes min and max are inputs"
    return moved


def _number_like_input(node: ir.Node, number: float, role: str) -> ir.Value:
    """A constant of the first input's type; where that is not known yet, CastLike gives it."""
    source, stem = node.inputs[0], f"{node.outputs[0].name}_{role}"
    dtype = source.dtype if source is not None else None
    if dtype is not None:
        return new_constant(_graph(node), np.array(number, dtype.numpy()), stem)
    single = new_constant(_graph(node), np.array(number, np.float32), f"{stem}_float")
    return new_node(node, "CastLike", [single, source], stem=stem)


def _pad(node: ir.Node, version: int) -> str:
    text = _ints_to_input("pads", 1)(node, version)
    value = attribute(node, "value")
    if value is not None:
        del node.attributes["value"]
        if value:
            _append_input(node, 2, _number_like_input(node, value, "value"))
    return text


def _slice(node: ir.Node, version: int) -> str:
    text = ""
    for index, name in ((1, "starts"), (2, "ends"), (3, "axes")):
        text = _ints_to_input(name, index)(node, version) or text
    return "attributes starts, ends and axes are inputs" if text else ""


def _split(node: ir.Node, version: int) -> str:
    text = _ints_to_input("split", 1)(node, version) if version < 13 else ""
    if input_at(node, 1) is None and "num_outputs" not in node.attributes:
        node.attributes["num_outputs"] = ir.AttrInt64("num_outputs", len(node.outputs))
        text = "equal parts are counted by num_outputs"
    return text


def _top_k(node: ir.Node, version: int) -> str:
    k = attribute(node, "k")
    if k is None:
        return ""
    del node.attributes["k"]
    _append_input(node, 1, new_constant(_graph(node), np.array([k], np.int64), f"{node.outputs[0].name}_k"))
    return "attribute k is an input"


def _resize(node: ir.Node, version: int) -> str:
    """Upsample and Resize-10 sample at x / scale, which opset 11 calls asymmetric.

    Nearest rounds down where it enlarges and, in Resize, up where it shrinks (the onnx package's tests of
    opset 10 and onnxruntime agree; the text doesn't say).
    """
    if version >= 11:
        return ""
    if version < 9:
        scales = attribute(node, "scales")
        if scales is None:
            raise ModelError(f"{label(node)} has no scales; expected the attribute in opset {version}")
        del node.attributes["scales"]
        stem = f"{node.outputs[0].name}_scales"
        value: ir.Value | None = new_constant(_graph(node), np.array(scales, np.float32), stem)
    else:
        value = input_at(node, 1)
    was, node.op_type = node.op_type, "Resize"
    node.resize_inputs(1)
    _append_input(node, 2, value)
    node.attributes["coordinate_transformation_mode"] = ir.AttrString(
        "coordinate_transformation_mode", "asymmetric"
    )
    text = f"{was}-{version} is Resize, asymmetric"
    if attribute(node, "mode", "nearest") != "nearest":
        return text
    factors = constant(value)
    shrinks = factors is not None and was == "Resize" and bool((factors < 1).any())
    if shrinks and factors is not None and (factors > 1).any():
        # One node has one rounding: enlarge first, what remains shrinks.
        stem, source = f"{node.outputs[0].name}_enlarged", node.inputs[0]
        wider = new_constant(_graph(node), np.maximum(factors, 1), f"{stem}_scales")
        modes = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
        dtype = None if source is None else source.dtype
        enlarged = new_node(node, "Resize", [source, None, wider], modes, stem=stem, dtype=dtype)
        node.replace_input_with(0, enlarged)
        smaller = new_constant(_graph(node), np.minimum(factors, 1), f"{node.outputs[0].name}_shrunk_scales")
        node.replace_input_with(2, smaller)
    node.attributes["nearest_mode"] = ir.AttrString("nearest_mode", "ceil" if shrinks else "floor")
    return text if factors is not None else f"{text}; its scales are not known and taken to enlarge"


def _softmax(node: ir.Node, version: int) -> str:
    source, output = node.inputs[0], node.outputs[0]
    assert source is not None
    axis, dims = attribute(node, "axis", 1), dims_of(source)
    if dims is not None:
        if not -len(dims) <= axis < max(len(dims), 1):
            raise ModelError(
                f"{label(node)} has axis {axis}; expected one of the {len(dims)} dims of its input"
            )
        axis += len(dims) if axis < 0 else 0
        if axis >= len(dims) - 1 or all(d == 1 for d in dims[axis + 1 :]):
            node.attributes["axis"] = ir.AttrInt64("axis", axis if axis < len(dims) else -1)
            return "axis is the only one of the flattened part"
    elif axis == -1:
        node.attributes["axis"] = ir.AttrInt64("axis", -1)
        return ""
    name = output.name or node.op_type
    shape = new_node(node, "Shape", [source], stem=f"{name}_shape", dtype=ir.DataType.INT64)
    flat = new_node(node, "Flatten", [source], {"axis": axis}, stem=f"{name}_flat", dtype=source.dtype)
    soft = new_node(node, node.op_type, [flat], {"axis": -1}, stem=f"{name}_rows", dtype=source.dtype)
    whole = new_node(
        node, "Reshape", [soft, shape], stem=f"{name}_whole", dtype=output.dtype, shape=dims_of(output)
    )
    replace_value(output, whole)
    _graph(node).remove(node, safe=True)
    return f"works on the input flattened at axis {axis}"


def _dropout(node: ir.Node, version: int) -> str:
    """From opset 7 to 11 inference is the only mode; before, is_test says so."""
    if version < 7 and not attribute(node, "is_test", 0):
        raise ModelError(f"{label(node)} is in training mode; expected is_test = 1 in opset {version}")
    if len(node.outputs) > 1 and node.outputs[1].uses():
        raise ModelError(f"{label(node)} gives its mask; expected inference without it in opset {version}")
    node.resize_outputs(1)
    for name in ("is_test", "ratio"):
        node.attributes.pop(name, None)
    return "inference only"


def _batch_normalization(node: ir.Node, version: int) -> str:
    if version < 9 and not attribute(node, "spatial", 1):
        raise ModelError(f"{label(node)} has spatial = 0; expected statistics per channel")
    if version < 7 and not attribute(node, "is_test", 0):
        raise ModelError(f"{label(node)} is in training mode; expected is_test = 1 in opset {version}")
    for output in node.outputs[1:]:
        if output.uses() or output.is_graph_output():
            raise ModelError(f"{label(node)} gives its training statistics; expected inference")
    node.resize_outputs(1)
    for name in ("spatial", "is_test"):
        node.attributes.pop(name, None)
    return ""


def _broadcast(node: ir.Node, version: int) -> str:
    """Before opset 7 the second operand broadcasts only with `broadcast`, its dims starting at `axis`."""
    flag, axis = attribute(node, "broadcast", 0), attribute(node, "axis")
    for name in ("broadcast", "axis"):
        node.attributes.pop(name, None)
    if not flag or axis is None:
        return ""
    first, second = node.inputs[0], node.inputs[1]
    a, b = dims_of(first), dims_of(second)
    if a is None or b is None or second is None:
        raise ModelError(f"{label(node)} broadcasts at axis {axis} with unknown ranks; expected known shapes")
    trailing = len(a) - (axis + len(a) if axis < 0 else axis) - len(b)
    if trailing <= 0:
        return ""
    axes = new_constant(_graph(node), np.arange(len(b), len(b) + trailing, dtype=np.int64), "broadcast_axes")
    stem = f"{second.name}_broadcast"
    shape = (*b, *(1,) * trailing)
    node.replace_input_with(
        1, new_node(node, "Unsqueeze", [second, axes], stem=stem, dtype=second.dtype, shape=shape)
    )
    return f"the second operand's dims start at axis {axis}"


def _prelu(node: ir.Node, version: int) -> str:
    """Before opset 7 a slope of one dim is per channel, from then on it aligns with the last dims."""
    dims, slope = dims_of(node.inputs[0]), node.inputs[1]
    shape = dims_of(slope)
    if dims is None or slope is None or shape is None or len(shape) != 1 or shape == (1,) or len(dims) <= 2:
        return ""
    axes = new_constant(_graph(node), np.arange(1, len(dims) - 1, dtype=np.int64), "slope_axes")
    spread = (*shape, *(1,) * (len(dims) - 2))
    stem = f"{slope.name}_channels"
    node.replace_input_with(
        1, new_node(node, "Unsqueeze", [slope, axes], stem=stem, dtype=slope.dtype, shape=spread)
    )
    return "the slope is per channel"


def _concat(node: ir.Node, version: int) -> str:
    if "axis" not in node.attributes:
        node.attributes["axis"] = ir.AttrInt64("axis", 1)
    return ""


def _drop(*names: str) -> Change:
    def change(node: ir.Node, version: int) -> str:
        for name in names:
            node.attributes.pop(name, None)
        return ""

    return change


def _rename(op_type: str) -> Change:
    def change(node: ir.Node, version: int) -> str:
        was, node.op_type = node.op_type, op_type
        return f"{was} is {op_type}"

    return change


def _roi_align(node: ir.Node, version: int) -> str:
    if "coordinate_transformation_mode" not in node.attributes:
        name = "coordinate_transformation_mode"
        node.attributes[name] = ir.AttrString(name, "output_half_pixel")
    return ""


def _refuse(reason: str) -> Change:
    def change(node: ir.Node, version: int) -> str:
        raise ModelError(f"{label(node)} of opset {version}: {reason}")

    return change


# op_type -> (the opset that changed the form, what to do for models before it).
_CHANGES: dict[str, tuple[tuple[int, Change], ...]] = {
    "Squeeze": ((13, _ints_to_input("axes", 1)),),
    "Unsqueeze": ((13, _ints_to_input("axes", 1)),),
    "ReduceSum": ((13, _ints_to_input("axes", 1)),),
    "Clip": ((11, _clip),),
    "Pad": ((2, _refuse("names its pads otherwise; expected opset 2 or later")), (11, _pad)),
    "Slice": ((10, _slice),),
    "Split": ((2, _refuse("takes its parts otherwise; expected opset 2 or later")), (18, _split)),
    "TopK": ((10, _top_k),),
    "Upsample": ((10, _resize),),
    "Resize": ((11, _resize),),
    "Softmax": ((13, _softmax),),
    "LogSoftmax": ((13, _softmax),),
    "Hardmax": ((13, _softmax),),
    "Dropout": ((12, _dropout),),
    "BatchNormalization": ((14, _batch_normalization),),
    "Gemm": ((7, _drop("broadcast")),),
    "PRelu": ((7, _prelu),),
    "Scatter": ((11, _rename("ScatterElements")),),
    "RoiAlign": ((16, _roi_align),),
    "Cast": ((6, _refuse("names its dtype in words; expected opset 6 or later")),),
    "Concat": ((4, _concat),),
    "LpPool": ((2, _refuse("has a fractional p; expected opset 2 or later")),),
    "Reshape": ((5, _refuse("has its shape as an attribute; expected opset 5 or later")),),
    "Tile": ((6, _refuse("tiles one axis; expected opset 6 or later")),),
    "Scan": ((9, _refuse("has a batch dim of its own; expected opset 9 or later")),),
}
_CHANGES |= {
    op: ((18, _ints_to_input("axes", 1)),)
    for op in (
        "ReduceL1",
        "ReduceL2",
        "ReduceLogSum",
        "ReduceLogSumExp",
        "ReduceMax",
        "ReduceMean",
        "ReduceMin",
    )
}
_CHANGES |= {op: ((18, _ints_to_input("axes", 1)),) for op in ("ReduceProd", "ReduceSumSquare")}
_CHANGES |= {
    op: ((7, _broadcast),)
    for op in ("Add", "Sub", "Mul", "Div", "Pow", "And", "Or", "Xor", "Equal", "Greater", "Less")
}


def _needs_values(model: ir.Model) -> bool:
    """Whether a rule above asks for a rank or for scales that the model does not state outright."""
    version = model.opset_imports.get("", WORKING_OPSET)
    by_rank = [
        o for o, rules in _CHANGES.items() for since, rule in rules if rule in _BY_RANK and version < since
    ]
    return any(
        (is_op(node, *by_rank) and any(v is not None and v.shape is None for v in node.inputs))
        or (is_op(node, "Resize") and version == 10 and constant(input_at(node, 1)) is None)
        for node in model.graph
    )


_BY_RANK = (_softmax, _broadcast, _prelu)
