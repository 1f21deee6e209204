"""The implicit GEMM's tile forms on a GPU, and what each takes of a compute unit: the hard filter.

Columns of numpy arrays, one entry per form: the model prices all of them at once. They depend on the chip and
on the element, not on the convolution.
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
from convopt.schedules.primitives.occupancy import Launch
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

    def take(self, index: Column) -> Forms:
        """The forms at these places."""
        names = [field.name for field in fields(self)][1:]
        return Forms(self.unit, **{name: getattr(self, name)[index] for name in names})

    @staticmethod
    def of(config: ImplicitGemm, target: GpuTarget, itemsize: int) -> Forms:
        """One configuration as a form."""
        row = _row(config, target, itemsize)
        if row is None:
            raise ValueError(f"{config} does not fit {target.name}")
        return _columns(config.unit, [row])


@lru_cache(maxsize=64)
def forms(target: GpuTarget, unit: str, itemsize: int) -> Forms:
    """Those that fit a compute unit at least once."""
    rows = []
    for block_m, block_n, block_k in product(BLOCKS_M, BLOCKS_N, DEPTHS):
        for part_m, part_n in _parts(unit, block_m, block_n):
            for stages in (2, 3) if target.async_copy else (2,):
                row = _row(
                    ImplicitGemm(block_m, block_n, block_k, part_m, part_n, stages, unit=unit),
                    target,
                    itemsize,
                )
                if row is not None:
                    rows.append(row)
    return _columns(unit, rows)


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
    """What a block takes, and what keeps it from a chip. registers: of a thread. fetch: see `Forms`."""

    threads: int
    registers: int
    shared: int
    fetch: int


def resources(config: ImplicitGemm, target: GpuTarget, itemsize: int) -> Resources | None:
    """None where the unit's tile does not divide the configuration's."""
    c, vector = config, min(4, 16 // itemsize, config.block_k)
    if c.unit == "simt":
        across = max(1, c.block_n // c.part_n)
        threads = across * (c.block_m // c.part_m)
        registers = SimtTile(c.block_m, c.block_n, c.part_m, c.part_n, vector).registers
        wide = min(target.wave, across)
        fetch = wide * c.part_n + max(1, target.wave // wide) * c.part_m
    else:
        unit = MATRIX_UNITS[c.unit]
        if c.part_m % unit.m or c.part_n % unit.n or c.block_k % unit.k:
            return None
        math = MatrixTile(unit, c.block_m, c.block_n, c.block_k, c.part_m, c.part_n)
        if math.why_not() is not None:
            return None
        threads, registers, fetch = math.threads, math.registers, c.part_m + c.part_n
    pads = sum(c.pad[:2]) / 2 or PAD_BYTES / itemsize
    shared = c.stages * int((c.block_m + c.block_n) * (c.block_k + pads) * itemsize)
    return Resources(threads, registers + ADDRESS_REGISTERS, shared, fetch)


def _row(config: ImplicitGemm, target: GpuTarget, itemsize: int) -> tuple[int, ...] | None:
    c, r = config, resources(config, target, itemsize)
    if r is None or r.threads > target.most_threads or r.threads % target.wave:
        return None
    if r.registers > target.most_registers or r.shared > target.shared_per_block:
        return None
    resident = Launch(1, r.threads, r.registers, r.shared).resident(target)
    if resident < 1:
        return None
    return (
        c.block_m, c.block_n, c.block_k, c.part_m, c.part_n, c.stages, r.threads, r.registers, r.shared,
        resident, r.fetch,
    )  # fmt: skip


def _columns(unit: str, rows: list[tuple[int, ...]]) -> Forms:
    names = [field.name for field in fields(Forms)][1:]
    table = np.array(rows, np.int64).reshape(-1, len(names))
    return Forms(unit, **{name: table[:, i] for i, name in enumerate(names)})
