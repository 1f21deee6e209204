"""Pointwise groups: any graph of elementwise operators, one kernel per shape that is computed.

A part of the graph whose result is smaller than the output (a gate per channel, say) is computed once into a
temporary and broadcast by the kernel that reads it, not recomputed for every element.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from convopt.ir.groups import body_of
from convopt.ir.values import static_shape
from convopt.lowering.base import KernelCall, LoweringContext, Operand, Refused, Temporary
from convopt.lowering.expressions import expression_of
from convopt.lowering.simple import simple_call
from convopt.schedules.base import TensorView, row_major
from convopt.schedules.pointwise_problem import PointwiseProblem

Shape = tuple[int, ...]


def broadcast_to(view: TensorView, shape: Shape) -> TensorView:
    """The view as numpy's rules repeat it to `shape`: new leading dims and dims of extent 1 get stride 0."""
    lead = len(shape) - len(view.shape)
    if lead < 0 or any(a not in (1, b) for a, b in zip(view.shape, shape[lead:], strict=True)):
        raise Refused(f"{view.shape} does not broadcast to {shape}")
    strides = (s if a == b else 0 for a, b, s in zip(view.shape, shape[lead:], view.strides, strict=True))
    return TensorView(shape, (0,) * lead + tuple(strides), view.dtype)


@dataclass
class _Stage:
    """Nodes that compute values of one shape, in topological order."""

    shape: Shape
    nodes: list[ir.Node] = field(default_factory=list)


def lower(group: ir.Node, context: LoweringContext) -> list[KernelCall]:
    body = body_of(group)
    outer = dict(zip(body.inputs, group.inputs, strict=True)) | dict(
        zip(body.outputs, group.outputs, strict=True)
    )
    places: dict[ir.Value, tuple[Operand, TensorView]] = {}
    for inner, value in outer.items():
        if value is None:
            raise Refused(f"input {inner.name} is left out")
        places[inner] = (value, context.views[value])
    stages = _stages(list(body))
    return [_call(stage, stages[i + 1 :], body.outputs, places, context) for i, stage in enumerate(stages)]


def _stages(nodes: Sequence[ir.Node]) -> list[_Stage]:
    """Each node in the first stage of its shape that comes after everything that it reads."""
    stages: list[_Stage] = []
    stage_of: dict[ir.Value, int] = {}
    for node in nodes:
        shape = static_shape(node.outputs[0])
        if shape is None:
            raise Refused(f"the shape of {node.outputs[0].name} is not static")
        first = 0
        for value in node.inputs:
            if value in stage_of:
                same = stages[stage_of[value]].shape == shape
                first = max(first, stage_of[value] + (0 if same else 1))
        position = next((i for i in range(first, len(stages)) if stages[i].shape == shape), len(stages))
        if position == len(stages):
            stages.append(_Stage(shape))
        stages[position].nodes.append(node)
        stage_of[node.outputs[0]] = position
    return stages


def _call(
    stage: _Stage,
    later: Sequence[_Stage],
    body_outputs: Sequence[ir.Value],
    places: dict[ir.Value, tuple[Operand, TensorView]],
    context: LoweringContext,
) -> KernelCall:
    produced = [node.outputs[0] for node in stage.nodes]
    read = dict.fromkeys(v for node in stage.nodes for v in node.inputs if v is not None)
    inputs = [v for v in read if v in places and v not in produced]
    wanted_later = {v for other in later for node in other.nodes for v in node.inputs}
    outputs = [v for v in produced if v in body_outputs or v in wanted_later]
    for value in outputs:
        if value not in places:
            view = row_major(stage.shape)
            places[value] = (Temporary(view.size * np.dtype(view.dtype).itemsize), view)
    problem = PointwiseProblem(
        tuple(broadcast_to(places[v][1], stage.shape) for v in inputs),
        tuple(places[v][1] for v in outputs),
        expression_of(stage.nodes, inputs, outputs),
    )
    operands = tuple(places[v][0] for v in (*inputs, *outputs))
    names = " ".join(node.op_type for node in stage.nodes)
    label = f"{names} {'x'.join(map(str, stage.shape))}"
    return simple_call(problem, operands, context, label)
