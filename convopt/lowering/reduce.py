"""Reduce and Softmax groups."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import onnx_ir as ir

from convopt.ir.groups import body_of
from convopt.ir.values import attribute, constant, input_at
from convopt.lowering.base import KernelCall, LoweringContext, Operand, Refused, Temporary
from convopt.lowering.pointwise import broadcast_to
from convopt.lowering.simple import simple_call
from convopt.schedules.base import TensorView, row_major
from convopt.schedules.pointwise_problem import PointwiseProblem
from convopt.schedules.primitives.expression import Expression, Op
from convopt.schedules.reduce import ReduceProblem
from convopt.schedules.softmax import SoftmaxProblem
from convopt.targets import GpuTarget

_OPS = {
    "ReduceSum": "sum",
    "ReduceMean": "mean",
    "ReduceMax": "max",
    "ReduceMin": "min",
    "ReduceProd": "prod",
    "ReduceL1": "l1",
    "ReduceL2": "l2",
    "ReduceSumSquare": "sum_square",
    "ReduceLogSum": "log_sum",
}
# What makes the result of equal parts' results.
_OF_PARTS = {op: op for op in ("sum", "mean", "max", "min", "prod")} | {"l1": "sum", "sum_square": "sum"}
SPLIT_ELEMENTS = 1 << 16


def lower(group: ir.Node, context: LoweringContext) -> list[KernelCall]:
    node = next(iter(body_of(group)))
    x, y = group.inputs[0], group.outputs[0]
    if x is None:
        raise Refused("the input is left out")
    if node.op_type in ("Softmax", "LogSoftmax"):
        return [_softmax(node, x, y, context)]
    x_view, y_view = context.views[x], context.views[y]
    axes = _axes(group, node, len(x_view.shape))
    if not axes:
        raise Refused("a reduction over no axes")
    if node.op_type == "ReduceLogSumExp":
        return _log_sum_exp(x, x_view, axes, y, _kept(y_view, x_view.shape, axes), context)
    return reduce_calls(_OPS[node.op_type], x, x_view, axes, y, y_view, context, node.op_type)


def reduce_calls(
    op: str,
    x: Operand,
    x_view: TensorView,
    axes: tuple[int, ...],
    y: Operand,
    y_view: TensorView,
    context: LoweringContext,
    label: str,
) -> list[KernelCall]:
    """y = op of x over `axes`, which y has or has not kept. Raises Refused in the kernel's words.

    A large reduction to few results has too few tasks for the threads: it is done in equal parts first.
    """
    problem = ReduceProblem(x_view, _kept(y_view, x_view.shape, axes), axes, op)
    label = f"{label} {x_view.shape} over {axes}"
    call = simple_call(problem, (x, y), context, label)
    if isinstance(context.target, GpuTarget):  # its threads share a result where there are few
        return [call]
    few = call.schedule.tasks(problem, context.target) < context.threads
    if few and op in _OF_PARTS and x_view.size >= SPLIT_ELEMENTS:
        parts = _in_parts(problem, context.threads)
        if parts is not None:
            first, second = parts
            middle = Temporary(4 * first.y.size)
            return [
                simple_call(first, (x, middle), context, label),
                simple_call(second, (middle, y), context, label),
            ]
    return [call]


def _in_parts(problem: ReduceProblem, threads: int) -> tuple[ReduceProblem, ReduceProblem] | None:
    """Two reductions for one: the outermost reduced dimension in parts, then over the parts.

    None if no number of parts, at least one per thread, divides the dimension.
    """
    x = problem.x
    axis = max(problem.axes, key=lambda a: abs(x.strides[a]) if x.shape[a] > 1 else -1)
    extent, stride = x.shape[axis], x.strides[axis]
    count = next((n for n in range(threads, 4 * threads + 1) if extent % n == 0), None)
    if count is None:
        return None
    size = extent // count
    shape = (*x.shape[:axis], count, size, *x.shape[axis + 1 :])
    strides = (*x.strides[:axis], size * stride, stride, *x.strides[axis + 1 :])
    inner = tuple(a + 1 if a >= axis else a for a in problem.axes)
    partial = row_major(tuple(1 if d in inner else n for d, n in enumerate(shape)))
    first = ReduceProblem(TensorView(shape, strides, x.dtype), partial, inner, problem.op)
    y_shape, y_strides = list(problem.y.shape), list(problem.y.strides)
    y_shape.insert(axis, 1)
    y_strides.insert(axis, 0)
    y = TensorView(tuple(y_shape), tuple(y_strides), problem.y.dtype)
    return first, ReduceProblem(partial, y, (axis,), _OF_PARTS[problem.op])


def _kept(view: TensorView, shape: Sequence[int], axes: Sequence[int]) -> TensorView:
    """The result's view with the reduced axes as dims of extent 1."""
    if len(view.shape) == len(shape):
        return view
    strides = iter(view.strides)
    return TensorView(
        tuple(1 if d in axes else n for d, n in enumerate(shape)),
        tuple(0 if d in axes else next(strides) for d in range(len(shape))),
        view.dtype,
    )


