"""The implicit GEMM's tile forms on a GPU, and what each takes of a compute unit: the hard filter.

Columns of numpy arrays, one entry per form: the model prices all of them at once. They depend on the chip and
on the element, not on the convolution. Whole numbers in float64, in which numpy divides several times faster
than in int64 and, below 2^53, as exactly.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import lru_cache
from itertools import product
from typing import Any

import numpy as np

from convopt.schedules.gpu_gemm_limits import ADDRESS_REGISTERS
from convopt.schedules.gpu_implicit_gemm import ImplicitGemm
from convopt.schedules.primitives.matrix_tile import MatrixTile
from convopt.schedules.primitives.occupancy import resident
from convopt.schedules.primitives.simt import SimtTile
from convopt.targets import GpuTarget
from convopt.targets.matrix_units import MATRIX_UNITS

Column = np.ndarray[Any, Any]

BLOCKS_M = (32, 64, 128, 256)
BLOCKS_N = (16, 32, 64, 128, 256)
DEPTHS = (16, 32, 64)
WAVES = (1, 2, 4, 8, 16)  # of a block
SIMT_PARTS = (2, 4, 8)  # outputs of a thread along a side
PAD_BYTES = 16  # behind each row of a shared tile, against bank conflicts


@dataclass(frozen=True)
class Forms:
    """part_m, part_n: of a wave's (matrix unit) or a thread's (multiply-adds) outputs. fetch: distinct rows
    of A and B that a wave reads from shared memory for each element of the reduction.
    """

    unit: str
    block_m: Column
    block_n: Column
    block_k: Column
    part_m: Column
    part_n: Column
    stages: Column
    threads: Column
    registers: Column
    shared: Column
    resident: Column
    fetch: Column

    def config(self, index: int, **more: Any) -> ImplicitGemm:
        """The form as the schedule's configuration, without pads."""
        names = ("block_m", "block_n", "block_k", "part_m", "part_n", "stages")
        values: dict[str, Any] = {name: int(getattr(self, name)[index]) for name in names}
        return ImplicitGemm(**values, unit=self.unit, **more)

    def take(self, index: Any) -> Forms:
        """The forms at these places."""
        names = [field.name for field in fields(self)][1:]
        return Forms(self.unit, **{name: getattr(self, name)[index] for name in names})

    @staticmethod
    def of(config: ImplicitGemm, target: GpuTarget, itemsize: int) -> Forms:
        """One configuration as a form."""
        c, one = config, np.ones(1, np.int64)
        math = _math(
            c.unit, c.block_m * one, c.block_n * one, c.block_k, c.part_m * one, c.part_n * one, itemsize
        )
        table = _table(math, c.block_k, c.stages, _pads(c, itemsize), target, itemsize)
        if not table[RESIDENT, 0]:
            raise ValueError(f"{config} does not fit {target.name}")
        return Forms(c.unit, *table)


RESIDENT = 9  # the place of the column


@lru_cache(maxsize=64)
def forms(target: GpuTarget, unit: str, itemsize: int) -> Forms:
    """Those that fit a compute unit at least once, in the order of their blocks, depths, parts and stages."""
    blocks = list(product(BLOCKS_M, BLOCKS_N))
    shares = np.array([_parts(unit, *block) for block in blocks])  # (blocks, ways to share one, 2)
    part_m, part_n = shares.reshape(-1, 2).T
    block_m, block_n = np.repeat(np.array(blocks), shares.shape[1], axis=0).T
    stages = np.array((2, 3) if target.async_copy else (2,))[:, None]
    tables = [
        _table(
            _math(unit, block_m, block_n, depth, part_m, part_n, itemsize),
            depth, stages, PAD_BYTES / itemsize, target, itemsize,
        )
        for depth in DEPTHS
    ]  # fmt: skip
    stacked = np.stack(tables).reshape(len(DEPTHS), -1, len(stages), *shares.shape[:2])
    table = stacked.transpose(1, 3, 0, 4, 2).reshape(stacked.shape[1], -1)
    return Forms(unit, *table[:, table[RESIDENT] > 0])


def _parts(unit: str, block_m: int, block_n: int) -> list[tuple[int, int]]:
    """The ways to share a block among waves or threads."""
    if unit == "simt":
        return [(m, n) for m, n in product(SIMT_PARTS, SIMT_PARTS) if m <= 2 * n and n <= 2 * m]
    found = []
    for waves in WAVES:
        # Of equally many waves, the squarest parts read the least from shared memory.
        shares = [(block_m // w, block_n // (waves // w)) for w in WAVES if w <= waves]
        found.append(min(shares, key=lambda part: (part[0] + part[1], part)))
    return found


@dataclass(frozen=True)
class Resources:
    """What a block takes. registers: of a thread. fetch: see `Forms`. Of one block, or columns of them."""

    threads: Any
    registers: Any
    shared: Any
    fetch: Any


def resources(config: ImplicitGemm, target: GpuTarget, itemsize: int) -> Resources | None:
    """None where the unit's tile does not divide the configuration's."""
    c = config
    math = _math(c.unit, c.block_m, c.block_n, c.block_k, c.part_m, c.part_n, itemsize)
    if isinstance(math, MatrixTile) and math.why_not() is not None:
        return None
    return _resources(math, c.block_k, c.stages, _pads(c, itemsize), target, itemsize)


def _math(unit: str, m: Any, n: Any, depth: int, part_m: Any, part_n: Any, itemsize: int) -> Any:
    """The tile arithmetic of one form, or of columns of them."""
    if unit == "simt":
        return SimtTile(m, n, part_m, part_n, min(4, 16 // itemsize, depth))
    return MatrixTile(MATRIX_UNITS[unit], m, n, depth, part_m, part_n)


def _pads(config: ImplicitGemm, itemsize: int) -> float:
    return sum(config.pad[:2]) / 2 or PAD_BYTES / itemsize


def _resources(
    math: Any, depth: int, stages: Any, pads: float, target: GpuTarget, itemsize: int
) -> Resources:
    if isinstance(math, SimtTile):
        wide = np.minimum(target.wave, np.maximum(math.across, 1))
        fetch = wide * math.thread_n + np.maximum(target.wave // wide, 1) * math.thread_m
    else:
        fetch = math.part_m + math.part_n
    shared = stages * (math.block_m + math.block_n) * int((depth + pads) * itemsize)
    return Resources(math.threads, math.registers + ADDRESS_REGISTERS, shared, fetch)


def _table(math: Any, depth: int, stages: Any, pads: float, target: GpuTarget, itemsize: int) -> Column:
    """`Forms`' columns as rows, of a tile arithmetic of columns; resident is 0 where a form does not fit.

    stages: one number, or a column beside the forms' rows.
    """
    r = _resources(math, depth, stages, pads, target, itemsize)
    fits = (r.threads <= target.most_threads) & (r.threads % target.wave == 0)
    fits = fits & (r.registers <= target.most_registers) & (r.shared <= target.shared_per_block)
    if isinstance(math, MatrixTile):
        part_m, part_n = math.part_m, math.part_n
        m, n, k = math.granule
        fits = fits & (part_m % m == 0) & (part_n % n == 0) & (depth % k == 0)
    else:
        part_m, part_n = math.thread_m, math.thread_n
    held = np.where(fits, resident(np.maximum(r.threads, 1), r.registers, r.shared, target), 0)
    columns = (
        math.block_m, math.block_n, depth, part_m, part_n, stages, r.threads, r.registers, r.shared, held,
        r.fetch,
    )  # fmt: skip
    return np.array(np.broadcast_arrays(*columns), np.float64)
