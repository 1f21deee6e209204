"""The cost model of the implicit GEMM on GPUs: seconds and the parts they come from.

    main = the longest of compute, issue, shared, l2, memory + a share of the others
    time = main + prologue + epilogue + reduction + launches

The busiest compute unit gets ceil(blocks / units) blocks and runs `resident` of them at a time: that is wave
quantisation, tails and under-filling in one number. All parts are unclamped: none is held to the roofline,
and none beats it, since blocks are whole tiles and every byte that must move is counted once at least.

What the parts know: tiles that a few waves compute too slowly to fill a compute unit, the arithmetic of
addresses, registers in the chip's steps, shared memory, slots for waves, L2 hits from the order of the
blocks, the taps that read one input again, split-K's partial sums.
Nothing here was fitted to a measurement on a GPU; constants are the architectures' public figures.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from convopt.schedules.conv_problem import ConvProblem
from convopt.schedules.gpu_gemm_problem import GemmProblem
from convopt.schedules.gpu_implicit_gemm import L2_BYTES_PER_CLOCK, LAUNCH_SECONDS, ImplicitGemm
from convopt.schedules.primitives.vector_width import ITEMSIZE, access_width
from convopt.selection.gpu_forms import BLOCKS_M, BLOCKS_N, DEPTHS, Column, Forms
from convopt.targets import GpuTarget

SHARED_BYTES_PER_CLOCK = 128  # of a compute unit: 32 banks of 4 bytes
SCHEDULERS = 4  # of a compute unit, each with its own vector and matrix unit
LOAD_CLOCKS = 400  # from a load to its data out of L2
SYNC_CLOCKS = 200  # of a block per tile of the reduction: two barriers, shared memory's latency
LOAD_INSTRUCTIONS = (
    16  # of a wave for 16 bytes a lane: im2col's indices, bounds, load, store to shared memory
)
LANES_PER_CLOCK = 16  # of a scheduler's vector unit
IMPERFECT = 0.05  # of the main loop's shorter parts: what does not overlap
LATENCY = 0.6e-6  # seconds from a load to its data out of memory: 800 to 1000 clocks
L2_SHARE = 0.75  # of L2 that data may fill and still be found again

Bound = Literal["compute", "issue", "shared", "l2", "memory"]
BOUNDS: tuple[Bound, ...] = ("compute", "issue", "shared", "l2", "memory")


@dataclass(frozen=True)
class GpuEstimate:
    """Predicted seconds of one configuration.

    compute, issue (instructions that load), shared, l2, memory: of the main loop. waves: blocks / those that
    the chip holds at once. rounds: blocks that the busiest compute unit computes one after the other, times
    `resident`. l2_hit: loads served by L2. occupancy: resident waves / slots.
    """

    seconds: float
    compute: float
    issue: float
    shared: float
    l2: float
    memory: float
    prologue: float
    epilogue: float
    reduction: float
    launches: float
    blocks: int
    resident: int
    rounds: int
    waves: float
    occupancy: float
    l2_hit: float
    bytes_from_memory: int

    @property
    def bound(self) -> Bound:
        """What the main loop waits for."""
        return max(BOUNDS, key=lambda name: float(getattr(self, name)))


def peak_flops(target: GpuTarget, unit: str) -> float:
    """FLOP/s of the whole chip."""
    return target.compute_units * target.clock * target.flops(unit)


def roofline(problem: ConvProblem, target: GpuTarget, unit: str) -> float:
    """The least seconds: the larger of FLOP / peak and bytes that must move / bandwidth."""
    return max(problem.flops / peak_flops(target, unit), least_bytes(problem) / target.memory_rate)


def least_bytes(problem: ConvProblem) -> int:
    """Inputs that are read, weights and outputs, once each."""
    size = ITEMSIZE[problem.x.dtype]
    reduction = problem.taps * problem.channels
    read = min(problem.x.size, problem.groups * problem.pixels * reduction)
    weights = problem.groups * problem.features * reduction
    return (read + weights) * size + problem.y.size * ITEMSIZE[problem.y.dtype]


def unit_for(problem: ConvProblem, target: GpuTarget) -> str:
    """The chip's preferred matrix unit that takes the input's type, else plain multiply-adds.

    Where there is a unit, multiply-adds are never faster: they share all but the arithmetic.
    """
    return target.unit_of(problem.x.dtype, problem.arithmetic)


def price(
    problem: ConvProblem, target: GpuTarget, f: Forms, split: Column, swizzle: Column
) -> dict[str, Column]:
    """Every part of the estimate for forms x split x swizzle, columns of equal length.

    swizzle: (count, 2), columns and rows of tiles in a group.
    """
    p, t = problem, target
    size, out_size = ITEMSIZE[p.x.dtype], ITEMSIZE[p.y.dtype]
    m, n, k, groups = p.pixels, p.features, p.taps * p.channels, p.groups
    tiles_m, tiles_n, tiles_k = _up(m, f.block_m), _up(n, f.block_n), _up(k, f.block_k)
    depth = _up(tiles_k, split) * f.block_k
    area = tiles_m * tiles_n
    blocks = area * groups * split
    busiest = _up(blocks, t.compute_units)  # blocks of one compute unit, one after the other or at once
    together = np.minimum(f.resident, busiest)
    waves = f.threads / t.wave

    # Arithmetic: whole tiles; no faster than one block after the other, each on its own waves' schedulers.
    tile_clocks, alone = _clocks(f, t)
    steps = busiest * depth / f.block_k  # tiles of the reduction, over the busiest unit's blocks
    compute = steps / together * np.maximum(together * tile_clocks, alone) / t.clock

    # Instructions that bring the tiles to shared memory; narrow accesses take more of them.
    width_bytes = min(16, access_width(p.x, 5) * size)
    b_bytes = 16 if not isinstance(p, GemmProblem) else min(16, access_width(p.b, 2) * size)
    vectors = f.block_k * size * (f.block_m / width_bytes + f.block_n / b_bytes)
    active = np.minimum(together * waves, SCHEDULERS)
    issue = steps * vectors * LOAD_INSTRUCTIONS / (LANES_PER_CLOCK * active) / t.clock

    # Shared memory: what the waves read, and both tiles written once.
    row_bytes = (f.block_m + f.block_n) * size
    shared_bytes = (waves * f.fetch * size + row_bytes) * depth
    shared = busiest * shared_bytes / SHARED_BYTES_PER_CLOCK / t.clock

    # L2: each block loads both its tiles; narrow loads waste the line.
    width = min(1.0, width_bytes / 4)
    loaded = blocks * row_bytes * depth
    l2_bytes = (f.block_m / width + f.block_n / min(1.0, b_bytes / 4)) * size * depth
    l2 = busiest * l2_bytes / L2_BYTES_PER_CLOCK / t.clock

    # Memory: what is not found in L2, from the area of tiles that run at once.
    window = np.minimum(area, f.resident * t.compute_units)
    rows, columns = _area(window, tiles_m, tiles_n, swizzle)
    windows = area / window
    l2_size = t.l2 * L2_SHARE
    x_bytes, w_bytes = p.x.size // groups * size, n * k * size
    step = max(1, p.x.size // groups // max(1, m * p.channels))  # input pixels per output pixel
    seen = np.minimum(rows * f.block_m * p.channels * step * size, x_bytes)  # of x, by one window
    again = np.where(seen + columns * f.block_n * f.block_k * size * 2 <= l2_size, 1.0, min(p.taps, k))
    a_bytes = windows * np.minimum(seen * again, rows * f.block_m * k * size)
    b_bytes = windows * np.minimum(columns * f.block_n, n) * k * size
    # What fits into L2 with room to spare stays there from one window to the next.
    a_bytes = np.where(x_bytes <= l2_size / 2, np.minimum(a_bytes, x_bytes), a_bytes)
    b_bytes = np.where(w_bytes <= l2_size / 2, np.minimum(b_bytes, w_bytes), b_bytes)
    inputs = np.minimum(groups * (a_bytes + b_bytes), loaded)
    partial = np.where(split > 1, 4.0 * split * m * n * groups, 0.0)
    outputs = float(p.y.size * out_size)
    moved = np.maximum(inputs + np.where(split > 1, 0.0, outputs), least_bytes(p) - outputs * (split > 1))
    memory = (moved + partial) / t.memory_rate

    # Not overlapped: the first tiles of each round, the stores of the last one.
    rounds = _up(busiest, together)
    prologue = rounds * LATENCY
    stored = f.block_m * f.block_n * (2 * 4.0 / SHARED_BYTES_PER_CLOCK + out_size / L2_BYTES_PER_CLOCK)
    epilogue = busiest * stored / together / t.clock
    l2_rate = t.compute_units * L2_BYTES_PER_CLOCK * t.clock
    reading = np.where(partial <= l2_size, partial / l2_rate, partial / t.memory_rate)
    reduction = np.where(split > 1, reading + outputs / t.memory_rate, 0.0)
    launches = LAUNCH_SECONDS * np.where(split > 1, 2.0, 1.0)
    overlapped = (compute, issue, shared, l2, memory)
    longest = np.maximum.reduce(np.broadcast_arrays(*overlapped))
    main = longest + IMPERFECT * (sum(overlapped) - longest)
    return {
        "seconds": main + prologue + epilogue + reduction + launches,
        "compute": compute, "issue": issue, "shared": shared, "l2": l2, "memory": memory,
        "prologue": prologue, "epilogue": epilogue, "reduction": reduction, "launches": launches,
        "blocks": blocks, "resident": f.resident, "rounds": rounds,
        "waves": blocks / (f.resident * t.compute_units),
        "occupancy": f.resident * waves / t.most_waves,
        "l2_hit": 1.0 - np.minimum(inputs / loaded, 1.0),
        "bytes_from_memory": moved + partial,
    }  # fmt: skip


def _up(a: Any, b: Any) -> Any:
    """Whole numbers, rounded up; exact below 2^53."""
    return np.ceil(a / b)


def _clocks(f: Forms, target: GpuTarget) -> tuple[Column, Column]:
    """Of a block's tile of the reduction: at the compute unit's peak, and where it is alone there."""
    peak = 2.0 * f.block_m * f.block_n * f.block_k / target.flops(f.unit)
    alone = peak * SCHEDULERS / np.minimum(f.threads / target.wave, SCHEDULERS) + SYNC_CLOCKS
    return peak, np.maximum(alone, LOAD_CLOCKS / np.maximum(f.stages - 1, 1))


def at_least(problem: ConvProblem, target: GpuTarget, f: Forms, split: Column) -> Column:
    """Seconds that `price` finds at least, in any order of blocks: the parts that cost little to compute.

    f and split may be columns that numpy broadcasts against each other.
    """
    p, t, size = problem, target, ITEMSIZE[problem.x.dtype]
    busiest = _up(tile_count(p, f) * split, t.compute_units)
    tile_clocks, alone = _clocks(f, t)
    row_bytes = (f.block_m + f.block_n) * size
    shared = (f.threads / t.wave * f.fetch * size + row_bytes) * f.block_k / SHARED_BYTES_PER_CLOCK
    together = np.maximum(np.maximum(tile_clocks, shared), row_bytes * f.block_k / L2_BYTES_PER_CLOCK)
    longest = np.maximum(together, alone / np.minimum(f.resident, busiest))
    main = busiest * _up(depth_tiles(p, f), split) * longest / t.clock
    outputs = float(p.y.size * ITEMSIZE[p.y.dtype])
    partial = 4.0 * split * p.pixels * p.features * p.groups
    reading = np.minimum(partial / (t.compute_units * L2_BYTES_PER_CLOCK * t.clock), partial / t.memory_rate)
    moved = np.where(split > 1, least_bytes(p) - outputs + partial, least_bytes(p))
    reduction = np.where(split > 1, reading + outputs / t.memory_rate + LAUNCH_SECONDS, 0.0)
    seconds: Column = np.maximum(main, moved / t.memory_rate) + reduction + LATENCY + LAUNCH_SECONDS
    return seconds * (1 - 1e-9)  # not to be above the estimate by a rounding


def least_seconds(problem: ConvProblem, target: GpuTarget) -> float:
    """What no estimate is below: whole tiles, of the smallest sides that there are, at the peak."""
    peak = peak_flops(target, unit_for(problem, target))
    m, n, k = problem.pixels, problem.features, problem.taps * problem.channels
    tiles = -(-m // BLOCKS_M[0]) * -(-n // BLOCKS_N[0]) * -(-k // DEPTHS[0]) * problem.groups
    multiplied = tiles * BLOCKS_M[0] * BLOCKS_N[0] * DEPTHS[0]
    return max(2 * multiplied / peak, least_bytes(problem) / target.memory_rate) + LAUNCH_SECONDS


def tile_count(problem: ConvProblem, f: Forms) -> Column:
    """Tiles of the output."""
    tiles: Column = _up(problem.pixels, f.block_m) * _up(problem.features, f.block_n) * problem.groups
    return tiles


def depth_tiles(problem: ConvProblem, f: Forms) -> Column:
    """Tiles of the reduction."""
    tiles: Column = _up(problem.taps * problem.channels, f.block_k)
    return tiles


def _area(window: Column, tiles_m: Column, tiles_n: Column, swizzle: Column) -> tuple[Column, Column]:
    """(rows, columns) of tiles that `window` consecutive blocks cover, in `swizzle.TileOrder`'s order."""
    x, y = np.minimum(swizzle[:, 0], tiles_n), np.minimum(swizzle[:, 1], tiles_m)
    band = tiles_n * y  # a row of groups
    whole = window >= band
    columns = np.where(whole, tiles_n, np.minimum(tiles_n, _up(window, x * y) * x))
    # Less than a group covers some of its rows.
    rows = np.where(whole, _up(window, band) * y, np.minimum(y, _up(window, x)))
    return np.minimum(rows, tiles_m), columns


def estimate_at(parts: dict[str, Column], at: int) -> GpuEstimate:
    whole = {"blocks", "resident", "rounds", "bytes_from_memory"}
    values: dict[str, Any] = {
        name: (int if name in whole else float)(column[at]) for name, column in parts.items()
    }
    return GpuEstimate(**values)


def estimate(config: ImplicitGemm, problem: ConvProblem, target: GpuTarget) -> GpuEstimate:
    """Of one configuration. ValueError where it does not fit the chip."""
    form = Forms.of(config, target, ITEMSIZE[problem.x.dtype])
    parts = price(problem, target, form, np.array([config.split_k]), np.array([config.swizzle]))
    return estimate_at({name: np.broadcast_to(column, 1) for name, column in parts.items()}, 0)
