"""What nvcc and LLVM make of the GPU kernels: no spills, the units' instructions, the predicted memory."""

from __future__ import annotations

import functools
import re
import subprocess
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from convopt.codegen.cuda import find_tool
from convopt.codegen.device import device_code
from convopt.schedules.gpu_implicit_gemm import ImplicitGemm
from convopt.targets import find_target
from convopt.targets.matrix_units import MATRIX_UNITS
from tests.schedules.conv_cases import SUM_RELU, Case

pytestmark = pytest.mark.compilers

CASE = Case(
    64, 128, (1, 17, 17), (1, 3, 3), begin=(0, 1, 1), end=(0, 1, 1), batch=4, epilogue=SUM_RELU,
    others=("full",),
)  # fmt: skip
CHIPS = (
    ("cuda:sm_80", "float16"), ("cuda:sm_90", "bfloat16"), ("cuda:sm_80", "float32"),
    ("rocm:gfx90a", "float16"), ("rocm:gfx942", "bfloat16"), ("rocm:gfx1100", "float16"),
)  # fmt: skip


@functools.cache
def _machine_code(cubin: bytes) -> str:
    tool = find_tool("cuobjdump")
    assert tool is not None, "cuobjdump: pip install nvidia-cuda-cuobjdump"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "kernel.cubin")
        path.write_bytes(cubin)
        return subprocess.run([tool, "-sass", path], capture_output=True, text=True, check=True).stdout


def _check(schedule: ImplicitGemm, case: Case, chip: str) -> None:
    target, problem = find_target(chip), case.problem
    code = device_code(schedule.apply(problem, target, "kernel"), target)
    name = f"{schedule} for {chip}"
    assert [k.spills for k in code.kernels] == [0] * len(code.kernels), name
    assert max(k.shared for k in code.kernels) == schedule.shared_bytes(problem, target), name
    main = code.kernels[int(schedule.atomic)]
    assert main.registers is not None and main.registers <= target.most_registers, name
    assert main.block == (schedule.math(problem).threads, 1, 1)
    wanted = _instructions(schedule, target.kind)
    if wanted:
        text = code.source if target.kind == "rocm" else _machine_code(code.binary)
        assert [w for w in wanted if not re.search(w, text)] == [], name


def _instructions(schedule: ImplicitGemm, kind: str) -> list[str]:
    unit = MATRIX_UNITS.get(schedule.unit)
    wanted = [re.escape(unit.instruction)] if unit else []
    if kind == "cuda":
        wanted += ["LDSM"] if unit else []
        wanted += ["LDGSTS"] if schedule.async_copy else []
    return wanted


@pytest.mark.parametrize(("chip", "dtype"), CHIPS)
def test_the_widest_and_the_narrowest(chip: str, dtype: str) -> None:
    """Of every unit, the largest tile, and the smallest with all that can be switched on."""
    case = replace(CASE, x_dtype=dtype, y_dtype=dtype)
    space = list(ImplicitGemm.space(case.problem, find_target(chip)))
    for unit in {s.unit for s in space}:
        of_unit = [s for s in space if s.unit == unit]
        _check(max(of_unit, key=lambda s: (s.block_m * s.block_n, s.stages, s.async_copy)), case, chip)
        _check(min(of_unit, key=lambda s: (s.block_m * s.block_n, -s.stages, -s.split_k)), case, chip)
