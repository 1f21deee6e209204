"""The rule on CPUs: register tile x cache block x what a task takes."""

from __future__ import annotations

from math import prod

from convopt.schedules.conv_direct import DirectConv, position_axes
from convopt.schedules.conv_problem import ConvProblem
from convopt.selection.rule import Instance, Machine, Selection, select, size_of
from convopt.targets import CpuTarget


def cpu_rule(problem: ConvProblem, target: CpuTarget, threads: int) -> Selection:
    """The five steps on a CPU, over the direct convolution's configurations.

    Raises:
        ValueError: nothing fits.
    """
    return select(cpu_instances(problem, target), size_of(problem), cpu_machine(target, threads))


def cpu_machine(target: CpuTarget, threads: int) -> Machine:
    """Cores for compute units, vector registers for registers, half of L2 for shared memory.

    A "thread" is an accumulator's lane: the register tile is the block's threads, and the tiles of a thread
    are the register tiles that a task computes. least_threads: 8 accumulators hide the latency of the
    multiply-adds, 4 cycles of 2 units.
    """
    return Machine(
        target.name,
        threads,
        1 << 30,
        target.vector_registers,
        target.l2 // 2,
        target.l2 // 2,
        8 * target.lanes,
        None,
        (1, target.lanes),
        most_resident=1,
    )


def cpu_instances(problem: ConvProblem, target: CpuTarget) -> list[Instance]:
    """The direct convolution's configurations: register tile x cache block x what a task takes."""
    axes = position_axes(problem)
    positions = prod(axis.extent for axis in axes)
    found: list[Instance] = []
    for config in DirectConv.space(problem, target):
        if config.why_not(problem, target) is not None:
            continue
        covered = config.vectors * target.lanes
        unit = config.pixels if config.flat else axes[-1].extent
        tiles_m = max(1, -(-min(config.row_chunk * unit, positions) // config.pixels))
        tiles_n = min(config.feature_chunk, -(-problem.features // covered))
        registers = config.pixels * config.vectors + config.vectors + (not target.fma_from_memory)
        panel = problem.taps * config.channel_block * covered * 4
        found.append(
            Instance(
                config, config.pixels * covered, config.pixels, covered, tiles_m, tiles_n,
                config.channel_block, registers, panel,
            )
        )  # fmt: skip
    return found
