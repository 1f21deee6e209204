"""Conv, ConvTranspose, Gemm and MatMul groups to direct convolutions.

A ConvTranspose of stride s is one ordinary convolution per residue of the output position modulo s: each
output of a phase sees only every s-th tap, so no zeros are inserted and no product is computed for nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import gcd, prod
from typing import Literal

import numpy as np
import onnx_ir as ir

from convopt.ir.groups import body_of
from convopt.ir.layout import CHANNELS_LAST, layout_of
from convopt.ir.precision import Precision, keeps_fp32
from convopt.ir.values import Array, attribute, constant, input_at, static_shape
from convopt.lowering.base import KernelCall, LoweringContext, LoweringOptions, Refused
from convopt.lowering.conv_operands import ConvOperands
from convopt.lowering.conv_plans import planned_calls
from convopt.lowering.expressions import expression_of
from convopt.lowering.gpu_conv import gpu_conv_calls
from convopt.schedules.base import TensorView, row_major
from convopt.schedules.conv_problem import ConvProblem, Triple
from convopt.schedules.primitives.expression import Expression, identity
from convopt.selection.choose import refusal
from convopt.selection.plans import choose_plan
from convopt.targets import GpuTarget

MOST_PHASES = 256


def triple(values: tuple[int, ...], fill: int) -> Triple:
    """Three spatial entries, missing leading ones filled."""
    a, b, c = (fill,) * (3 - len(values)) + tuple(values)
    return a, b, c


@dataclass(frozen=True)
class _Geometry:
    """A conv's attributes over three spatial dims."""

    kernel: Triple
    strides: Triple
    dilations: Triple
    begin: Triple
    groups: int


def geometry_of(node: ir.Node) -> _Geometry:
    weight = static_shape(node.inputs[1]) or ()
    spatial = len(weight) - 2
    pads = attribute(node, "pads") or (0,) * (2 * spatial)
    return _Geometry(
        triple(tuple(weight[2:]), 1),
        triple(attribute(node, "strides") or (1,) * spatial, 1),
        triple(attribute(node, "dilations") or (1,) * spatial, 1),
        triple(tuple(pads[:spatial]), 0),
        int(attribute(node, "group", 1)),
    )


def halo_of(group: ir.Node) -> tuple[tuple[int, int], ...]:
    """How far beyond input 0 the group's kernels read, per dim of the input: (before, after) in elements."""
    node = next(iter(body_of(group)))
    rank = len(static_shape(group.inputs[0]) or ())
    if node.op_type not in ("Conv", "ConvTranspose"):
        return ((0, 0),) * rank
    g = geometry_of(node)
    extents = triple((static_shape(node.inputs[0]) or ())[2:], 1)
    outputs = triple((static_shape(node.outputs[0]) or ())[2:], 1)
    result = []
    for d in range(3):
        before = after = 0
        for taps, dilation, stride, pad, out in _dim_problems(g, d, outputs[d], node.op_type):
            if taps and out:
                before = max(before, pad)
                after = max(after, (out - 1) * stride + (taps - 1) * dilation - pad - (extents[d] - 1))
        result.append((max(before, 0), max(after, 0)))
    return ((0, 0), (0, 0), *result[3 - (rank - 2) :])


def _dim_problems(g: _Geometry, d: int, out: int, op: str) -> list[tuple[int, int, int, int, int]]:
    """(taps, dilation, stride, begin pad, outputs) along dim d: one, or one per phase of a ConvTranspose."""
    if op == "Conv":
        return [(g.kernel[d], g.dilations[d], g.strides[d], g.begin[d], out)]
    return [(p.taps, p.dilation, 1, p.pad, p.outputs) for p in _phases(g, d, out)]


@dataclass(frozen=True)
class _Phase:
    """Outputs first, first + stride, ... of one dim: a convolution with the taps `order` of the kernel."""

    first: int
    outputs: int
    order: tuple[int, ...]
    dilation: int
    pad: int

    @property
    def taps(self) -> int:
        return len(self.order)


