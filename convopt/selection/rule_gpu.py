"""The rule on GPUs: their numbers, and the block configurations that it chooses from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from convopt.schedules.conv_problem import ConvProblem
from convopt.schedules.gpu_implicit_gemm import ImplicitGemm
from convopt.schedules.primitives.vector_width import ITEMSIZE
from convopt.selection.gpu_forms import resources
from convopt.selection.rule import Instance, Machine, Selection, select, size_of
from convopt.targets import GpuTarget
from convopt.targets.matrix_units import MATRIX_UNITS

SIDES = (8, 16, 32, 64)  # threads along a side of a block, or waves times the matrix unit's tile
REUSE = (1, 2, 4, 8)  # tiles that a thread computes along a side
DEPTHS = (16, 32, 64)
WAVES = (1, 2, 4)  # of a block along a side
LEAST_WAVES = 4  # active on a compute unit: one for each of its schedulers


def simt_machine(target: GpuTarget) -> Machine:
    """Plain multiply-adds: 16 <= threads along a side <= max/16."""
    return Machine(
        target.name,
        target.compute_units,
        target.most_threads,
        target.registers_per_cu,
        target.shared_per_cu,
        target.shared_per_block,
        LEAST_WAVES * target.wave,
        (16, target.most_threads // 16),
        thread_registers=target.most_registers,
    )


def matrix_machine(target: GpuTarget, unit: tuple[int, int]) -> Machine:
    """A matrix unit: blocks of at least its tile."""
    return replace(simt_machine(target), side=None, unit=unit)


def simt_instances(target: GpuTarget, itemsize: int) -> list[Instance]:
    """Threads along both sides, the tiles of a thread, the depth; two stages in shared memory."""
    found: list[Instance] = []
    for m, n, tiles_m, tiles_n, depth in product(SIDES, SIDES, REUSE, REUSE, DEPTHS):
        config = ImplicitGemm(m * tiles_m, n * tiles_n, depth, tiles_m, tiles_n)
        found.extend(_instance(config, target, (m, n), (tiles_m, tiles_n), itemsize))
    return found


def gpu_rule(problem: ConvProblem, target: GpuTarget, unit: str) -> Selection:
    """The five steps on a GPU. unit: "simt" or a matrix unit's name.

    Raises:
        ValueError: nothing fits.
    """
    itemsize = ITEMSIZE[problem.x.dtype]
    if unit == "simt":
        return select(simt_instances(target, itemsize), size_of(problem), simt_machine(target))
    tile = MATRIX_UNITS[unit].m, MATRIX_UNITS[unit].n
    instances = matrix_instances(target, unit, tile, itemsize)
    return select(instances, size_of(problem), matrix_machine(target, tile))


def matrix_instances(target: GpuTarget, unit: str, tile: tuple[int, int], itemsize: int) -> list[Instance]:
    """Waves along both sides, each with a few of the unit's tiles of tile[0] x tile[1] outputs."""
    found: list[Instance] = []
    for waves_m, waves_n, tiles_m, tiles_n, depth in product(WAVES, WAVES, REUSE, REUSE, DEPTHS):
        part_m, part_n = tile[0] * tiles_m, tile[1] * tiles_n
        config = ImplicitGemm(waves_m * part_m, waves_n * part_n, depth, part_m, part_n, unit=unit)
        covered = (waves_m * tile[0], waves_n * tile[1])
        found.extend(_instance(config, target, covered, (tiles_m, tiles_n), itemsize))
    return found


def _instance(
    config: ImplicitGemm, target: GpuTarget, covered: tuple[int, int], tiles: tuple[int, int], itemsize: int
) -> Iterator[Instance]:
    """None or one: a block's registers are given out in the target's steps."""
    taken = resources(config, target, itemsize)
    if taken is not None and taken.threads % target.wave == 0:
        step = target.register_step
        registers = -(-taken.registers // step) * step * taken.threads
        yield Instance(config, taken.threads, *covered, *tiles, config.block_k, registers, taken.shared)
