"""AMDGPU code objects: TVM's LLVM, AMD's device libraries (Debian: rocm-device-libs) and an ld.lld.

LLVM aborts the process on a chip that it does not know: only those listed here are asked for.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

from convopt.codegen.device import DeviceCode, DeviceKernel, LoweredKernels
from convopt.errors import CompileError
from convopt.targets import GpuTarget

# The device library's name of the instruction set, where there is a file of that name (ROCm 5.2 and newer).
CHIPS = ("gfx900", "gfx906", "gfx908", "gfx90a", "gfx942", "gfx1030", "gfx1100")
_LIBRARY_FOLDERS = (
    "/usr/lib/x86_64-linux-gnu/amdgcn/bitcode",
    "/usr/lib/aarch64-linux-gnu/amdgcn/bitcode",
    "/opt/rocm/amdgcn/bitcode",
)
MISSING_LIBRARIES = (
    "no AMD device libraries found: apt-get install rocm-device-libs, or set ROCM_PATH to the folder that has"
    " amdgcn/bitcode"
)
MISSING_LINKER = "no ld.lld found: apt-get install lld-19 (14 is too old), or set CONVOPT_LLD to one"


def tvm_target(target: GpuTarget) -> Any:
    import tvm

    if target.arch not in CHIPS:
        raise CompileError(
            f"LLVM has no code generator for {target.arch}; there is one for {', '.join(CHIPS)}"
        )
    return tvm.target.Target(
        {
            "kind": "rocm",
            "mcpu": target.arch,
            "max_num_threads": target.most_threads,
            "max_shared_memory_per_block": target.shared_per_block,
            "thread_warp_size": target.wave,
        }
    )


def generate(lowered: LoweredKernels, target: GpuTarget) -> DeviceCode:
    import tvm
    import tvm_ffi

    libraries, linker = _libraries(target), find_lld()
    code_object: list[bytes] = []

    def link(elf: Any) -> bytes:
        code_object.append(_link(linker, bytes(elf)))
        return code_object[-1]

    tvm_ffi.register_global_func(
        "tvm_callback_rocm_bitcode_path", lambda *rest: tvm.runtime.convert(libraries), override=True
    )
    tvm_ffi.register_global_func("tvm_callback_rocm_link", link, override=True)
    wanted = tvm_target(target)
    with wanted:
        built = tvm.get_global_func("target.build.rocm")(lowered.module, wanted)
    if not code_object:
        raise CompileError("TVM made no code object")
    assembly = str(built.inspect_source("asm"))
    return DeviceCode(with_resources(lowered.kernels, assembly), assembly, code_object[0])


def library_folder() -> Path:
    """Where ocml.bc lies. CompileError where there is none."""
    root = os.environ.get("ROCM_PATH")
    candidates = [Path(root, "amdgcn", "bitcode")] if root else []
    candidates += map(Path, _LIBRARY_FOLDERS)
    for folder in candidates:
        if (folder / "ocml.bc").is_file():
            return folder
    raise CompileError(MISSING_LIBRARIES)


def _libraries(target: GpuTarget) -> list[str]:
    """The mathematics and the constants that fix its meaning: IEEE, denormals kept, the chip's wave."""
    folder = library_folder()
    names = [
        "ocml", "oclc_daz_opt_off", "oclc_finite_only_off", "oclc_unsafe_math_off",
        "oclc_correctly_rounded_sqrt_on", f"oclc_wavefrontsize64_{'on' if target.wave == 64 else 'off'}",
        "oclc_abi_version_500", f"oclc_isa_version_{target.arch[3:]}",
    ]  # fmt: skip
    paths = [folder / f"{name}.bc" for name in names]
    # Libraries older than the chip lack its file; what it decides are hardware tricks of the functions.
    return [str(path) for path in paths if path.is_file()]


@functools.cache
def find_lld() -> str:
    wanted = os.environ.get("CONVOPT_LLD")
    names = [wanted] if wanted else [f"ld.lld-{v}" for v in range(22, 15, -1)] + ["ld.lld"]
    for name in names:
        if found := shutil.which(name):
            return found
    raise CompileError(MISSING_LINKER)


def _link(linker: str, elf: bytes) -> bytes:
    import tempfile

    with tempfile.TemporaryDirectory(prefix="convopt-") as name:
        source, out = Path(name, "kernel.o"), Path(name, "kernel.hsaco")
        source.write_bytes(elf)
        command = [linker, "--no-undefined", "-shared", str(source), "-o", str(out)]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace")
        if done.returncode:
            raise CompileError(f"{linker}: {done.stderr.strip()[-4000:]}")
        return out.read_bytes()


def with_resources(kernels: tuple[DeviceKernel, ...], assembly: str) -> tuple[DeviceKernel, ...]:
    """The kernels with LLVM's vector registers, spilled bytes and LDS, from the code object's metadata."""
    blocks = {}
    for block in re.split(
        r"^\s*- \.a(?:gpr_count|rgs):", assembly.partition("amdhsa.kernels:")[2], flags=re.M
    ):
        if name := re.search(r"^\s*\.name:\s*(\S+)$", block, re.M):
            blocks[name.group(1)] = block
    result = []
    for kernel in kernels:
        if kernel.symbol not in blocks:
            raise CompileError(f"LLVM's metadata has no kernel {kernel.symbol}")

        def number(key: str, text: str = blocks[kernel.symbol]) -> int:
            found = re.search(rf"^\s*\.{key}:\s*(\d+)$", text, re.M)
            return int(found.group(1)) if found else 0

        result.append(
            replace(
                kernel,
                registers=number("vgpr_count"),
                # Arrays that are not in registers are as bad as spills.
                spills=max(4 * number("vgpr_spill_count"), number("private_segment_fixed_size")),
                shared=kernel.dynamic_shared + number("group_segment_fixed_size"),
            )
        )
    return tuple(result)


def check_compiler() -> None:
    """CompileError: no device libraries, or no linker."""
    library_folder()
    find_lld()
