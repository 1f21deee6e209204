"""Compiles many GPU kernels at once and says what nvcc, LLVM or clang made of each schedule instance."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from convopt.codegen import cuda, hip, rocm
from convopt.codegen.device import DeviceKernel
from convopt.codegen.device_lowering import lower
from convopt.schedules.gpu_gemm_limits import most_registers
from convopt.schedules.gpu_implicit_gemm import ImplicitGemm
from convopt.targets import GpuTarget
from convopt.targets.matrix_units import MATRIX_UNITS
from tests.hip.kernels import assembly

TOGETHER = (
    16  # instances in one source: the compilers' start is shared, and little is lost at the first error
)


@dataclass(frozen=True)
class Instance:
    schedule: Any
    problem: Any

    @property
    def dtype(self) -> str:
        view = getattr(self.problem, "x", None) or self.problem.operands[0]
        return str(view.dtype)


@dataclass(frozen=True)
class Compiled:
    """An instance, its kernels with their resources, and their assembly."""

    instance: Instance
    kernels: tuple[DeviceKernel, ...]
    assembly: str


def faults(instances: Sequence[Instance], target: GpuTarget) -> list[str]:
    """What is wrong with any of them: spills, resources beyond the chip's, other than the schedule says,
    instructions that are not there.
    """
    return [fault for compiled in compile_all(instances, target) for fault in _faults(compiled, target)]


def _faults(compiled: Compiled, target: GpuTarget) -> Iterator[str]:
    schedule, problem = compiled.instance.schedule, compiled.instance.problem
    name = f"{target.name}: {schedule} on {problem.x.shape if hasattr(problem, 'x') else problem}"
    for kernel in compiled.kernels:
        if kernel.spills:
            yield f"{kernel.spills} bytes spilled by {kernel.symbol}, {name}"
        most = most_registers(kernel.block[0], target)
        if kernel.registers is None or kernel.registers > most:
            yield f"{kernel.registers} registers > {most}: {name}"
        if kernel.shared > target.shared_per_block:
            yield f"{kernel.shared} B shared > {target.shared_per_block}: {name}"
    shared, said = max(k.shared for k in compiled.kernels), schedule.shared_bytes(problem, target)
    if shared != said:
        yield f"{shared} B shared, the schedule says {said}: {name}"
    for wanted in _instructions(schedule, target.kind):
        if not re.search(wanted, compiled.assembly):
            yield f"no {wanted}: {name}"


def _instructions(schedule: Any, kind: str) -> list[str]:
    if not isinstance(schedule, ImplicitGemm):
        return []
    unit = MATRIX_UNITS.get(schedule.unit)
    wanted = [re.escape(unit.instruction)] if unit else []
    if kind == "cuda":
        wanted += ["LDSM"] if unit is not None and (unit.ldmatrix or unit.opaque) else []
        wanted += ["LDGSTS"] if schedule.async_copy else []
    return wanted


def compile_all(instances: Sequence[Instance], target: GpuTarget) -> Iterator[Compiled]:
    of_kind = {"cuda": _by_nvcc, "rocm": _by_llvm, "hip": _by_clang}[target.kind]
    # Dynamic shared memory has one type in a source.
    for dtype in sorted({i.dtype for i in instances}):
        some = [i for i in instances if i.dtype == dtype]
        for first in range(0, len(some), TOGETHER):
            yield from of_kind(some[first : first + TOGETHER], target)


def _lowered(instances: Sequence[Instance], target: GpuTarget, wanted: Any, unroll: bool = True) -> Any:
    functions = []
    for index, i in enumerate(instances):
        functions += i.schedule.apply(i.problem, target, f"kernel{index}")
    return lower(functions, wanted, unroll)


def _compiled(
    instances: Sequence[Instance], kernels: tuple[DeviceKernel, ...], texts: dict[str, str]
) -> Iterator[Compiled]:
    for index, instance in enumerate(instances):
        own = tuple(k for k in kernels if k.symbol.startswith(f"kernel{index}_"))
        yield Compiled(instance, own, "\n".join(texts[k.symbol] for k in own))


def _by_nvcc(instances: Sequence[Instance], target: GpuTarget) -> Iterator[Compiled]:
    lowered = _lowered(instances, target, cuda.tvm_target(target))
    cubin, log = cuda.compile_cubin(cuda.cuda_source(lowered, target), target.arch)
    kernels = cuda.with_resources(lowered.kernels, log)
    yield from _compiled(instances, kernels, _sections(_machine_code(cubin), r"Function : (\w+)"))


def _machine_code(cubin: bytes) -> str:
    tool = cuda.find_tool("cuobjdump")
    assert tool is not None, "cuobjdump: pip install nvidia-cuda-cuobjdump"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "kernel.cubin")
        path.write_bytes(cubin)
        return subprocess.run([tool, "-sass", path], capture_output=True, text=True, check=True).stdout


def _by_llvm(instances: Sequence[Instance], target: GpuTarget) -> Iterator[Compiled]:
    code = rocm.generate(_lowered(instances, target, rocm.tvm_target(target)), target)
    yield from _compiled(instances, code.kernels, _sections(code.source, r"^(\w+):"))


def _by_clang(instances: Sequence[Instance], target: GpuTarget) -> Iterator[Compiled]:
    lowered = _lowered(instances, target, hip.tvm_target(target), unroll=False)
    with tempfile.TemporaryDirectory() as folder:
        text = assembly(hip.generate(lowered, target).source, target.arch, Path(folder))
    kernels = rocm.with_resources(lowered.kernels, text)
    yield from _compiled(instances, kernels, _sections(text, r"^(\w+):"))


def _sections(text: str, heading: str) -> dict[str, str]:
    """The text behind each heading, by what the heading names."""
    parts = re.split(heading, text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))
