"""Convolution problems in all kinds of memory, with their results in float64 by ConvProblem's formula."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from convopt.schedules.base import TensorView
from convopt.schedules.conv_problem import ConvProblem, Triple
from convopt.schedules.primitives.expression import Expression, Op, identity, unary
from convopt.targets import CpuTarget, host_cpu
from tests.fenced_kernels import Array, FencedKernels, FencedOperand, flat

# Of the largest expected value: float32 sums, the others rounded once more to 11 and 8 bits.
TOLERANCES = {"float32": 2e-5, "float16": 5e-4, "bfloat16": 4e-3}

PLAIN, RELU = (identity(), lambda s: s), (unary("relu"), lambda s: np.maximum(s, 0))
SUM_RELU = (Expression(2, (Op("add", (0, 1)), Op("relu", (2,))), (3,)), lambda s, a: np.maximum(s + a, 0))
FMA = (Expression(3, (Op("mul", (0, 1)), Op("add", (3, 2))), (4,)), lambda s, a, b: s * a + b)

# How an operand of the epilogue lies: which of channel, image and pixel move its pointer, and in what order.
FULL, PLANAR, ROW, PIXEL, SCALAR, IMAGE = "full", "planar", "row", "pixel", "scalar", "image"


@dataclass(frozen=True)
class Case:
    """Extents are (d, h, w); pads are (begin, end) per dim; channels and features are per group."""

    channels: int
    features: int
    extents: Triple
    kernel: Triple = (1, 1, 1)
    strides: Triple = (1, 1, 1)
    dilations: Triple = (1, 1, 1)
    begin: Triple = (0, 0, 0)
    end: Triple = (0, 0, 0)
    groups: int = 1
    batch: int = 1
    bias: bool = True
    epilogue: tuple[Expression, Callable[..., Array]] = PLAIN
    others: tuple[str, ...] = ()
    x_planar: bool = False  # channels are not innermost in x
    x_gap: int = 0  # further channels in x's memory, as in a Concat's output
    y_gap: int = 0  # the same in y's
    x_dtype: str = "float32"
    y_dtype: str = "float32"
    arithmetic: str = "float32"
    bordered: bool = True  # x has memory where the pads reach
    outputs: Triple = field(init=False)

    def __post_init__(self) -> None:
        dims = zip(self.extents, self.kernel, self.strides, self.dilations, self.begin, self.end, strict=True)
        outputs = tuple((n + b + e - (k - 1) * d - 1) // s + 1 for n, k, s, d, b, e in dims)
        object.__setattr__(self, "outputs", outputs)

    @property
    def halo(self) -> list[tuple[int, int]]:
        """Per dim of x: positions before and after it that the windows reach, and that are there."""
        if not self.bordered:
            return [(0, 0)] * 6
        spatial = [
            (b, max(0, (o - 1) * s + (k - 1) * d - b - (n - 1)))
            for n, o, k, s, d, b in zip(
                self.extents, self.outputs, self.kernel, self.strides, self.dilations, self.begin, strict=True
            )
        ]
        return [(0, 0), (0, 0), *spatial, (0, 0)]

    @property
    def problem(self) -> ConvProblem:
        halo = self.halo
        room = [e + b + a for e, (b, a) in zip(self.extents, halo[2:5], strict=True)]
        x = _view(self.groups, self.batch, self.extents, room, self.channels, self.x_gap, self.x_planar)
        y = _view(self.groups, self.batch, self.outputs, self.outputs, self.features, self.y_gap, False)
        others = tuple(self._other(kind) for kind in self.others)
        return ConvProblem(
            TensorView(x.shape, x.strides, self.x_dtype),
            TensorView(y.shape, y.strides, self.y_dtype),
            self.kernel, self.strides, self.dilations, self.begin, self.epilogue[0], others, self.bias,
            arithmetic=self.arithmetic, bordered=self.bordered,  # type: ignore[arg-type]
        )  # fmt: skip

    def _other(self, kind: str) -> TensorView:
        dense = _view(self.groups, self.batch, self.outputs, self.outputs, self.features, 0, kind == PLANAR)
        g, n, d, h, w, c = dense.strides
        k = self.features
        strides = {
            ROW: (k, 0, 0, 0, 0, 1),
            IMAGE: (k, k * self.groups, 0, 0, 0, 1),
            PIXEL: (0, *(s // (k * self.groups) for s in (n, d, h, w)), 0),
            SCALAR: (0,) * 6,
        }.get(kind, (g, n, d, h, w, c))
        return TensorView(dense.shape, strides, self.y_dtype)


def _view(
    groups: int,
    batch: int,
    extents: Sequence[int],
    room: Sequence[int],
    channels: int,
    gap: int,
    planar: bool,
) -> TensorView:
    """(g, n, d, h, w, c) in memory with `room` positions per dim and `gap` channels more than it has."""
    total = groups * channels + gap
    d, h, w = room
    steps = (1, total, total * w, total * w * h, total * w * h * d)  # of c, w, h, d, n
    if planar:
        steps = (d * h * w, 1, w, w * h, total * w * h * d)
    c, w_, h_, d_, n = steps
    return TensorView((groups, batch, *extents, channels), (channels * c, n, d_, h_, w_, c))


def convolve(problem: ConvProblem, x: Array, weight: Array, bias: Array | None) -> Array:
    """The sums, in float64. x: (g, n, d, h, w, c); weight: (g, k, c, kd, kh, kw); bias: (g, k)."""
    g, n, *outputs, k = problem.y.shape
    result = np.zeros((g, n, *outputs, k))
    for tap in product(*map(range, problem.kernel)):
        source = x.astype(np.float64)
        for dim in range(3):
            at = np.arange(outputs[dim]) * problem.strides[dim] + tap[dim] * problem.dilations[dim]
            at -= problem.pads[dim]
            inside = (at >= 0) & (at < x.shape[2 + dim])
            source = np.take(source, np.where(inside, at, 0), axis=2 + dim)
            source *= inside.reshape([-1 if d == 2 + dim else 1 for d in range(6)])
        result += np.einsum("gndhwc,gkc->gndhwk", source, weight[(..., *tap)].astype(np.float64))
    return result if bias is None else result + bias.astype(np.float64)[:, None, None, None, None, :]


@dataclass
class Data:
    """Random operands of a case, and what comes out."""

    case: Case
    x: Array
    weight: Array
    bias: Array | None
    others: list[Array]
    expected: Array

    @classmethod
    def draw(cls, case: Case) -> Data:
        p, rng = case.problem, np.random.default_rng(0)

        def numbers(shape: tuple[int, ...], dtype: str = "float32") -> Array:
            return rng.uniform(-1, 1, shape).astype(dtype)

        x = numbers(p.x.shape, p.x.dtype)
        weight = numbers((p.groups, p.features, p.channels, *p.kernel))
        bias = numbers((p.groups, p.features)) if p.bias else None
        others = []
        for view in p.others:
            distinct = tuple(1 if s == 0 else e for e, s in zip(view.shape, view.strides, strict=True))
            others.append(np.broadcast_to(numbers(distinct, view.dtype), view.shape))
        return cls.of(case, x, weight, bias, others)

    @classmethod
    def of(cls, case: Case, x: Array, weight: Array, bias: Array | None, others: list[Array]) -> Data:
        sums = convolve(case.problem, x, weight, bias)
        expected = case.epilogue[1](sums, *(o.astype(np.float64) for o in others))
        return cls(case, x, weight, bias, others, expected)

    def check(self, kernels: FencedKernels, number: int, packed: Sequence[Array], at_end: bool) -> None:
        """Runs the kernel with every operand at a fence and compares."""
        problem = self.case.problem
        x = FencedOperand.tight(problem.x, at_end, self.case.halo)
        x.bytes[...] = 0  # the halo
        x.array[...] = self.x
        others = []
        for view, array in zip(problem.others, self.others, strict=True):
            others.append(FencedOperand.tight(view, at_end))
            distinct = tuple(slice(0, 1) if s == 0 else slice(None) for s in view.strides)
            others[-1].array[distinct] = array[distinct]
        y = FencedOperand.tight(problem.y, at_end)
        inputs = [x, *(flat(a, at_end) for a in packed), *others]
        before, around = [o.bytes.copy() for o in inputs], y.outside()
        kernels.run(number, [*inputs, y])
        name = f"{kernels.pairs[number][0]} at_end={at_end}"
        assert y.outside() == around, f"{name} wrote beside its output"
        for index, (operand, was) in enumerate(zip(inputs, before, strict=True)):
            assert np.array_equal(operand.bytes, was), f"{name} wrote to operand {index}"
        tolerance = TOLERANCES[problem.y.dtype]
        scale = max(1.0, float(np.abs(self.expected).max()))
        np.testing.assert_allclose(
            y.array.astype(np.float64) / scale, self.expected / scale, rtol=0, atol=tolerance, err_msg=name
        )


HOST = host_cpu()
# The same machine as if its vectors were narrower or wider: LLVM splits what is too wide.
TARGETS = {
    "host": HOST,
    "4 lanes": replace(HOST, vector_bytes=16, vector_registers=16, fma_from_memory=False),
    "16 lanes": replace(HOST, vector_bytes=64, vector_registers=32, fma_from_memory=True),
}


def instances(family: Any, case: Case, target: CpuTarget) -> list[Any]:
    """Those of the family's space that don't refuse the case."""
    problem = case.problem
    return [s for s in family.space(problem, target) if s.why_not(problem, target) is None]


def check(case: Case, schedules: list[Any], target: CpuTarget, folder: Path) -> None:
    """Builds the schedules' kernels and compares each with the expected values, at both ends of memory."""
    data = Data.draw(case)
    kernels = FencedKernels([(s, case.problem) for s in schedules], target, folder)
    for number, schedule in enumerate(schedules):
        packed = schedule.pack(case.problem, target, data.weight, data.bias)
        for at_end in (False, True):
            data.check(kernels, number, packed, at_end)
