"""Every kernel family that is no convolution on small shapes, against float64 on the CPU.

Extents with tails; memory as models have it: channels-last for pools and resizes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from convopt.bench.bench_device import BenchDevice
from convopt.errors import ConvoptError
from convopt.schedules.base import TensorView, row_major
from convopt.schedules.gpu_gemm_problem import gemm_problem
from convopt.schedules.gpu_im2col import GpuIm2col
from convopt.schedules.gpu_implicit_gemm import ImplicitGemm
from convopt.schedules.gpu_transpose import GpuTranspose
from convopt.schedules.im2col import Im2colProblem
from convopt.schedules.pointwise_problem import PointwiseProblem, copy_problem
from convopt.schedules.pool_problem import PoolProblem
from convopt.schedules.primitives.expression import Expression, Op
from convopt.schedules.reduce import ReduceProblem
from convopt.schedules.resize import ResizeProblem
from convopt.schedules.softmax import SoftmaxProblem
from convopt.selection.simple import choose_simple
from convopt.selftest.check import TOLERANCE, Check
from convopt.targets import GpuTarget
from convopt.targets.matrix_units import MATRIX_UNITS

Array = np.ndarray[Any, Any]
SHAPE = (2, 24, 9, 11)  # n, c, h, w
SWISH = Expression(2, (Op("add", (0, 1)), Op("sigmoid", (2,)), Op("mul", (2, 3))), (4,))


@dataclass(frozen=True)
class SimpleCase:
    """inputs as they lie in memory; the output's view, of which `expected` has the shape, in float64."""

    name: str
    schedule: Any
    problem: Any
    inputs: Sequence[Array]
    output: TensorView
    expected: Array

    def check(self, bench: BenchDevice) -> Check:
        dtype = self.output.dtype
        name, tolerance = f"{self.name}, {dtype}", TOLERANCE[dtype]
        if (refusal := self.schedule.why_not(self.problem, bench.target)) is not None:
            return Check(name, None, tolerance, reason=refusal)
        y = np.zeros(self.output.size, dtype)
        scratch = self.schedule.workspace_bytes(self.problem, bench.target)
        workspace = [np.zeros(scratch, np.uint8)] if scratch else []
        try:
            bench.run(bench.code(self.schedule, self.problem), [*self.inputs, *workspace], [y])
        except (ConvoptError, MemoryError) as failure:
            return Check(name, None, tolerance, reason=str(failure))
        steps = tuple(s * y.itemsize for s in self.output.strides)
        found = np.lib.stride_tricks.as_strided(y, self.output.shape, steps).astype(np.float64)
        if not np.isfinite(found).all():
            return Check(name, None, tolerance, reason="not finite")
        error = float(np.abs(found - self.expected).max() / np.abs(self.expected).max())
        return Check(name, error, tolerance)


def simple_cases(target: GpuTarget) -> Iterator[SimpleCase]:
    for dtype in ("float32", "float16"):
        yield from _cases(target, dtype)


