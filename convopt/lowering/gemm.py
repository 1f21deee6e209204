"""Gemm and MatMul groups: a convolution with one tap, the rows as pixels.

A constant right operand is packed at compile time, another one by a kernel before the product. Batches of
products with a right operand each become the convolution's groups.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise, product
from math import prod

import numpy as np
import onnx_ir as ir

from convopt.ir.groups import body_of
from convopt.ir.precision import keeps_fp32
from convopt.ir.values import Array, attribute, constant, input_at
from convopt.lowering.base import KernelCall, LoweringContext, Operand, Refused, Temporary
from convopt.lowering.conv import arithmetic_of, broadcast, epilogue_of
from convopt.lowering.conv_operands import NO_WEIGHTS, ConvOperands, packed_call
from convopt.lowering.gpu_computed import ComputedWeight, gpu_computed_calls
from convopt.lowering.gpu_conv import gpu_conv_calls
from convopt.schedules.base import TensorView, row_major
from convopt.schedules.conv_direct import DirectConv
from convopt.schedules.conv_problem import ConvProblem
from convopt.schedules.gemm_pack import PackMatrix, PackProblem
from convopt.schedules.primitives.expression import Expression, Op
from convopt.selection.choose import choose_conv
from convopt.targets import GpuTarget

_ONES = (1, 1, 1)
MOST_CALLS = 256


@dataclass(frozen=True)
class _Matrices:
    """y[g, batch..., m, n] = sum over k of a[g, batch..., m, k] * b[g, k, n]."""

    a: TensorView  # (g, n, d, h, m, k)
    b: TensorView  # (g, k, n)
    y: TensorView  # (g, n, d, h, m, n)
    others: tuple[TensorView, ...]
    b_at: int  # elements from b's first one
    offsets: tuple[int, ...]  # of a, the others and y, in elements


def lower_gemm(group: ir.Node, context: LoweringContext) -> list[KernelCall]:
    body = body_of(group)
    node = next(iter(body))
    outer = dict(zip(body.inputs, group.inputs, strict=True))
    a, b = (outer.get(v, v) for v in node.inputs[:2] if v is not None)
    assert a is not None and b is not None
    epilogue = epilogue_of(group)
    expression, values = epilogue.expression, list(epilogue.values)
    output = group.outputs[0]
    scale = float(attribute(node, "alpha", 1.0)) if node.op_type == "Gemm" else 1.0
    weight = constant(b)
    # A constant right operand is multiplied by alpha when it is packed; else the sum is, before C is added.
    alpha = 1.0 if weight is not None else scale
    # A GPU's product of two computed operands takes a bias as one of the epilogue's.
    unpacked = weight is None and isinstance(context.target, GpuTarget)
    bias, addend = _gemm_bias(node, outer, foldable=alpha == 1.0 and not unpacked)
    if addend is not None or alpha != 1.0:
        expression = scaled_sum(alpha, None if addend is None else _beta(node), expression)
        values = values if addend is None else [addend, *values]
    a_view, b_view = _operand_view(a, context), _operand_view(b, context)
    if node.op_type == "Gemm":
        a_view = _swapped(a_view) if attribute(node, "transA", 0) else a_view
        b_view = _swapped(b_view) if attribute(node, "transB", 0) else b_view
    others = [broadcast(context.views[v], output) for v in values]
    operands = (a, *values, output)
    calls = []
    for m in _matrices(a_view, b_view, context.views[output], others):
        if weight is None:
            calls += _dynamic(group, m, expression, bias, b, operands, context)
        else:
            calls += _static(group, m, expression, weight, scale, bias, operands, context)
    return calls


def _problem(m: _Matrices, expression: Expression, has_bias: bool) -> ConvProblem:
    return ConvProblem(m.a, m.y, _ONES, _ONES, _ONES, (0, 0, 0), expression, m.others, has_bias)


def _static(
    group: ir.Node,
    m: _Matrices,
    expression: Expression,
    weight: Array,
    scale: float,
    bias: Array | None,
    operands: tuple[Operand, ...],
    context: LoweringContext,
) -> list[KernelCall]:
    g, k, n = m.b.shape
    matrix = np.lib.stride_tricks.as_strided(
        np.ascontiguousarray(weight).reshape(-1)[m.b_at :],
        m.b.shape,
        [s * weight.itemsize for s in m.b.strides],
    )
    weights = np.asarray(matrix, np.float32).transpose(0, 2, 1).reshape(g, n, k, 1, 1, 1)
    biases = None if bias is None else np.broadcast_to(bias, (g, n))
    arithmetic = arithmetic_of(group, m.a, context.options.precision)
    problem = replace(_problem(m, expression, bias is not None), arithmetic=arithmetic)
    scaled = ConvOperands(weights * np.float32(scale), biases, operands, m.offsets, keeps_fp32(group))
    if isinstance(context.target, GpuTarget):
        return gpu_conv_calls(problem, scaled, context, context.target)
    schedule = context.plan(problem).schedule
    return [packed_call(schedule, problem, scaled, context)]


def _dynamic(
    group: ir.Node,
    m: _Matrices,
    expression: Expression,
    bias: Array | None,
    b: ir.Value,
    operands: tuple[Operand, ...],
    context: LoweringContext,
) -> list[KernelCall]:
    g, k, n = m.b.shape
    if isinstance(context.target, GpuTarget):
        parts = ConvOperands(NO_WEIGHTS, None, operands, m.offsets, keeps_fp32(group))
        arithmetic = arithmetic_of(group, m.a, context.options.precision)
        problem = replace(_problem(m, expression, False), arithmetic=arithmetic)
        (step_g, step_k, step_n), ones = m.b.strides, (1, 1, 1)
        view = replace(m.b, shape=(g, n, *ones, k), strides=(step_g, step_n, 0, 0, 0, step_k))
        return gpu_computed_calls(problem, ComputedWeight(b, view, m.b_at), parts, context, context.target)
    biases = np.broadcast_to(np.float32(0) if bias is None else bias, (g, n))
    problem = _problem(m, expression, True)
    parts = ConvOperands(np.zeros((g, n, k, 1, 1, 1), np.float32), biases, operands, m.offsets)
    # The packed panels are DirectConv's form of weights.
    schedule = choose_conv(problem, context.target, context.threads, (DirectConv,))
    tile = schedule.vectors * context.target.lanes
    panel = Temporary(g * -(-n // tile) * tile * k * 4)
    pack = KernelCall(PackMatrix(), PackProblem(m.b, tile), (b, panel), f"pack {g}x{k}x{n}", (m.b_at, 0))
    call = packed_call(schedule, problem, parts, context)
    return [pack, replace(call, operands=(call.operands[0], panel, *call.operands[2:]))]


def _gemm_bias(
    node: ir.Node, outer: dict[ir.Value, ir.Value | None], foldable: bool
) -> tuple[Array | None, ir.Value | None]:
    """Gemm's third operand: a bias per column if it is constant and `foldable`, else one of the epilogue."""
    inner = input_at(node, 2) if node.op_type == "Gemm" else None
    if inner is None:
        return None, None
    value = outer.get(inner, inner)
    assert value is not None
    array = constant(value)
    if array is None and value.const_value is not None:
        array = value.const_value.numpy()
    if foldable and array is not None and prod(array.shape[:-1]) == 1:
        return np.asarray(array, np.float32).reshape(-1) * np.float32(_beta(node)), None
    return None, value


