"""Instances of every GPU kernel family, of sizes that use all of their code, for the compilers to judge."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from convopt.schedules import gpu_pointwise, gpu_pool, gpu_reduce, gpu_resize, gpu_softmax
from convopt.schedules.base import TensorView, row_major
from convopt.schedules.gpu_conv_depthwise import GpuDepthwise
from convopt.schedules.gpu_conv_direct import GpuDirectConv
from convopt.schedules.gpu_gemm_problem import GemmProblem, gemm_problem
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
from convopt.targets import GpuTarget
from tests.compile_gate import Instance
from tests.schedules.conv_cases import SUM_RELU, Case

SWISH = Expression(2, (Op("add", (0, 1)), Op("sigmoid", (2,)), Op("mul", (2, 3))), (4,))


def channels_last(n: int, c: int, h: int, w: int, dtype: str) -> TensorView:
    """(n, c, 1, h, w)."""
    return TensorView((n, c, 1, h, w), (c * h * w, 1, c * h * w, c * w, c), dtype)


def families(dtype: str, target: GpuTarget) -> Iterator[Instance]:
    """Every instance that a family's space or default has, but of the implicit GEMM."""
    makers: tuple[Callable[[str, GpuTarget], Iterator[Instance]], ...] = (
        _depthwise, _direct, _transposes, _im2col, _simple, _reductions, _resize, _products,
    )  # fmt: skip
    for make in makers:
        yield from make(dtype, target)


def _depthwise(dtype: str, target: GpuTarget) -> Iterator[Instance]:
    case = Case(1, 1, (1, 28, 30), (1, 3, 3), begin=(0, 1, 1), end=(0, 1, 1), groups=144, batch=2,
                epilogue=SUM_RELU, others=("full",), x_dtype=dtype, y_dtype=dtype)  # fmt: skip
    strided = replace(
        case, kernel=(1, 5, 5), strides=(1, 2, 2), others=(), epilogue=Case(1, 1, (1, 1, 1)).epilogue
    )
    for problem in (case.problem, strided.problem):
        for schedule in GpuDepthwise.space(problem, target):
            yield Instance(schedule, problem)


def _direct(dtype: str, target: GpuTarget) -> Iterator[Instance]:
    case = Case(20, 27, (1, 9, 9), (1, 3, 3), begin=(0, 1, 1), end=(0, 1, 1), x_dtype=dtype, y_dtype=dtype)
    yield Instance(GpuDirectConv(), case.problem)


def _transposes(dtype: str, target: GpuTarget) -> Iterator[Instance]:
    last = channels_last(4, 64, 30, 30, dtype)
    planar = row_major(last.shape, dtype)
    for vector in (True, False):
        for problem in (copy_problem(planar, last), copy_problem(last, planar)):
            yield Instance(GpuTranspose(vector), problem)


def _im2col(dtype: str, target: GpuTarget) -> Iterator[Instance]:
    case = Case(16, 1, (1, 28, 30), (1, 3, 3), begin=(0, 1, 1), end=(0, 1, 1), batch=2, x_dtype=dtype)
    for conv in (case.problem, replace(case, channels=3, x_planar=True).problem):
        problem = Im2colProblem(
            conv.x, conv.y.shape[2:5], conv.kernel, conv.strides, conv.dilations, conv.pads
        )  # type: ignore[arg-type]
        for shared_loads in (True, False):
            yield Instance(GpuIm2col(shared_loads), problem)


def _simple(dtype: str, target: GpuTarget) -> Iterator[Instance]:
    for shape in ((3, 7, 16), (2, 5, 7)):
        view = row_major(shape, dtype)
        bias = TensorView(shape, (0, 0, 1), dtype)
        sums = PointwiseProblem((view, bias), (view,), SWISH)
        yield Instance(gpu_pointwise.default(sums, target), sums)
    for channels in (64, 3):
        x, y = channels_last(2, channels, 29, 31, dtype), channels_last(2, channels, 15, 16, dtype)
        for mode in ("max", "average"):
            pool = PoolProblem(
                x, y, (1, 3, 3), (1, 2, 2), (1, 1, 1), (0, 1, 1), (0, 1, 1), mode, mode == "average"
            )  # type: ignore[arg-type]
            yield Instance(gpu_pool.default(pool, target), pool)


def _reductions(dtype: str, target: GpuTarget) -> Iterator[Instance]:
    for shape, axes in (((2, 300, 40), (1,)), ((4, 6, 1000), (2,)), ((2, 64, 28, 28), (2, 3))):
        x = row_major(shape, dtype)
        y = row_major(tuple(1 if d in axes else n for d, n in enumerate(shape)), dtype)
        for op in ("mean", "max", "l2"):
            problem = ReduceProblem(x, y, axes, op)
            yield Instance(gpu_reduce.default(problem, target), problem)
        for logarithm in (False, True):
            softmax = SoftmaxProblem(x, x, axes, logarithm=logarithm)
            yield Instance(gpu_softmax.default(softmax, target), softmax)


def _resize(dtype: str, target: GpuTarget) -> Iterator[Instance]:
    x, y = (TensorView((1, 16, n, n), (16 * n * n, 1, 16 * n, 16), dtype) for n in (14, 31))
    for mode in ("nearest", "linear"):
        problem = ResizeProblem(x, y, (2, 3), mode)  # type: ignore[arg-type]
        yield Instance(gpu_resize.default(problem, target), problem)


def _products(dtype: str, target: GpuTarget) -> Iterator[Instance]:
    """Batched products of two computed matrices, and a convolution with a computed weight: of every unit, the
    first form and the last.
    """
    g, m, n, k = 3, 200, 132, 96
    a, y = row_major((g, m, k), dtype), row_major((g, m, n), dtype)
    rows = row_major((g, n, k), dtype)
    across = TensorView((g, n, k), (n * k, 1, n), dtype)
    case = Case(24, 40, (1, 17, 13), (1, 3, 3), begin=(0, 1, 1), end=(0, 1, 1), x_dtype=dtype, y_dtype=dtype)
    conv = case.problem
    convolution = GemmProblem(
        conv.x, conv.y, conv.kernel, conv.strides, conv.dilations, conv.pads, conv.epilogue, bias=False,
        b=row_major((1, 40, 9 * 24), dtype),
    )  # fmt: skip
    for problem in (gemm_problem(a, rows, y), gemm_problem(a, across, y), convolution):
        space = list(ImplicitGemm.space(problem, target))
        for unit in sorted({s.unit for s in space}):
            forms = [s for s in space if s.unit == unit]
            yield Instance(forms[0], problem)
            yield Instance(forms[-1], problem)