def _axes(group: ir.Node, node: ir.Node, rank: int) -> tuple[int, ...]:
    """From the attribute or, in later opsets, the constant input; all axes where neither says otherwise."""
    axes = attribute(node, "axes")
    second = input_at(node, 1)
    if second is not None:
        outer = dict(zip(body_of(group).inputs, group.inputs, strict=True))
        found = constant(outer.get(second, second))
        if found is None:
            raise Refused("the axes are computed")
        axes = tuple(int(a) for a in found.reshape(-1))
    if not axes:
        return () if attribute(node, "noop_with_empty_axes", 0) else tuple(range(rank))
    return tuple(sorted({int(a) % rank for a in axes}))


def _softmax(node: ir.Node, x: ir.Value, y: ir.Value, context: LoweringContext) -> KernelCall:
    """Before opset 13 the axes from `axis` on are one."""
    x_view, y_view = context.views[x], context.views[y]
    rank = len(x_view.shape)
    opset = node.graph.opset_imports.get("", 13) if node.graph is not None else 13
    coerced = opset < 13
    axis = int(attribute(node, "axis", 1 if coerced else -1)) % rank
    axes = tuple(range(axis, rank)) if coerced else (axis,)
    problem = SoftmaxProblem(x_view, y_view, axes, node.op_type == "LogSoftmax")
    return simple_call(problem, (x, y), context, f"{node.op_type} {x_view.shape} over {axes}")


def _log_sum_exp(
    x: ir.Value, x_view: TensorView, axes: tuple[int, ...], y: ir.Value, y_view: TensorView,
    context: LoweringContext,
) -> list[KernelCall]:  # fmt: skip
    """max + log(sum(exp(x - max))) by four kernels."""
    whole, small = row_major(x_view.shape), row_major(y_view.shape)
    top, exponentials, total = (Temporary(4 * prod(v.shape)) for v in (small, whole, small))
    label = "ReduceLogSumExp"

    def elementwise(views: Sequence[TensorView], out: TensorView, *ops: Op) -> PointwiseProblem:
        expression = Expression(2, ops, (1 + len(ops),))
        return PointwiseProblem(tuple(broadcast_to(v, out.shape) for v in views), (out,), expression)

    shifted = elementwise((x_view, small), whole, Op("sub", (0, 1)), Op("exp", (2,)))
    result = elementwise((small, small), y_view, Op("log", (0,)), Op("add", (2, 1)))
    return [
        *reduce_calls("max", x, x_view, axes, top, small, context, label),
        simple_call(shifted, (x, top, exponentials), context, label),
        *reduce_calls("sum", exponentials, whole, axes, total, small, context, label),
        simple_call(result, (total, top, y), context, label),
    ]
