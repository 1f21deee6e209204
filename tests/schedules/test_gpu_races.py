"""Oclgrind interprets the kernels: no race, nothing out of bounds; a missing barrier is reported.

Float32 twins on tiny shapes. The kernels are made here; a child process under Oclgrind only runs them.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from convopt.schedules.gpu_implicit_gemm import ImplicitGemm
from convopt.targets import find_target
from tests.device_harness import opencl_code
from tests.schedules.conv_cases import Case
from tests.schedules.gpu_conv_cases import Data, draw, typed

pytestmark = pytest.mark.opencl
CASE = Case(8, 10, (1, 4, 5), (1, 3, 1), begin=(0, 1, 0), end=(0, 1, 0))
BASE = ImplicitGemm(32, 16, 8, 4, 4)
BARRIER = "barrier(CLK_LOCAL_MEM_FENCE);"
RUNNER = """
import sys
import numpy as np
import pyopencl as cl
data = np.load(sys.argv[1])
platform = next(p for p in cl.get_platforms() if "Oclgrind" in p.name)
context = cl.Context(platform.get_devices()[:1])
queue = cl.CommandQueue(context)
program = cl.Program(context, open(sys.argv[2]).read()).build(cache_dir=False)
buffers = [
    cl.Buffer(context, cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR, hostbuf=data[name])
    for name in sorted(data.files) if name.startswith("operand")
]
for name, grid, block in zip(data["names"], data["grids"], data["blocks"]):
    kernel = cl.Kernel(program, str(name))
    kernel.set_args(*[part for b in buffers for part in (b, np.uint64(0))])
    work = tuple(int(g * t) for g, t in zip(grid, block))
    cl.enqueue_nd_range_kernel(queue, kernel, work, tuple(map(int, block)))
queue.finish()
print("ran to the end")
"""


@dataclass(frozen=True)
class Prepared:
    source: str
    arrays: dict[str, np.ndarray]


def _prepare(schedule: ImplicitGemm, data: Data) -> Prepared:
    problem, target = data.case.problem, find_target("opencl")
    assert schedule.why_not(problem, target) is None
    code = opencl_code(schedule.apply(problem, target, "kernel"), target)
    packed = schedule.pack(problem, target, data.weight, data.bias)
    workspace = np.zeros(schedule.workspace_bytes(problem, target) // 4, np.float32)
    x, y = np.ascontiguousarray(data.x).reshape(-1), np.zeros(problem.y.size, np.float32)
    operands = [x, *(a.reshape(-1) for a in packed), *([workspace] if workspace.size else []), y]
    arrays = {f"operand{i}": a for i, a in enumerate(operands)}
    arrays["names"] = np.array([k.symbol for k in code.kernels])
    arrays["grids"] = np.array([k.grid for k in code.kernels])
    arrays["blocks"] = np.array([k.block for k in code.kernels])
    return Prepared(code.source, arrays)


def _reports(prepared: Prepared, source: str, folder: Path) -> list[str]:
    """What Oclgrind complains about; it is content with the first few complaints."""
    tool = shutil.which("oclgrind")
    assert tool is not None, "oclgrind is missing: apt-get install oclgrind"
    np.savez(folder / "data.npz", **prepared.arrays)
    (folder / "run.py").write_text(RUNNER)
    (folder / "kernel.cl").write_text(source)
    command = [tool, "--data-races", "--max-errors", "20", sys.executable, "run.py", "data.npz", "kernel.cl"]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, errors="replace", timeout=500, check=False
    )
    assert done.returncode == 0 and "ran to the end" in done.stdout, done.stderr[-3000:]
    wanted = ("race", "Invalid", "FATAL", "divergence")
    return [line for line in done.stderr.splitlines() if any(w in line for w in wanted)]


def _without(source: str, number: int) -> str:
    """The source with its barrier of that number taken out."""
    places = [m.start() for m in re.finditer(re.escape(BARRIER), source)]
    return source[: places[number]] + source[places[number] + len(BARRIER) :]


@pytest.mark.parametrize(
    "schedule",
    [
        replace(BASE, stages=1, swizzle=(2, 2)),
        replace(BASE, stages=2, pad=(4, 4, 4), down=(8, 8)),
        pytest.param(replace(BASE, stages=3), marks=pytest.mark.slow),
    ],
    ids=["stages1", "stages2", "stages3"],
)
def test_silent_and_every_barrier_is_needed(schedule: ImplicitGemm, tmp_path: Path) -> None:
    prepared = _prepare(schedule, draw(typed(CASE, "float32")))
    count = prepared.source.count(BARRIER)
    assert count >= 3
    assert _reports(prepared, prepared.source, tmp_path) == []
    broken = [_reports(prepared, _without(prepared.source, i), tmp_path) for i in range(count)]
    missed = [i for i, reports in enumerate(broken) if not any("race" in r for r in reports)]
    assert missed == [], f"barriers {missed} of {count} can go unnoticed"


def test_deterministic_split_is_silent(tmp_path: Path) -> None:
    """The atomic form is not asked: in OpenCL an addition is a loop that reads its first guess plainly."""
    prepared = _prepare(replace(BASE, split_k=3), draw(typed(CASE, "float32")))
    assert _reports(prepared, prepared.source, tmp_path) == []