def _cases(target: GpuTarget, dtype: str) -> Iterator[SimpleCase]:
    rng = np.random.default_rng(0)
    n, c, h, w = SHAPE
    x = rng.uniform(-1, 1, SHAPE).astype(dtype)
    exact, last = x.astype(np.float64), np.ascontiguousarray(x.transpose(0, 2, 3, 1))
    dense, view = row_major(SHAPE, dtype), _channels_last(SHAPE, dtype)

    def simple(
        name: str, problem: Any, inputs: Sequence[Array], output: TensorView, expected: Array
    ) -> SimpleCase:
        return SimpleCase(name, choose_simple(problem, target), problem, inputs, output, expected)

    bias = rng.uniform(-1, 1, c).astype(dtype)
    problem = PointwiseProblem((view, TensorView(SHAPE, (0, 1, 0, 0), dtype)), (view,), SWISH)
    total = exact + bias.astype(np.float64)[:, None, None]
    yield simple("pointwise", problem, [last, bias], view, total / (1 + np.exp(-total)))

    for vector in (True, False):
        extents = (n, c, h, w + 1) if vector else SHAPE  # vectors want multiples of 4
        moved = rng.uniform(-1, 1, extents).astype(dtype)
        to = _channels_last(extents, dtype)
        problem = copy_problem(row_major(extents, dtype), to)
        name = f"transposition by {'vectors' if vector else 'elements'}"
        yield SimpleCase(name, GpuTranspose(vector), problem, [moved], to, moved.astype(np.float64))

    pooled = _channels_last((n, c, 1, 5, 6), dtype)
    deep = _channels_last((n, c, 1, h, w), dtype)
    padded = np.pad(exact, ((0, 0), (0, 0), (1, 1), (1, 1)), constant_values=np.nan)
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))[:, :, ::2, ::2]
    for mode, best in (("max", np.nanmax), ("average", np.nanmean)):
        pool = PoolProblem(deep, pooled, (1, 3, 3), (1, 2, 2), (1, 1, 1), (0, 1, 1), (0, 1, 1), mode)  # type: ignore[arg-type]
        yield simple(f"{mode} pool", pool, [last], pooled, best(windows, axis=(-1, -2))[:, :, None])

    sums = row_major((n, c, 1, 1), dtype)
    reduction = ReduceProblem(dense, sums, (2, 3), "l2")
    yield simple("reduction", reduction, [x], sums, np.sqrt((exact**2).sum((2, 3), keepdims=True)))
    powers = np.exp(exact)
    softmax = SoftmaxProblem(dense, dense, (1,))
    yield simple("softmax", softmax, [x], dense, powers / powers.sum(1, keepdims=True))

    large = _channels_last((n, c, 2 * h, 2 * w), dtype)
    twice = ResizeProblem(view, large, (2, 3), "nearest")
    rows, columns = np.arange(2 * h) // 2, np.arange(2 * w) // 2
    table = np.concatenate([rows * view.strides[2], columns * view.strides[3]]).astype(np.int32)
    yield simple("resize", twice, [last, table], large, exact[:, :, rows][:, :, :, columns])

    # im2col of a 3x3 kernel with dilation 2 along the row
    unfold = Im2colProblem(
        TensorView((1, n, 1, h, w, c), (0, h * w * c, 0, w * c, c, 1), dtype),
        (1, h, w), (1, 3, 3), (1, 1, 1), (1, 1, 2), (0, 1, 2),
    )  # fmt: skip
    bordered = np.pad(last, ((0, 0), (1, 1), (2, 2), (0, 0))).astype(np.float64)
    taps = [bordered[:, r : r + h, 2 * s : 2 * s + w] for r in range(3) for s in range(3)]
    matrix = row_major((n, h, w, 9, c), dtype)
    for shared in (True, False):
        text = f"im2col, {'each input loaded once' if shared else 'each output by itself'}"
        yield SimpleCase(text, GpuIm2col(shared), unfold, [last], matrix, np.stack(taps, 3))

    yield from _products(target, dtype, rng)


def _products(target: GpuTarget, dtype: str, rng: np.random.Generator) -> Iterator[SimpleCase]:
    """A batch of 3 products with tails, right operands along and across the reduction."""
    g, m, n, k = 3, 50, 44, 40
    left = rng.uniform(-1, 1, (g, m, k)).astype(dtype)
    right = rng.uniform(-1, 1, (g, k, n)).astype(dtype)
    expected = left.astype(np.float64) @ right.astype(np.float64)
    y = row_major((g, m, n), dtype)
    across = TensorView((g, n, k), (k * n, 1, n), dtype)
    along = row_major((g, n, k), dtype)
    units = (name for name in target.matrix_units if MATRIX_UNITS[name].takes(dtype, "float32"))
    for unit in ("simt", *units):
        for form, b, array in (
            ("across", across, right),
            ("along", along, np.ascontiguousarray(right.transpose(0, 2, 1))),
        ):
            problem = gemm_problem(row_major((g, m, k), dtype), b, y)
            parts = (2, 2) if unit == "simt" else (32, 32)
            tile = ImplicitGemm(32, 32, 32, *parts, unit=unit).padded(problem, target)
            for schedule in (tile, replace(tile, split_k=2, stages=1)):
                if schedule.why_not(problem, target) is None:
                    name = f"batched GEMM {unit}, B {form} the reduction, split-K {schedule.split_k}"
                    yield SimpleCase(name, schedule, problem, [left, array], y, expected)


def _channels_last(shape: tuple[int, ...], dtype: str) -> TensorView:
    """(n, c, spatial...) with the channels next to each other."""
    c, *spatial = shape[1:]
    strides, step = [], c
    for extent in reversed(spatial):
        strides.append(step)
        step *= extent
    return TensorView(shape, (step, 1, *reversed(strides)), dtype)
