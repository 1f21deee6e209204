"""Which lane of a matrix unit holds which element: found by experiment, compared with the table.

The rows of A and of B, and positions along the reduction, get the table's names, as only their agreement can
be seen from outside. An element of A alone, times a B whose values tell their position along the reduction,
shows its row of C and its own position; B likewise shows the columns.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from convopt.bench.bench_device import BenchDevice
from convopt.errors import InputError
from convopt.runtime.folders import written_whole
from convopt.schedules.gpu_probes import UnitRegisters
from convopt.targets import GpuTarget
from convopt.targets.matrix_units import (
    MATRIX_UNITS,
    Layout,
    MatrixUnit,
    Term,
    lane,
    register,
    use_layout,
)

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class LaneReport:
    """agrees: with the table. found: where C lies if it does not, as terms; None if no such terms were found.

    faults: what contradicts the table, in words.
    """

    unit: str
    agrees: bool
    faults: tuple[str, ...] = ()
    found: Layout | None = None


def probed_units(target: GpuTarget) -> list[str]:
    """Those whose layout kernels rely on."""
    return [name for name in target.matrix_units if not MATRIX_UNITS[name].opaque]


def probe(bench: BenchDevice, name: str) -> LaneReport:
    unit = MATRIX_UNITS[name]
    dtype = unit.dtypes[0]
    half = _one_hot(unit.a, unit.lanes), _one_hot(unit.b, unit.lanes)
    a = np.concatenate(
        [half[0], np.broadcast_to(_positions(unit.a, unit), (len(half[1]), *half[0].shape[1:]))]
    )
    b = np.concatenate(
        [np.broadcast_to(_positions(unit.b, unit), (len(half[0]), *half[1].shape[1:])), half[1]]
    )
    hip = replace(bench.target, kind="hip") if bench.target.kind == "rocm" else bench.target
    code = bench.code(UnitRegisters(name, dtype, len(a)), None, hip)
    c = np.zeros((len(a), unit.lanes, unit.c.registers), np.float32)
    bench.run(code, [a.astype(dtype), b.astype(dtype)], [c])
    return compare(unit, c)


def _one_hot(layout: Layout, lanes: int) -> Array:
    """(lanes * registers, lanes, registers): experiment i has 1 in element i alone."""
    n = lanes * layout.registers
    return np.eye(n, dtype=np.float32).reshape(n, lanes, layout.registers)


def _positions(layout: Layout, unit: MatrixUnit) -> Array:
    """(lanes, registers): each element's position along the reduction, by the table, plus 1."""
    return np.array(
        [[layout.at(i, r)[1] + 1 for r in range(layout.registers)] for i in range(unit.lanes)], np.float32
    )


def compare(unit: MatrixUnit, c: Array) -> LaneReport:
    """c: (experiments, lanes, registers), what came out: first those with one element of A, then of B."""
    faults: list[str] = []
    rows = np.full(c.shape[1:], -1)
    columns = np.full(c.shape[1:], -1)
    experiment = 0
    for operand, layout, names in (("A", unit.a, rows), ("B", unit.b, columns)):
        for i, r in product(range(unit.lanes), range(layout.registers)):
            row, k = layout.at(i, r)
            touched = c[experiment] != 0
            experiment += 1
            if not touched.any() or (c[experiment - 1][touched] != k + 1).any():
                faults.append(f"{operand}: lane {i} register {r} is not at position {k} of the reduction")
                continue
            known = set(names[touched].tolist()) - {-1, row}
            if known:
                faults.append(f"{operand}: lane {i} register {r} is not in row {row} but in {min(known)}")
            names[touched] = row
    wanted = [[unit.c.at(i, r) for r in range(unit.c.registers)] for i in range(unit.lanes)]
    held = [
        [(int(rows[i, r]), int(columns[i, r])) for r in range(unit.c.registers)] for i in range(unit.lanes)
    ]
    wrong = [
        (i, r) for i, r in product(range(unit.lanes), range(unit.c.registers)) if held[i][r] != wanted[i][r]
    ]
    if wrong:
        i, r = wrong[0]
        faults.append(
            f"C: lane {i} register {r} holds {held[i][r]}, the table says {wanted[i][r]}"
            f" ({len(wrong)} of {unit.lanes * unit.c.registers} differ)"
        )
    found = next((layout for layout in _candidates(unit) if _held(layout, unit) == held), None)
    return LaneReport(unit.name, not faults, tuple(faults[:8]), found if wrong else None)


def _held(layout: Layout, unit: MatrixUnit) -> list[list[tuple[int, int]]]:
    return [[layout.at(i, r) for r in range(layout.registers)] for i in range(unit.lanes)]


def _candidates(unit: MatrixUnit) -> list[Layout]:
    """Places of C that units are known to have, and their transposes."""
    n, groups = unit.m, unit.lanes // unit.m
    single: list[tuple[Term, ...]] = [
        (lane(1, n, 1),),
        (lane(n, 0, n // groups), register(1, 0, 1)),
        (lane(n, 0, 1), register(1, 0, groups)),
        (register(4, 0, 4 * groups), lane(n, 0, 4), register(1, 4, 1)),
    ]
    return [Layout(unit.c.registers, row, column) for row, column in product(single, single) if row != column]


def save(report: LaneReport, path: Path) -> None:
    if report.found is not None:
        with written_whole(path) as temporary:
            temporary.write_text(
                json.dumps({"unit": report.unit, "c": asdict(report.found)}, indent=2) + "\n"
            )


def use(path: str, target: GpuTarget) -> str:
    """Takes the layout that `save` wrote, also in the compilers' processes; the unit's name.

    InputError: no such file, or it is not for a unit of the target.
    """
    name = use_layout(path)
    if name not in target.matrix_units:
        raise InputError(f"{path}: it is for {name}, which {target.name} does not have")
    os.environ["CONVOPT_LAYOUT_FROM"] = str(Path(path).resolve())
    return name