def _beta(node: ir.Node) -> float:
    return float(attribute(node, "beta", 1.0))


def scaled_sum(alpha: float, beta: float | None, expression: Expression) -> Expression:
    """The expression applied to alpha * input 0, or with `beta` to alpha * input 0 + beta * input 1."""
    extra = 0 if beta is None else 1
    inputs = expression.inputs + extra
    prologue = [Op("const", (), (alpha,)), Op("mul", (0, inputs))]
    if beta is not None:
        scaled = Op("mul", (1, inputs + 2))
        prologue += [Op("const", (), (beta,)), scaled, Op("add", (inputs + 1, inputs + 3))]
    start = inputs + len(prologue) - 1

    def moved(i: int) -> int:
        if i == 0:
            return start
        return i + extra if i < expression.inputs else start + 1 + i - expression.inputs

    ops = tuple(Op(op.name, tuple(map(moved, op.args)), op.attrs) for op in expression.ops)
    return Expression(inputs, (*prologue, *ops), tuple(map(moved, expression.results)))


def _operand_view(value: ir.Value, context: LoweringContext) -> TensorView:
    array = constant(value)
    return context.views[value] if array is None else row_major(array.shape, array.dtype.name)


def _swapped(view: TensorView) -> TensorView:
    return TensorView(view.shape[::-1], view.strides[::-1], view.dtype)


