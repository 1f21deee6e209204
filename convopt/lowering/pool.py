"""Pool groups: max and average pooling of one to three spatial dimensions, and the global ones."""

from __future__ import annotations

import onnx_ir as ir

from convopt.ir.groups import body_of
from convopt.ir.values import attribute, static_shape
from convopt.lowering.base import KernelCall, LoweringContext, Refused
from convopt.lowering.reduce import reduce_calls
from convopt.lowering.simple import simple_call
from convopt.schedules.base import TensorView
from convopt.schedules.pool_problem import PoolProblem, Triple


def lower(group: ir.Node, context: LoweringContext) -> list[KernelCall]:
    node = next(iter(body_of(group)))
    x, y = group.inputs[0], group.outputs[0]
    if x is None or len(group.outputs) > 1:
        raise Refused("the indices of the maxima are wanted")
    x_view, y_view = context.views[x], context.views[y]
    if node.op_type.startswith("Global"):
        op = "max" if node.op_type == "GlobalMaxPool" else "mean"
        axes = tuple(range(2, len(x_view.shape)))
        return reduce_calls(op, x, x_view, axes, y, y_view, context, node.op_type)
    problem = problem_of(node, x_view, y_view)
    label = f"{node.op_type} {'x'.join(map(str, attribute(node, 'kernel_shape')))} to {y_view.shape}"
    return [simple_call(problem, (x, y), context, label)]


def problem_of(node: ir.Node, x: TensorView, y: TensorView) -> PoolProblem:
    """Raises Refused where the spatial rank or the attributes have no kernel."""
    rank = len(x.shape) - 2
    if rank not in (1, 2, 3):
        raise Refused(f"{rank} spatial dimensions")
    kernel = tuple(attribute(node, "kernel_shape"))
    strides = tuple(attribute(node, "strides", (1,) * rank))
    dilations = tuple(attribute(node, "dilations", (1,) * rank))
    begin, end = _pads(node, kernel, strides, dilations)
    return PoolProblem(
        _with_three_dims(x),
        _with_three_dims(y),
        _triple(kernel, 1),
        _triple(strides, 1),
        _triple(dilations, 1),
        _triple(begin, 0),
        _triple(end, 0),
        "max" if node.op_type == "MaxPool" else "average",
        bool(attribute(node, "count_include_pad", 0)),
    )


def _pads(
    node: ir.Node, kernel: tuple[int, ...], strides: tuple[int, ...], dilations: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Pads before and after each spatial dimension; SAME makes ceil(input / stride) outputs."""
    rank, mode = len(kernel), attribute(node, "auto_pad", "NOTSET")
    if mode == "NOTSET":
        pads = tuple(attribute(node, "pads", (0,) * 2 * rank))
        return pads[:rank], pads[rank:]
    if mode == "VALID":
        return (0,) * rank, (0,) * rank
    shape = static_shape(node.inputs[0])
    assert shape is not None  # the group has views, so every shape is known
    begin, end = [], []
    for extent, k, stride, dilation in zip(shape[2:], kernel, strides, dilations, strict=True):
        outputs = -(-extent // stride)
        total = max(0, (outputs - 1) * stride + (k - 1) * dilation + 1 - extent)
        small, large = total // 2, total - total // 2
        begin.append(small if mode == "SAME_UPPER" else large)
        end.append(large if mode == "SAME_UPPER" else small)
    return tuple(begin), tuple(end)


def _triple(values: tuple[int, ...], missing: int) -> Triple:
    """With leading spatial dimensions that do nothing."""
    d, h, w = (missing,) * (3 - len(values)) + values
    return d, h, w


def _with_three_dims(view: TensorView) -> TensorView:
    gap = 5 - len(view.shape)
    shape = (*view.shape[:2], *(1,) * gap, *view.shape[2:])
    return TensorView(shape, (*view.strides[:2], *(0,) * gap, *view.strides[2:]), view.dtype)
