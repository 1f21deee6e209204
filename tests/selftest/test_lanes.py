"""The layout of a matrix unit from experiments: simulated here by each unit's own description."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from convopt.errors import InputError
from convopt.selftest import lanes
from convopt.selftest.lanes import LaneReport, compare
from convopt.targets import find_target
from convopt.targets.matrix_units import MATRIX_UNITS, MFMA_16, MMAC_16, MatrixUnit

# Where lane l, register r holds C: MMAC's from public DTK test code, MFMA's from AMD's calculator.
MMAC = {(lane, r): (lane % 16, lane // 16 + 4 * r) for lane in range(64) for r in range(4)}
MFMA = {(lane, r): (4 * (lane // 16) + r, lane % 16) for lane in range(64) for r in range(4)}


def _experiments(
    unit: MatrixUnit, c_of: dict[tuple[int, int], tuple[int, int]], shift: int = 0
) -> np.ndarray:
    """What comes out of a 16x16x16 unit with C at c_of. shift: B's lanes hold wrong columns."""
    places = list(product(range(64), range(4)))
    out = np.zeros((2 * len(places), 64, 4), np.float32)
    for i, (lane, r) in enumerate(places):
        row, k = lane % 16, lane // 16 * 4 + r
        column = (lane + shift * (lane // 16)) % 16
        for (to, register), (m, n) in c_of.items():
            out[i, to, register] = (k + 1) * (m == row)
            out[len(places) + i, to, register] = (k + 1) * (n == column)
    return out


@pytest.mark.parametrize(("unit", "places"), [(MMAC_16, MMAC), (MFMA_16, MFMA)], ids=["mmac", "mfma"])
def test_the_tables_own_layout_agrees(
    unit: MatrixUnit, places: dict[tuple[int, int], tuple[int, int]]
) -> None:
    assert compare(unit, _experiments(unit, places)) == LaneReport(unit.name, True)


def test_another_layout_of_c_is_found_and_named() -> None:
    report = compare(MMAC_16, _experiments(MMAC_16, MFMA))
    assert not report.agrees
    assert report.faults == ("C: lane 0 register 1 holds (1, 0), the table says (0, 4) (252 of 256 differ)",)
    assert report.found is not None
    assert {place: report.found.at(*place) for place in MFMA} == MFMA


def test_a_wrong_operand_is_named() -> None:
    report = compare(MMAC_16, _experiments(MMAC_16, MMAC, shift=1))
    assert not report.agrees and report.faults[0].startswith("B: lane 16 register 0 is not in row 0 but in")


def test_a_unit_that_computes_nothing() -> None:
    report = compare(MMAC_16, np.zeros((512, 64, 4), np.float32))
    assert (
        report.faults[0] == "A: lane 0 register 0 is not at position 0 of the reduction"
        and report.found is None
    )


def test_a_found_layout_is_used_by_all_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MATRIX_UNITS, MMAC_16.name, MMAC_16)  # put back at the end
    monkeypatch.delenv("CONVOPT_LAYOUT_FROM", raising=False)
    path = tmp_path / "found.json"
    lanes.save(compare(MMAC_16, _experiments(MMAC_16, MFMA)), path)
    target = find_target("dcu:k100-ai")
    with pytest.raises(InputError, match="which opencl does not have"):
        lanes.use(str(path), find_target("opencl"))
    assert lanes.use(str(path), target) == MMAC_16.name
    assert os.environ["CONVOPT_LAYOUT_FROM"] == str(path)
    code = "from convopt.targets.matrix_units import MATRIX_UNITS as u; print(u['mmac.16x16x16'].c.at(17, 2))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == f"{MFMA[17, 2]}\n"
    monkeypatch.delenv("CONVOPT_LAYOUT_FROM")


@pytest.mark.parametrize("text", ["", "{}", '{"unit": "mmac", "c": {}}', "[1]"])
def test_files_that_are_no_layout(text: str, tmp_path: Path) -> None:
    path = tmp_path / "wrong.json"
    path.write_text(text)
    with pytest.raises(InputError, match=r"wrong.json: no layout that convopt selftest wrote"):
        lanes.use(str(path), find_target("dcu:k100-ai"))
