"""Conv groups on GPUs whose weight or bias the model computes."""

from __future__ import annotations

from dataclasses import replace

import onnx_ir as ir

from convopt.ir.groups import body_of
from convopt.ir.precision import keeps_fp32
from convopt.ir.values import constant, input_at, static_shape
from convopt.lowering.base import KernelCall, LoweringContext
from convopt.lowering.conv import (
    arithmetic_of,
    broadcast,
    epilogue_of,
    geometry_of,
    grouped,
    triple,
    weight_per_group,
)
from convopt.lowering.conv_operands import NO_WEIGHTS, ConvOperands
from convopt.lowering.gemm import scaled_sum
from convopt.lowering.gpu_computed import ComputedWeight, gpu_computed_calls
from convopt.lowering.gpu_conv import gpu_conv_calls
from convopt.schedules.base import TensorView
from convopt.schedules.conv_problem import ConvProblem
from convopt.targets import GpuTarget


def has_computed(group: ir.Node) -> bool:
    """Whether it is a Conv whose weight or bias is no constant."""
    node = next(iter(body_of(group)))
    return node.op_type == "Conv" and any(map(_is_computed, _operands(group)[1:]))


def _is_computed(value: ir.Value | None) -> bool:
    """Not so where it is left out. An input that has a default is: its caller may give another."""
    return value is not None and (value.const_value is None or value.is_graph_input())


def _operands(group: ir.Node) -> list[ir.Value | None]:
    """The Conv's x, weight and bias, as they are outside the group; None where there is no bias."""
    body = body_of(group)
    outer, node = dict(zip(body.inputs, group.inputs, strict=True)), next(iter(body))
    inner = (input_at(node, i) for i in range(3))
    return [None if value is None else outer.get(value, value) for value in inner]


def lower_computed_conv(group: ir.Node, context: LoweringContext, target: GpuTarget) -> list[KernelCall]:
    """The bias is one of the epilogue's operands."""
    g, epilogue, output = geometry_of(next(iter(body_of(group)))), epilogue_of(group), group.outputs[0]
    x, weight, bias = _operands(group)
    assert x is not None and weight is not None
    x_view, y_view = (grouped(context.views[value], g.groups) for value in (x, output))
    others = [broadcast(context.views[value], output) for value in epilogue.values]
    values, expression = list(epilogue.values), epilogue.expression
    if bias is not None:
        values.insert(0, bias)
        others.insert(0, _along_channels(context.views[bias], static_shape(output) or ()))
        expression = scaled_sum(1.0, 1.0, expression)
    problem = ConvProblem(
        x_view, y_view, g.kernel, g.strides, g.dilations, g.begin, expression,
        tuple(grouped(view, g.groups) for view in others), False,
        arithmetic_of(group, x_view, context.options.precision),
    )  # fmt: skip
    operands = ConvOperands(
        NO_WEIGHTS, None, (x, *values, output), (0,) * (2 + len(values)), keeps_fp32(group)
    )
    array = constant(weight)
    if array is not None:
        operands = replace(operands, weights=weight_per_group(array, g))
        return gpu_conv_calls(problem, operands, context, target)
    computed = ComputedWeight(weight, _weight_view(context.views[weight], g.groups))
    return gpu_computed_calls(problem, computed, operands, context, target)


def _along_channels(bias: TensorView, shape: tuple[int, ...]) -> TensorView:
    """(c,) as (n, c, spatial...)."""
    return replace(bias, shape=shape, strides=(0, *bias.strides, *(0,) * (len(shape) - 2)))


def _weight_view(view: TensorView, groups: int) -> TensorView:
    """(k, c, spatial...) as (g, k/g, kd, kh, kw, c)."""
    (features, channels, *taps), (step_k, step_c, *steps) = view.shape, view.strides
    per_group = features // groups
    return replace(
        view,
        shape=(groups, per_group, *triple(tuple(taps), 1), channels),
        strides=(per_group * step_k, step_k, *triple(tuple(steps), 0), step_c),
    )
