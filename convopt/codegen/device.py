"""Kernels of a device: the device functions of a GPU schedule to source, binary and launches.

    PrimFuncs -> lower -> opencl | cuda | rocm -> DeviceCode

Runs in the processes of `convopt.codegen.workers`: LLVM and the CUDA compiler may abort on what they don't
know.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from convopt.errors import CompileError
from convopt.targets import CpuTarget, GpuTarget

Extents = tuple[int, int, int]
GENERATORS = ("cuda", "hip", "opencl", "rocm")  # a module here each, by the target's kind


@dataclass(frozen=True)
class DeviceKernel:
    """One launch: `symbol` with `grid` blocks of `block` threads; its arguments are the kernel call's.

    dynamic_shared: bytes of shared memory that the launch sets aside; shared: all of a block, these included.
    registers (32 bits, per thread; on AMD vector registers) and spills (bytes per thread) are the compiler's
    words, None where it has none to say (OpenCL).
    """

    symbol: str
    grid: Extents
    block: Extents
    dynamic_shared: int = 0
    shared: int = 0
    registers: int | None = None
    spills: int | None = None


@dataclass(frozen=True)
class DeviceCode:
    """The kernels of one schedule instance, in the order of their launches, and what defines them.

    source: text for people (OpenCL, CUDA, AMDGPU assembly). binary: what the device's driver loads: a cubin,
    a code object, or the source itself where that is what it takes.
    """

    kernels: tuple[DeviceKernel, ...]
    source: str
    binary: bytes

    def to_bytes(self) -> bytes:
        head = json.dumps([asdict(kernel) for kernel in self.kernels]).encode()
        source = self.source.encode()
        sizes = (len(head).to_bytes(8, "little"), len(source).to_bytes(8, "little"))
        return b"".join((*sizes, head, source, self.binary))

    @classmethod
    def from_bytes(cls, data: bytes) -> DeviceCode:
        head_end = 16 + int.from_bytes(data[:8], "little")
        source_end = head_end + int.from_bytes(data[8:16], "little")
        kernels = []
        for fields in json.loads(data[16:head_end]):
            extents = {"grid": tuple(fields["grid"]), "block": tuple(fields["block"])}
            kernels.append(DeviceKernel(**{**fields, **extents}))
        return cls(tuple(kernels), data[head_end:source_end].decode(), data[source_end:])


@dataclass(frozen=True)
class LoweredKernels:
    """Device functions, ready for their code generator, and their launches.

    registers: by symbol, of a thread, where the schedule says what it should do with.
    """

    module: Any  # tvm.IRModule
    kernels: tuple[DeviceKernel, ...]
    registers: dict[str, int]


def device_code(functions: Sequence[Any], target: GpuTarget) -> DeviceCode:
    """Source and binary of the device functions that a GpuSchedule's `apply` gives.

    CompileError: no code generator, or no compiler for this target here; what the compiler said.
    """
    from convopt.codegen.device_lowering import lower

    if target.kind not in GENERATORS:
        raise CompileError(f"no code generator for {target.name}")
    generator = importlib.import_module(f"convopt.codegen.{target.kind}")
    # HIP source is read by people: its loops stay loops, and its compiler unrolls them.
    lowered = lower(functions, generator.tvm_target(target), unroll=target.kind != "hip")
    code: DeviceCode = generator.generate(lowered, target)
    return code


def kernel_code(schedule: Any, problem: Any, target: CpuTarget | GpuTarget, symbol: str) -> bytes:
    """What the cache keeps of a kernel: a CPU's object file, another device's `DeviceCode.to_bytes`."""
    if isinstance(target, GpuTarget):
        return device_code(schedule.apply(problem, target, symbol), target).to_bytes()
    from convopt.codegen.cpu import object_code

    return object_code(schedule.apply(problem, target, symbol), target)


def why_no_compiler(target: GpuTarget) -> str | None:
    """What is missing here to compile for the target, in words with the remedy; None if nothing."""
    if target.kind not in GENERATORS:
        return f"there is no code generator for {target.kind} yet"
    generator = importlib.import_module(f"convopt.codegen.{target.kind}")
    try:
        generator.check_compiler()
    except CompileError as error:
        return str(error)
    return None
