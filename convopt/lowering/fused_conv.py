"""FusedConv groups: a depthwise convolution and those beside it as one kernel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from convopt.ir.groups import body_of
from convopt.ir.layout import CHANNELS_LAST, memory_order
from convopt.ir.values import Array, attribute, static_shape
from convopt.lowering.base import Constant, KernelCall, LoweringContext, Operand, Refused
from convopt.lowering.conv import constants_of, epilogue_of_nodes, problem_of
from convopt.schedules.base import TensorView
from convopt.schedules.conv_problem import ConvProblem
from convopt.schedules.fused_conv import FusedConvProblem
from convopt.selection.fused import choose_fused


@dataclass(frozen=True, eq=False)
class _Stage:
    """One convolution of the chain with the nodes behind it, as operands of the kernel."""

    problem: ConvProblem
    weight: Array
    bias: Array | None
    values: tuple[ir.Value, ...]  # of the epilogue


def lower(group: ir.Node, context: LoweringContext) -> list[KernelCall]:
    body = body_of(group)
    outer = dict(zip(body.inputs, group.inputs, strict=True))
    result = {body.outputs[0]: group.outputs[0]}
    stages = [_stage(nodes, outer | result, context.views) for nodes in _split(list(body))]
    problem = fused_problem([stage.problem for stage in stages])
    target, threads = context.options.cpu, context.threads
    try:
        schedule = choose_fused(problem, target, threads).schedule
    except ValueError as error:
        raise Refused(str(error)) from error
    packed = iter(schedule.pack(problem, target, [(s.weight, s.bias) for s in stages]))
    x = group.inputs[0]
    assert x is not None
    operands: list[Operand] = [x]
    for stage in stages:
        operands += [Constant(next(packed)) for _ in range(1 + stage.problem.bias)]
        operands += stage.values
    operands.append(group.outputs[0])
    return [KernelCall(schedule, problem, tuple(operands), f"{problem.text} {schedule.name}")]


def problem_of_groups(groups: Sequence[ir.Node]) -> FusedConvProblem:
    """Of Conv groups that are not one yet: views as if every value were dense and channels-last."""
    views = _DenseViews()
    stages = []
    for group in groups:
        body = body_of(group)
        known = dict(zip(body.inputs, group.inputs, strict=True))
        known |= dict(zip(body.outputs, group.outputs, strict=True))
        stages.append(_stage(list(body), known, views).problem)
    return fused_problem(stages)


def fused_problem(stages: Sequence[ConvProblem]) -> FusedConvProblem:
    """The stages of two or three convolutions, one of which is depthwise."""
    at = next(i for i, stage in enumerate(stages) if stage.groups > 1)
    expand = stages[0] if at else None
    return FusedConvProblem(expand, stages[at], stages[at + 1] if at + 1 < len(stages) else None)


def is_depthwise(node: ir.Node) -> bool:
    """A Conv whose groups have one input and one output channel each, two of them at least."""
    weight = static_shape(node.inputs[1]) or ()
    groups = int(attribute(node, "group", 1))
    return node.op_type == "Conv" and groups > 1 and tuple(weight[:2]) == (groups, 1)


def _split(nodes: list[ir.Node]) -> list[list[ir.Node]]:
    """Each Conv with the nodes up to the next."""
    parts: list[list[ir.Node]] = []
    for node in nodes:
        if node.op_type == "Conv":
            parts.append([])
        parts[-1].append(node)
    return parts


def _stage(
    nodes: list[ir.Node], outer: Mapping[ir.Value, ir.Value | None], views: Mapping[ir.Value, TensorView]
) -> _Stage:
    """outer: what a value of the body is outside; what it lacks lies between two stages."""
    first, last = nodes[0], nodes[-1].outputs[0]
    x = first.inputs[0]
    assert x is not None
    dense = _DenseViews()

    def view(value: ir.Value) -> TensorView:
        known = outer.get(value)
        return dense[value] if known is None else views[known]

    epilogue = epilogue_of_nodes(nodes, [last], outer)
    others = [views[value] for value in epilogue.values]
    weight, bias = constants_of(first, outer)
    problem = problem_of(first, view(x), view(last), epilogue, others, bias is not None)
    return _Stage(problem, weight, bias, epilogue.values)


class _DenseViews(dict[ir.Value, TensorView]):
    """Of any value: dense and channels-last."""

    def __missing__(self, value: ir.Value) -> TensorView:
        shape = static_shape(value)
        assert shape is not None and value.dtype is not None
        steps, step = [1] * len(shape), 1
        for dim in reversed(memory_order(len(shape), CHANNELS_LAST)):
            steps[dim] = step
            step *= shape[dim]
        return TensorView(shape, tuple(steps), value.dtype.numpy().name)