def _matrices(a: TensorView, b: TensorView, y: TensorView, others: list[TensorView]) -> Iterator[_Matrices]:
    """MatMul's broadcasting as products of at most one batch dim each: most often as one."""
    vector_a, vector_b = len(a.shape) == 1, len(b.shape) == 1
    if vector_a:
        a = TensorView((1, *a.shape), (0, *a.strides), a.dtype)
    if vector_b:
        b = TensorView((*b.shape, 1), (*b.strides, 0), b.dtype)

    def full(view: TensorView) -> TensorView:
        """y or like y: with the dims that vectors dropped."""
        shape, strides = list(view.shape), list(view.strides)
        if vector_b:
            shape.append(1)
            strides.append(1)
        if vector_a:
            shape.insert(len(shape) - 1, 1)
            strides.insert(len(strides) - 1, 0)
        return TensorView(tuple(shape), tuple(strides), view.dtype)

    y, others = full(y), [full(view) for view in others]
    rank = len(y.shape)
    a, b = (_batched(view, y.shape[:-2], rank) for view in (a, b))
    batch = [d for d in range(rank - 2) if y.shape[d] != 1]
    if len(batch) <= 3 and all(b.strides[d] == 0 for d in batch):
        # One right operand: the batch is more pixels.
        left, result, *more = (_pick(v, [], batch) for v in (a, y, *others))
        yield _Matrices(left, _right(b, []), result, tuple(more), 0, (0,) * (2 + len(others)))
        return
    # The innermost batch dims that are one dim in memory for all operands; the others by a call each.
    split = max(len(batch) - 1, 0)
    while split > 0 and all(_mergeable(view, batch[split - 1 :]) for view in (a, b, y, *others)):
        split -= 1
    looped, grouped = batch[:split], batch[split:]
    if (count := prod(y.shape[d] for d in looped)) > MOST_CALLS:
        raise Refused(f"{count} products: the batch dims of the operands are not one dim in memory")
    left, result, *more = (_pick(v, grouped, []) for v in (a, y, *others))
    for index in product(*(range(y.shape[d]) for d in looped)):
        b_at, *offsets = (
            sum(i * view.strides[d] for i, d in zip(index, looped, strict=True))
            for view in (b, a, *others, y)
        )
        yield _Matrices(left, _right(b, grouped), result, tuple(more), b_at, tuple(offsets))


def _batched(view: TensorView, batch: tuple[int, ...], rank: int) -> TensorView:
    gap = rank - len(view.shape)
    shape, strides = (1,) * gap + view.shape, (0,) * gap + view.strides
    steps = tuple(0 if shape[d] == 1 else strides[d] for d in range(rank - 2)) + strides[-2:]
    return TensorView(batch + shape[-2:], steps, view.dtype)


def _mergeable(view: TensorView, dims: list[int]) -> bool:
    return all(view.strides[a] == view.strides[b] * view.shape[b] for a, b in pairwise(dims))


def _pick(view: TensorView, groups: list[int], pixels: list[int]) -> TensorView:
    """(g, n, d, h, rows, columns) with the batch dims as groups or as pixels."""
    shape = [1] * (3 - len(pixels)) + [view.shape[d] for d in pixels]
    strides = [0] * (3 - len(pixels)) + [view.strides[d] for d in pixels]
    count = prod(view.shape[d] for d in groups)
    step = view.strides[groups[-1]] if groups else 0
    return TensorView((count, *shape, *view.shape[-2:]), (step, *strides, *view.strides[-2:]), view.dtype)


def _right(view: TensorView, groups: list[int]) -> TensorView:
    count = prod(view.shape[d] for d in groups)
    step = view.strides[groups[-1]] if groups else 0
    return TensorView((count, *view.shape[-2:]), (step, *view.strides[-2:]), view.dtype)
