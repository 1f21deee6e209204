"""Which kernel family computes an operator, and why some operators have none."""

from __future__ import annotations

import onnx_ir as ir

from convopt.ir.values import attribute, constant, static_shape
from convopt.targets import CpuTarget, GpuTarget

_KINDS = {
    "Conv": ("Conv", "ConvTranspose"),
    "Gemm": ("Gemm", "MatMul"),
    "Pool": ("MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool"),
    "Reduce": (
        "ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2",
        "ReduceSumSquare", "ReduceLogSum", "ReduceLogSumExp",
    ),
    "Softmax": ("Softmax", "LogSoftmax"),
    "Resize": ("Resize",),
    "Move": (
        "Concat", "Slice", "Split", "Pad", "Transpose", "Expand", "Tile", "DepthToSpace", "SpaceToDepth",
    ),
    "View": ("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity"),
}  # fmt: skip
KIND_OF = {op: kind for kind, ops in _KINDS.items() for op in ops}
_FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16)
_MOVABLE = (
    *_FLOATS, ir.DataType.INT64, ir.DataType.INT32, ir.DataType.UINT8, ir.DataType.INT8, ir.DataType.BOOL,
)  # fmt: skip


def kind_of(node: ir.Node) -> str:
    """The group kind that computes this operator; only asked where `why_not` has nothing against it."""
    if _is_empty(node):
        return "Empty"
    return KIND_OF.get(node.op_type, "Pointwise")


def why_not(node: ir.Node, target: CpuTarget | GpuTarget | None = None) -> str | None:
    """Why this operator can't be a kernel, in words; None where a family takes it. target: None is a CPU."""
    from convopt.lowering.expressions import ELEMENTWISE, why_not_elementwise

    if node.domain not in ("", "ai.onnx"):
        return f"operator of domain {node.domain}"
    if _is_empty(node):
        return None
    kind = KIND_OF.get(node.op_type, "Pointwise" if node.op_type in ELEMENTWISE else None)
    if kind is None:
        return f"no kernel family computes {node.op_type}"
    for value in (*node.inputs, *node.outputs):
        if value is not None and static_shape(value) is None:
            return f"the shape of {value.name} is not static"
    data = [v for v in node.inputs if v is not None and constant(v) is None]
    if any(0 in (static_shape(v) or ()) for v in (*data, *node.outputs)):
        return "an operand is empty"
    if kind == "Pointwise":
        return why_not_elementwise(node)
    dtype = node.outputs[0].dtype
    if kind in ("Move", "View"):
        return None if dtype in _MOVABLE else f"elements of type {dtype} are not moved by kernels"
    if dtype not in _FLOATS:
        return f"{node.op_type} of {dtype}"
    return _matrix_refusal(node, target) if kind in ("Conv", "Gemm") else None


def _is_empty(node: ir.Node) -> bool:
    """Whether there is nothing to compute: every output has no elements (a batch of 0).

    Strings are the exception: there is no memory that could stand for an array of none.
    """
    return all(0 in (static_shape(v) or ()) and v.dtype != ir.DataType.STRING for v in node.outputs)


def _matrix_refusal(node: ir.Node, target: CpuTarget | GpuTarget | None) -> str | None:
    if node.op_type in ("Conv", "ConvTranspose"):
        # Kernels of CPUs have packed weights, and phases of a ConvTranspose their own taps of them.
        packed = node.op_type == "ConvTranspose" or not isinstance(target, GpuTarget)
        if packed and constant(node.inputs[1]) is None:
            return "the weight is not constant"
        if len(static_shape(node.inputs[0]) or ()) not in (3, 4, 5):
            return "only 1, 2 and 3 spatial dimensions have kernels"
        if packed and len(node.inputs) > 2 and node.inputs[2] and constant(node.inputs[2]) is None:
            return "the bias is not constant"
        if attribute(node, "auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
            return "auto_pad was not made explicit"
    return None
