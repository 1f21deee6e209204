"""The TIR of one tile of a convolution to few output channels. Needs tvm."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tvm.tirx.script.builder import ir as T

from convopt.schedules.conv_problem import ConvProblem
from convopt.schedules.primitives.conv_tiles import Position, branch, load, store, sub_vector
from convopt.schedules.primitives.emit import KernelBody, hold, lanes_at, register, splat
from convopt.schedules.primitives.vector_math import emit

if TYPE_CHECKING:
    from convopt.schedules.conv_few_features import FewFeaturesConv
    from convopt.targets import Target


class FewFeaturesTile:
    """Emits one tile's share of one panel."""

    def __init__(
        self, schedule: FewFeaturesConv, problem: ConvProblem, target: Target, body: KernelBody
    ) -> None:
        self.problem, self.lanes, self.panels = problem, target.lanes, schedule.panels
        self.x, self.weight, *rest = body.buffers
        self.bias = rest.pop(0) if problem.bias else None
        *self.others, self.y = rest
        self.scratch = T.decl_buffer((2**31 - 1,), "float32", data=body.scratch, align=4, layout=None)

    def __call__(self, group: Any, panel: Any, turn: Any, positions: list[Position]) -> None:
        """turn: which of the task's tiles it is."""
        lanes, features, zero = self.lanes, self.problem.features, lanes_at(0, self.lanes)
        sums = [register(lanes) for _ in range(len(positions) * features)]
        kept = [lanes_at((turn * len(sums) + i) * lanes, lanes) for i in range(len(sums))]

        def start() -> None:
            for slot in sums:
                T.buffer_store(slot, splat(T.float32(0), lanes), [zero])

        def resume() -> None:
            for slot, at in zip(sums, kept, strict=True):
                T.buffer_store(slot, self.scratch[at], [zero])

        def keep() -> None:
            for slot, at in zip(sums, kept, strict=True):
                T.buffer_store(self.scratch, slot[zero], [at])

        branch(panel == 0, self.panels > 1, start, resume)
        self._reduce(group, panel, positions, sums)
        last = panel == self.panels - 1
        branch(last, self.panels > 1, lambda: self._finish(group, positions, sums), keep)

    def _reduce(self, group: Any, panel: Any, positions: list[Position], sums: list[Any]) -> None:
        from convopt.schedules.conv_few_features import contiguous_run

        problem, lanes, features, zero = (
            self.problem,
            self.lanes,
            self.problem.features,
            lanes_at(0, self.lanes),
        )
        x_group, (x_d, x_h, x_w, _) = problem.x.strides[0], problem.x.strides[2:]
        (kd, kh, _), (dd, dh, dw), (pd, ph, pw) = problem.kernel, problem.dilations, problem.pads
        columns, run = contiguous_run(problem)
        vectors = run // lanes
        origin = group * x_group - pd * x_d - ph * x_h - pw * x_w
        base = group * (problem.taps * problem.channels * features)
        rows = kd * kh // self.panels
        with T.serial(0, rows) as r, T.serial(0, columns) as w, T.serial(0, vectors) as v:
            row = panel * rows + r
            tap = origin + row // kh * (dd * x_d) + row % kh * (dh * x_h) + w * (dw * x_w) + v * lanes
            step = base + ((row * columns + w) * vectors + v) * features * lanes
            factors = [self.weight[lanes_at(step + k * lanes, lanes)] for k in range(features)]
            if features < len(positions):
                factors = [hold(factor, lanes) for factor in factors]
            for i, (x_at, _, _) in enumerate(positions):
                value = hold(load(self.x, x_at + tap, lanes, 1), lanes)
                for k, slot in enumerate(sums[i * features : (i + 1) * features]):
                    T.buffer_store(slot, slot[zero] + value * factors[k], [zero])

    def _finish(self, group: Any, positions: list[Position], sums: list[Any]) -> None:
        problem, lanes, features = self.problem, self.lanes, self.problem.features
        for i, (_, y_at, others_at) in enumerate(positions):
            for k in range(features):
                total = _sum_of_lanes(sums[i * features + k][lanes_at(0, lanes)], lanes)
                if self.bias is not None:
                    total = total + self.bias[group * features + k]
                inputs = [total]
                for view, buffer, at in zip(problem.others, self.others, others_at, strict=True):
                    inputs.append(load(buffer, at + group * view.strides[0] + k * view.strides[5], 1, 1))
                (result,) = emit(problem.epilogue, inputs, 1)
                at = y_at + group * problem.y.strides[0] + k * problem.y.strides[5]
                store(self.y, at, result, 1, problem.y.dtype)


def _sum_of_lanes(value: Any, lanes: int) -> Any:
    """The lanes added up pairwise."""
    while lanes > 1:
        lanes //= 2
        value = hold(sub_vector(value, 0, lanes) + sub_vector(value, lanes, lanes), lanes)
    return value
