"""What is known of a tiled GPU kernel without running it: for tables, and for choosing among schedules."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from convopt.schedules.conv_problem import ConvProblem
from convopt.schedules.gpu_implicit_gemm import ImplicitGemm
from convopt.schedules.primitives.l2_hit_rate import Panels, l2_hit_rate
from convopt.schedules.primitives.smem_padding import (
    Banks,
    epilogue_degree,
    read_degree,
    write_degree,
)
from convopt.schedules.primitives.vector_width import ITEMSIZE

if TYPE_CHECKING:
    from convopt.targets import GpuTarget

MOST_STEPS = 64  # of the reduction in the L2 simulation


@dataclass(frozen=True)
class ConflictDegrees:
    """Most words of a bank wanted at once, 1 being none: filling the tiles, reading them, the epilogue."""

    writes: int
    reads: int
    epilogue: int


def conflict_degrees(schedule: ImplicitGemm, problem: ConvProblem, target: GpuTarget) -> ConflictDegrees:
    """Exact, from the addresses that the kernel uses."""
    math, size = schedule.math(problem), ITEMSIZE[problem.x.dtype]
    banks = Banks(target.wave, target.banks, target.bank_bytes)
    tiles = schedule.tiles(problem)
    epilogue = 1
    if schedule.through_shared:
        stride = schedule.block_n + schedule.pad[2]
        epilogue = epilogue_degree(math, stride, *schedule.stores(problem), banks)
    return ConflictDegrees(
        max(write_degree(tile, size, banks) for tile in tiles),
        max(read_degree(math, tile, o, size, banks) for tile, o in zip(tiles, "ab", strict=True)),
        epilogue,
    )


@dataclass(frozen=True)
class KernelReport:
    """Of the main kernel. `unpadded`, `unswizzled`: the same without the pads, without the swizzle."""

    blocks: int
    threads: int
    registers: int  # estimated, 32-bit per thread
    shared: int  # bytes of a block
    occupancy: float  # resident waves against slots for waves
    conflicts: ConflictDegrees
    unpadded: ConflictDegrees
    l2_hit_rate: float
    unswizzled: float
    flops: int
    bytes: int  # of the operands, each once

    @classmethod
    def of(cls, schedule: ImplicitGemm, problem: ConvProblem, target: GpuTarget) -> KernelReport:
        launch, size = schedule.launch(problem, target), ITEMSIZE[problem.x.dtype]
        plain = replace(schedule, pad=(0, 0, 0), down=(1, 1))
        weights = problem.groups * problem.features * problem.taps * problem.channels
        moved = (problem.x.size + weights) * size + problem.y.size * ITEMSIZE[problem.y.dtype]
        return cls(
            launch.blocks,
            launch.threads,
            launch.registers,
            launch.shared,
            launch.occupancy(target),
            conflict_degrees(schedule, problem, target),
            conflict_degrees(plain, problem, target),
            hit_rate(schedule, problem, target),
            hit_rate(replace(schedule, swizzle=(1, 1)), problem, target),
            problem.flops,
            moved,
        )


def hit_rate(schedule: ImplicitGemm, problem: ConvProblem, target: GpuTarget) -> float:
    """L2 hits of the main kernel's loads, see `l2_hit_rate`; groups and parts run one after the other.

    The im2col view of the input is taken for a matrix: what neighbouring taps share is not counted.
    """
    steps = schedule.parts(problem).longest
    together = -(-steps // MOST_STEPS)  # the same bytes in fewer, larger panels
    depth = together * schedule.block_k * ITEMSIZE[problem.x.dtype]
    panels = Panels(schedule.block_m * depth, schedule.block_n * depth, -(-steps // together))
    resident = max(1, schedule.launch(problem, target).resident(target))
    return l2_hit_rate(schedule.order(problem), panels, target, resident)