def _phases(g: _Geometry, d: int, out: int) -> list[_Phase]:
    """Output o gets input i through tap r where o + begin = i*stride + r*dilation.

    For outputs o = first + q*stride the taps are those with r*dilation = first + begin (mod stride); with
    r = r0 + j*stride/gcd, i = q + (first + begin - r0*dilation)/stride - j*dilation/gcd. Taken from the last
    tap to the first, i grows: an ordinary convolution of dilation dilation/gcd.
    """
    stride, dilation, begin = g.strides[d], g.dilations[d], g.begin[d]
    step = stride // gcd(stride, dilation)
    phases = []
    for first in range(min(stride, out)):
        taps = [r for r in range(g.kernel[d]) if (first + begin - r * dilation) % stride == 0]
        outputs = -(-(out - first) // stride)
        shift = (first + begin - taps[-1] * dilation) // stride if taps else 0
        phases.append(
            _Phase(first, outputs, tuple(reversed(taps)), max(1, dilation * step // stride), -shift)
        )
    return phases


def lower(group: ir.Node, context: LoweringContext) -> list[KernelCall]:
    node = next(iter(body_of(group)))
    if node.op_type in ("Gemm", "MatMul"):
        from convopt.lowering.gemm import lower_gemm

        return lower_gemm(group, context)
    if isinstance(context.target, GpuTarget):
        from convopt.lowering.computed_conv import has_computed, lower_computed_conv

        if has_computed(group):
            return lower_computed_conv(group, context, context.target)
    return lower_conv(group, context)


@dataclass(frozen=True)
class Epilogue:
    """What is computed on the sums, and with which further operands."""

    expression: Expression
    values: tuple[ir.Value, ...]


def epilogue_of(group: ir.Node) -> Epilogue:
    """The group's nodes behind the first, as an expression of the first's result and outer values."""
    body = body_of(group)
    return epilogue_of_nodes(
        list(body), list(body.outputs), dict(zip(body.inputs, group.inputs, strict=True))
    )


def epilogue_of_nodes(
    nodes: Sequence[ir.Node], results: Sequence[ir.Value], outer: Mapping[ir.Value, ir.Value | None]
) -> Epilogue:
    """`epilogue_of` for a convolution and the nodes behind it; outer: what a value is outside."""
    first, *rest = nodes
    if not rest:
        return Epilogue(identity(), ())
    used = {v for n in rest for v in n.inputs if v is not None}
    inner = [v for v in outer if v in used]
    expression = expression_of(rest, [first.outputs[0], *inner], list(results))
    values = [outer[v] for v in inner]
    assert all(v is not None for v in values)
    return Epilogue(expression, tuple(v for v in values if v is not None))


def arithmetic_of(
    group: ir.Node, x: TensorView, precision: Precision
) -> Literal["float32", "bfloat16", "tf32"]:
    """What the group's products may be computed in, unless it was to keep float32: its input's bfloat16, tf32
    where that was asked for.
    """
    if keeps_fp32(group):
        return "float32"
    if precision.name == "tf32" and x.dtype == "float32":
        return "tf32"
    return "bfloat16" if x.dtype == "bfloat16" else "float32"


def lower_conv(group: ir.Node, context: LoweringContext) -> list[KernelCall]:
    body = body_of(group)
    node = next(iter(body))
    outer = dict(zip(body.inputs, group.inputs, strict=True))
    first = node.inputs[0]
    assert first is not None
    x, output = outer[first], group.outputs[0]
    assert x is not None
    g, epilogue = geometry_of(node), epilogue_of(group)
    weights, biases = constants_of(node, outer)
    x_view = grouped(context.views[x], g.groups)
    y_view = grouped(context.views[output], g.groups)
    others = [grouped(broadcast(context.views[v], output), g.groups) for v in epilogue.values]
    if node.op_type == "Conv":
        parts = [_Part(weights, g.strides, g.dilations, g.begin, y_view, 0, others, [0] * len(others))]
    else:
        parts = _transposed_parts(g, weights, y_view, others)
    values = (x, *epilogue.values, output)
    calls = []
    for part in parts:
        problem = ConvProblem(
            x_view, part.y, part.kernel, part.strides, part.dilations, part.begin,
            epilogue.expression, tuple(part.others), biases is not None,
            arithmetic_of(group, x_view, context.options.precision), group not in context.borderless,
        )  # fmt: skip
        offsets = (0, *part.other_offsets, part.y_offset)
        packed = ConvOperands(part.weights, biases, values, offsets, keeps_fp32(group))
        calls += conv_calls(problem, packed, context)
    return calls


def needs_no_border(group: ir.Node, options: LoweringOptions) -> bool:
    """Whether the untuned plan of this padded convolution reads nothing beyond its input.

    Asked before values have places: of channels-last memory without gaps.
    """
    node, *rest = body_of(group)
    shapes = [static_shape(v) for v in (node.inputs[0], node.outputs[0])]
    if node.op_type != "Conv" or any(n.op_type == "Conv" for n in rest) or None in shapes:
        return False
    value = group.inputs[0]
    if value is None or layout_of(value) != CHANNELS_LAST:  # the copy with a border changes the order as well
        return False
    x, y = (_channels_last(shape or ()) for shape in shapes)
    problem = problem_of(node, x, y, Epilogue(identity(), ()), (), bias=len(node.inputs) > 2)
    try:
        plan = choose_plan(problem, options.cpu, options.threads, options.algorithm, options.im2col_cap)
    except ValueError:
        return False
    return (
        not plan.expand_col and refusal(plan.schedule, replace(problem, bordered=False), options.cpu) is None
    )


def _channels_last(shape: tuple[int, ...]) -> TensorView:
    """(n, c, spatial...) with the channels innermost."""
    dense = row_major((shape[0], *shape[2:], shape[1]))
    return TensorView(shape, (dense.strides[0], dense.strides[-1], *dense.strides[1:-1]))


def constants_of(node: ir.Node, outer: Mapping[ir.Value, ir.Value | None]) -> tuple[Array, Array | None]:
    """Weight (g, k/g, c/g, kd, kh, kw) and bias (g, k/g). Refused where one is not constant."""
    weight, bias = _constant_of(outer, node, 1), _constant_of(outer, node, 2)
    assert weight is not None
    g = geometry_of(node)
    weights = weight_per_group(weight, g)
    biases = None if bias is None else np.asarray(bias, np.float32).reshape(g.groups, -1)
    # A ConvTranspose's are (c, k/g, ...) with c over all groups.
    return weights if node.op_type == "Conv" else weights.swapaxes(1, 2), biases


def weight_per_group(weight: Array, g: _Geometry) -> Array:
    """(a, b, spatial...) as (g, a/g, b, kd, kh, kw), in float32."""
    return np.asarray(weight, np.float32).reshape(g.groups, -1, weight.shape[1], *g.kernel)


def problem_of(
    node: ir.Node, x: TensorView, y: TensorView, epilogue: Epilogue, others: Sequence[TensorView], bias: bool
) -> ConvProblem:
    """Of a Conv in float32, from the views of its operands as they are in the graph."""
    g = geometry_of(node)
    rest = tuple(grouped(broadcast(view, node.outputs[0]), g.groups) for view in others)
    x, y = grouped(x, g.groups), grouped(y, g.groups)
    return ConvProblem(x, y, g.kernel, g.strides, g.dilations, g.begin, epilogue.expression, rest, bias)


@dataclass(frozen=True)
class _Part:
    """One kernel's share of the outputs: all of a Conv, one phase of a ConvTranspose.

    weights: (g, k, c, kd, kh, kw); y and the others see only these outputs, from the offsets on.
    """

    weights: Array
    strides: Triple
    dilations: Triple
    begin: Triple
    y: TensorView
    y_offset: int
    others: list[TensorView]
    other_offsets: list[int]

    @property
    def kernel(self) -> Triple:
        return triple(self.weights.shape[3:], 1)


def conv_calls(problem: ConvProblem, operands: ConvOperands, context: LoweringContext) -> list[KernelCall]:
    """One of the conv schedules, or im2col + GEMM: measured, by estimate, or what the options ask for."""
    if isinstance(context.target, GpuTarget):
        return gpu_conv_calls(problem, operands, context, context.target)
    try:
        plan = context.plan(problem)
    except ValueError as error:
        raise Refused(str(error)) from error
    return planned_calls(problem, plan, operands, context)


def _transposed_parts(g: _Geometry, weights: Array, y: TensorView, others: list[TensorView]) -> list[_Part]:
    dims = [_phases(g, d, y.shape[2 + d]) for d in range(3)]
    if (count := prod(len(phases) for phases in dims)) > MOST_PHASES:
        raise Refused(f"{count} output phases > {MOST_PHASES}")
    parts = []
    for phases in product(*dims):

        def seen(view: TensorView, phases: tuple[_Phase, ...] = phases) -> tuple[TensorView, int]:
            shape = (*view.shape[:2], *(p.outputs for p in phases), view.shape[5])
            steps = (view.strides[2 + d] * g.strides[d] for d in range(3))
            strides = (*view.strides[:2], *steps, view.strides[5])
            offset = sum(p.first * view.strides[2 + d] for d, p in enumerate(phases))
            return TensorView(shape, strides, view.dtype), offset

        taps = weights[..., phases[0].order, :, :][..., phases[1].order, :][..., phases[2].order]
        y_view, y_offset = seen(y)
        seen_others = [seen(view) for view in others]
        parts.append(
            _Part(
                taps,
                (1, 1, 1),
                triple(tuple(p.dilation for p in phases), 1),
                triple(tuple(p.pad for p in phases), 0),
                y_view,
                y_offset,
                [view for view, _ in seen_others],
                [offset for _, offset in seen_others],
            )
        )
    return parts


def _constant_of(outer: Mapping[ir.Value, ir.Value | None], node: ir.Node, index: int) -> Array | None:
    inner = input_at(node, index)
    if inner is None:
        return None
    value = outer.get(inner, inner)
    array = constant(value)
    if array is None and value is not None and value.const_value is not None:
        array = value.const_value.numpy()
    if array is None:
        raise Refused(f"{node.op_type}'s operand {index} is not constant")
    return array


def grouped(view: TensorView, groups: int) -> TensorView:
    """(n, c, spatial...) to (g, n, d, h, w, c/g)."""
    shape, strides = view.shape, view.strides
    per_group = shape[1] // groups
    step = strides[1]
    return TensorView(
        (groups, shape[0], *triple(shape[2:], 1), per_group),
        # A single channel is contiguous whatever its stride says; broadcast ones stay broadcast.
        (step * per_group, strides[0], *triple(strides[2:], 0), min(step, 1) if per_group == 1 else step),
        view.dtype,
    )


def broadcast(view: TensorView, like: ir.Value) -> TensorView:
    """The view with the shape of `like` by ONNX's (numpy's) rule: stride 0 where it has one element."""
    shape = static_shape(like) or ()
    gap = len(shape) - len(view.shape)
    extents = (1,) * gap + view.shape
    strides = (0,) * gap + view.strides
    steps = tuple(0 if e == 1 else s for e, s in zip(extents, strides, strict=True))
    return TensorView(shape, steps, view.dtype)
