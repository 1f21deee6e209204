"""The TIR of one tile of a convolution to few output channels. Needs tvm."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tvm.tirx.script.builder import ir as T

from convopt.schedules.conv_problem import ConvProblem
from convopt.schedules.primitives.conv_tiles import Position, load, store, sub_vector
from convopt.schedules.primitives.emit import hold, lanes_at, register, splat
from convopt.schedules.primitives.vector_math import emit

if TYPE_CHECKING:
    from convopt.targets import Target


def few_features_tile(
    problem: ConvProblem, target: Target, buffers: list[Any], group: Any, positions: list[Position]
) -> None:
    from convopt.schedules.conv_few_features import contiguous_run

    lanes, features = target.lanes, problem.features
    x, weight, *rest = buffers
    bias = rest.pop(0) if problem.bias else None
    *others, y = rest
    zero = lanes_at(0, lanes)
    sums = [[register(lanes) for _ in range(features)] for _ in positions]
    for row in sums:
        for slot in row:
            T.buffer_store(slot, splat(T.float32(0), lanes), [zero])
    x_group, (x_d, x_h, x_w, _) = problem.x.strides[0], problem.x.strides[2:]
    (kd, kh, _), (dd, dh, dw), (pd, ph, pw) = problem.kernel, problem.dilations, problem.pads
    columns, run = contiguous_run(problem)
    vectors = run // lanes
    origin = group * x_group - pd * x_d - ph * x_h - pw * x_w
    panel = group * (problem.taps * problem.channels * features)
    with T.serial(0, kd) as d, T.serial(0, kh) as h, T.serial(0, columns) as w, T.serial(0, vectors) as v:
        tap = origin + d * (dd * x_d) + h * (dh * x_h) + w * (dw * x_w) + v * lanes
        step = panel + (((d * kh + h) * columns + w) * vectors + v) * features * lanes
        factors = [weight[lanes_at(step + k * lanes, lanes)] for k in range(features)]
        if features < len(positions):
            factors = [hold(factor, lanes) for factor in factors]
        for i, (x_at, _, _) in enumerate(positions):
            value = hold(load(x, x_at + tap, lanes, 1), lanes)
            for k in range(features):
                T.buffer_store(sums[i][k], sums[i][k][zero] + value * factors[k], [zero])
    for i, (_, y_at, others_at) in enumerate(positions):
        for k in range(features):
            total = _sum_of_lanes(sums[i][k][zero], lanes)
            if bias is not None:
                total = total + bias[group * features + k]
            inputs = [total]
            for view, buffer, at in zip(problem.others, others, others_at, strict=True):
                inputs.append(load(buffer, at + group * view.strides[0] + k * view.strides[5], 1, 1))
            (result,) = emit(problem.epilogue, inputs, 1)
            at = y_at + group * problem.y.strides[0] + k * problem.y.strides[5]
            store(y, at, result, 1, problem.y.dtype)


def _sum_of_lanes(value: Any, lanes: int) -> Any:
    """The lanes added up pairwise."""
    while lanes > 1:
        lanes //= 2
        value = hold(sub_vector(value, 0, lanes) + sub_vector(value, lanes, lanes), lanes)
    return value
