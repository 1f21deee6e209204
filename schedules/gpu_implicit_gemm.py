"""Convolution as an implicit GEMM on GPUs: tiles of pixels by channels, the im2col view made while loading.

    grid (tiles in swizzled order, groups, parts of the reduction)
      per tile of the reduction, `stages` tiles deep in shared memory:
        A[block_m, block_k] from the input by im2col's arithmetic, B[block_n, block_k] from packed weights
        accumulators += A @ B.T        (multiply-adds, or a matrix unit)
      epilogue, through shared memory or directly; or partial sums, and a second kernel

Every primitive is a field and can be switched off alone: swizzle (1, 1), split_k 1, pad (0, 0, 0), stages 1,
vector 1, epilogue "direct".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from convopt.schedules.base import Estimate, TensorView
from convopt.schedules.conv_problem import Array, ConvProblem
from convopt.schedules.gpu_gemm_limits import registers, why_not
from convopt.schedules.gpu_gemm_problem import GemmProblem
from convopt.schedules.gpu_gemm_space import forms, shapes
from convopt.schedules.primitives.matrix_tile import MatrixTile
from convopt.schedules.primitives.occupancy import Launch
from convopt.schedules.primitives.shared_tile import SharedTile
from convopt.schedules.primitives.simt import SimtTile
from convopt.schedules.primitives.smem_padding import Banks, epilogue_pad, padded_tile
from convopt.schedules.primitives.split_k import (
    Parts,
    partial_elements,
    reduce_kernel,
    workspace_view,
    zero_kernel,
)
from convopt.schedules.primitives.swizzle import TileOrder
from convopt.schedules.primitives.vector_width import ITEMSIZE, access_width
from convopt.targets.matrix_units import MATRIX_UNITS

if TYPE_CHECKING:
    from convopt.targets import GpuTarget

L2_BYTES_PER_CLOCK = 64  # that a CU gets from L2: one line of a NVIDIA or CDNA part
LAUNCH_SECONDS = 4e-6


@dataclass(frozen=True)
class ImplicitGemm:
    """One configuration. Tiles in elements; part_m x part_n: of a thread (multiply-adds) or of a wave.

    unit: "simt" or a matrix unit's name. pad: unused elements behind each row of A's, B's and the epilogue's
    shared tile. vector: bytes that a load may take. down: see `SharedTile`, for A and B.
    """

    name: ClassVar[str] = "implicit_gemm"
    block_m: int
    block_n: int
    block_k: int
    part_m: int
    part_n: int
    stages: int = 2
    split_k: int = 1
    swizzle: tuple[int, int] = (1, 1)
    pad: tuple[int, int, int] = (0, 0, 0)
    down: tuple[int, int] = (1, 1)
    unit: str = "simt"
    atomic: bool = False
    async_copy: bool = False
    epilogue: str = "shared"
    vector: int = 16

    @classmethod
    def space(cls, problem: ConvProblem, target: GpuTarget, level: str = "default") -> Iterator[ImplicitGemm]:
        """The configurations that do not refuse the problem, padded against bank conflicts.

        level "all" adds each primitive switched off: pads, wide loads, the epilogue through shared memory.
        """
        for unit in ("simt", *(u for u in target.matrix_units if u in MATRIX_UNITS)):
            for shape in shapes(unit, problem):
                plain = cls(*shape, stages=1, unit=unit)
                if plain.why_not(problem, target) is None:
                    yield from forms(plain.padded(problem, target), problem, target, level)

    def padded(self, problem: ConvProblem, target: GpuTarget) -> ImplicitGemm:
        """With the pads and orders of lanes that `smem_padding` finds."""
        math, size, banks = self.math(problem), ITEMSIZE[problem.x.dtype], _banks(target)
        a, b = (
            padded_tile(tile, math, operand, size, banks)
            for tile, operand in zip(self.tiles(problem), "ab", strict=True)
        )
        pad_c = epilogue_pad(math, *self.stores(problem), banks)
        return replace(self, pad=(a.pad, b.pad, pad_c), down=(a.down, b.down))

    def stores(self, problem: ConvProblem) -> tuple[int, bool]:
        """(channels per store of the epilogue, whether neighbouring threads store neighbouring channels)."""
        if self.split_k > 1:
            return (4 if problem.features % 4 == 0 and not self.atomic else 1), True
        return access_width(problem.y, 5), problem.y.strides[5] == 1

    # What follows from the configuration and the problem

    def math(self, problem: ConvProblem) -> SimtTile | MatrixTile:
        """The tile arithmetic: what a thread or a wave computes, reads and holds."""
        return _math(self.unit, self.shape, ITEMSIZE[problem.x.dtype])

    @property
    def shape(self) -> tuple[int, int, int, int, int]:
        return (self.block_m, self.block_n, self.block_k, self.part_m, self.part_n)

    def tiles(self, problem: ConvProblem) -> tuple[SharedTile, SharedTile]:
        """The shared tiles of A and B."""
        threads = self.math(problem).threads
        size = ITEMSIZE[problem.x.dtype]
        b_width = self.vector // size or 1
        if isinstance(problem, GemmProblem):
            b_width = access_width(problem.b, 2, self.vector)
        widths = (access_width(problem.x, 5, self.vector), b_width)
        a, b = (
            SharedTile(rows, self.block_k, pad, min(width, self.block_k), down, threads)
            for rows, pad, width, down in zip(
                (self.block_m, self.block_n), self.pad, widths, self.down, strict=False
            )
        )
        return a, b

    def order(self, problem: ConvProblem) -> TileOrder:
        return TileOrder(
            -(-problem.pixels // self.block_m), -(-problem.features // self.block_n), self.swizzle
        )

    def parts(self, problem: ConvProblem) -> Parts:
        return Parts(-(-problem.taps * problem.channels // self.block_k), self.split_k)

    def shared_bytes(self, problem: ConvProblem, target: GpuTarget) -> int:
        a, b = self.tiles(problem)
        size = ITEMSIZE[problem.x.dtype]
        main = self.stages * (a.elements + b.elements) * size
        if not self.through_shared:
            return main
        strip = self.math(problem).strip_rows * (self.block_n + self.pad[2]) * 4
        return max(main, int(strip))

    @property
    def through_shared(self) -> bool:
        """Whether accumulators go through shared memory: atomic sums only where they can't go directly."""
        opaque = self.unit != "simt" and MATRIX_UNITS[self.unit].opaque
        return opaque or (self.epilogue == "shared" and not (self.split_k > 1 and self.atomic))

    def workspace_bytes(self, problem: ConvProblem, target: GpuTarget) -> int:
        if self.split_k == 1:
            return 0
        return 4 * partial_elements(problem, 1 if self.atomic else self.split_k)

    def operands(self, problem: ConvProblem, target: GpuTarget) -> tuple[TensorView, ...]:
        """The views of p0, p1, ...: x, packed weights, [bias], others..., [workspace], y."""
        packed = TensorView((1,), (1,), problem.x.dtype)
        weight = problem.b if isinstance(problem, GemmProblem) else packed
        bias = (TensorView((1,), (1,), "float32"),) if problem.bias else ()
        elements = self.workspace_bytes(problem, target) // 4
        workspace = (workspace_view(elements),) if elements else ()
        return (problem.x, weight, *bias, *problem.others, *workspace, problem.y)

    def pack(self, problem: ConvProblem, target: GpuTarget, weight: Array, bias: Array | None) -> list[Array]:
        """(g, k, c, kd, kh, kw) to (g, k, kd kh kw c), both padded to tiles, as x's type; (g, k) likewise.

        bfloat16 comes as its bits in uint16.
        """
        g, k = weight.shape[:2]
        rows = weight.transpose(0, 1, 3, 4, 5, 2).reshape(g, k, -1)
        n, reduction = self.padded_sizes(problem)
        packed = np.zeros((g, n, reduction), np.float32)
        packed[:, :k, : rows.shape[2]] = rows
        result = [_as_stored(packed, problem.x.dtype)]
        if bias is not None:
            padded = np.zeros((g, n), np.float32)
            padded[:, :k] = bias
            result.append(padded)
        return result

    def padded_sizes(self, problem: ConvProblem) -> tuple[int, int]:
        """(output channels, reduction) rounded up to tiles."""
        order, parts = self.order(problem), self.parts(problem)
        return order.tiles_n * self.block_n, parts.tiles * self.block_k

    def why_not(self, problem: ConvProblem, target: GpuTarget) -> str | None:
        return why_not(self, problem, target)

    def launch(self, problem: ConvProblem, target: GpuTarget) -> Launch:
        """What the estimates need to know of the main kernel."""
        math, order = self.math(problem), self.order(problem)
        return Launch(
            order.tiles_m * order.tiles_n * problem.groups * self.split_k,
            math.threads,
            registers(self, problem),
            self.shared_bytes(problem, target),
        )

    def cost(self, problem: ConvProblem, target: GpuTarget) -> Estimate:
        """Seconds: whole rounds of blocks, the slowest of arithmetic, L2 and memory. It ranks, no more."""
        size, launch = ITEMSIZE[problem.x.dtype], self.launch(problem, target)
        resident = max(1, launch.resident(target))
        rounds = -(-launch.blocks // (resident * target.compute_units))
        depth = self.parts(problem).longest * self.block_k
        rate = target.flops(self.unit)
        flops = rounds * resident * 2 * self.block_m * self.block_n * depth / rate
        loaded = launch.blocks * (self.block_m + self.block_n) * depth * size
        through_l2 = loaded / (L2_BYTES_PER_CLOCK * target.compute_units)
        weights = problem.groups * problem.features * problem.taps * problem.channels * size
        outputs = problem.y.size * ITEMSIZE[problem.y.dtype]
        partial = 2 * self.workspace_bytes(problem, target)
        memory = (problem.x.size * size + weights + outputs + partial) / target.memory_rate
        launches = 1 + (self.split_k > 1) * (1 + self.atomic)
        return Estimate(max(flops, through_l2) / target.clock, memory, launches * LAUNCH_SECONDS)

    def apply(self, problem: ConvProblem, target: GpuTarget, symbol: str) -> tuple[Any, ...]:
        from convopt.schedules.gpu_gemm_kernel import main_kernel

        operands, (features, _) = self.operands(problem, target), self.padded_sizes(problem)
        if self.split_k == 1:
            return (main_kernel(self, problem, target, f"{symbol}_0"),)
        kept = 1 if self.atomic else self.split_k
        main = main_kernel(self, problem, target, f"{symbol}_{int(self.atomic)}")
        first = (zero_kernel(f"{symbol}_0", operands, partial_elements(problem, 1)),) if self.atomic else ()
        last = f"{symbol}_{1 + int(self.atomic)}"
        return (*first, main, reduce_kernel(last, problem, target, operands, features, kept))


@lru_cache(maxsize=1024)
def _math(unit: str, shape: tuple[int, int, int, int, int], itemsize: int) -> SimtTile | MatrixTile:
    block_m, block_n, block_k, part_m, part_n = shape
    if unit != "simt":
        return MatrixTile(MATRIX_UNITS[unit], *shape)
    return SimtTile(block_m, block_n, part_m, part_n, min(16 // itemsize, block_k))


def _banks(target: GpuTarget) -> Banks:
    return Banks(target.wave, target.banks, target.bank_bytes)


def _as_stored(array: Array, dtype: str) -> Array:
    if dtype != "bfloat16":
        return array.astype(dtype)
    bits = array.view(np.uint32)
    rounded: Array = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return rounded
