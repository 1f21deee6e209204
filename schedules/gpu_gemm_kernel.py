"""The main kernel of the implicit GEMM: one function for every configuration and problem. Needs tvm."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tvm.tirx.script.builder import ir as T

from convopt.schedules.base import TensorView
from convopt.schedules.conv_problem import ConvProblem
from convopt.schedules.gpu_gemm_limits import MOST_INDEX, registers
from convopt.schedules.gpu_gemm_problem import GemmProblem
from convopt.schedules.primitives import gpu_emit, pipeline
from convopt.schedules.primitives.gpu_epilogue import (
    FinalOutput,
    PartialOutput,
    TileEpilogue,
    operands_of,
)
from convopt.schedules.primitives.gpu_sources import (
    ImageRows,
    MatrixRows,
    PackedRows,
    Source,
    TileLoader,
)
from convopt.schedules.primitives.shared_tile import StagedOperands
from convopt.schedules.primitives.vector_width import ITEMSIZE

if TYPE_CHECKING:
    from convopt.schedules.gpu_implicit_gemm import ImplicitGemm
    from convopt.targets import GpuTarget


def main_kernel(config: ImplicitGemm, problem: ConvProblem, target: GpuTarget, symbol: str) -> Any:
    """The device function: outputs, or partial sums where the reduction is split."""
    math, order = config.math(problem), config.order(problem)
    grid = (order.blocks, problem.groups, config.split_k)
    bytes_ = config.shared_bytes(problem, target)
    dtype = problem.x.dtype
    operands, most = config.operands(problem, target), registers(config, problem)
    with gpu_emit.device_kernel(symbol, operands, grid, math.threads, most) as body:
        pool = gpu_emit.shared(bytes_ // ITEMSIZE[dtype], dtype, bytes_ > target.static_shared)
        row, column = order.tile(body.block[0])
        inside = T.And(row < order.tiles_m, column < order.tiles_n) if order.has_surplus else None
        with gpu_emit.when(inside):
            first = (row * config.block_m, column * config.block_n)
            sums = _reduce(config, problem, target, body, pool, first)
            _finish(config, problem, target, body, pool, first, sums)
    return body.function


def _reduce(
    config: ImplicitGemm,
    problem: ConvProblem,
    target: GpuTarget,
    body: Any,
    pool: Any,
    first: tuple[Any, Any],
) -> Any:
    """The loop over the reduction; the accumulators."""
    (tile_a, tile_b), parts = config.tiles(problem), config.parts(problem)
    features, reduction = config.padded_sizes(problem)
    dtype, size = problem.x.dtype, ITEMSIZE[problem.x.dtype]
    exact = _exact(config, problem)
    group, thread = body.block[1], body.thread
    x, weight, *_ = operands_of(problem, body.buffers, config.split_k > 1)
    image = ImageRows(problem, x, group, config.block_k, exact[0])
    a = TileLoader(tile_a, image, thread, first[0], _checked_bytes(problem.x, target))
    rows: Source = PackedRows(weight, dtype, group, features, reduction)
    if isinstance(problem, GemmProblem):
        whole = problem.taps * problem.channels % config.block_k == 0
        rows = MatrixRows(weight, problem.b, group, (exact[1], whole))
    b = TileLoader(tile_b, rows, thread, first[1])
    sums = config.math(problem).emit(StagedOperands(target, pool, dtype, thread, tile_a, tile_b))
    begin, count = parts.range(body.block[2])
    base_b = config.stages * tile_a.elements

    def load(tile: Any) -> None:
        a.load((begin + tile) * config.block_k)
        b.load((begin + tile) * config.block_k)

    def keep(slot: Any) -> None:
        a.store(pool, slot * tile_a.elements)
        b.store(pool, base_b + slot * tile_b.elements)

    def copy(tile: Any, slot: Any) -> None:
        first_k = (begin + tile) * config.block_k
        a.copy(pool, slot * tile_a.elements, first_k, size)
        b.copy(pool, base_b + slot * tile_b.elements, first_k, size)

    def compute(slot: Any) -> None:
        sums.multiply_add(slot * tile_a.elements, base_b + slot * tile_b.elements)

    if config.async_copy:
        pipeline.asynchronous(count, config.stages, copy, compute)
    else:
        pipeline.synchronous(count, config.stages, load, keep, compute)
    return sums.sums


def _finish(
    config: ImplicitGemm,
    problem: ConvProblem,
    target: GpuTarget,
    body: Any,
    pool: Any,
    first: tuple[Any, Any],
    sums: Any,
) -> None:
    """From the accumulators to the output, or to the partial sums."""
    math, split, exact = config.math(problem), config.split_k > 1, _exact(config, problem)
    _, _, bias, others, workspace, y = operands_of(problem, body.buffers, split)
    output: Any = FinalOutput(problem, target, bias, others, y, config.padded_sizes(problem)[0])
    if split:
        part = None if config.atomic else body.block[2]
        output = PartialOutput(problem, target, workspace, part, config.stores(problem)[0])
    end = TileEpilogue(problem, target, output, body.block[1], *first, body.thread)
    if not config.through_shared:
        end.direct(math, sums, exact)
        return
    stride = config.block_n + config.pad[2]
    if config.stages == 1 or config.async_copy:
        gpu_emit.barrier()  # the last tile has been read by all
    strip = gpu_emit.reinterpreted(pool, math.strip_rows * stride, "float32")
    end.through_shared(math, sums, strip, stride, exact)


def _checked_bytes(view: TensorView, target: GpuTarget) -> int:
    """Of the view's memory, where HIP's buffer loads can check them: offsets of 31 bits from element 0 on."""
    nbytes = (view.reach + 1) * ITEMSIZE[view.dtype]
    return nbytes if target.kind == "hip" and min(view.strides) >= 0 and nbytes <= MOST_INDEX else 0


def _exact(config: ImplicitGemm, problem: ConvProblem) -> tuple[bool, bool]:
    """Whether whole tiles cover the pixels, and the output channels."""
    return problem.pixels % config.block_m == 0, problem.features % config.block_n == 0
