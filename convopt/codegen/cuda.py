"""CUDA source by TVM, cubins by nvcc or, where there is none, NVRTC: no GPU is needed.

nvcc is looked for in $CUDA_HOME, on the PATH and among the Python packages (nvidia-cuda-nvcc,
nvidia-cuda-runtime, nvidia-cuda-cccl); NVRTC is cuda-bindings with nvidia-cuda-nvrtc.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from importlib import util
from math import prod
from pathlib import Path
from typing import Any

from convopt.codegen.device import DeviceCode, DeviceKernel, LoweredKernels
from convopt.codegen.helpers import cuda_helpers
from convopt.errors import CompileError
from convopt.targets import GpuTarget

TIMEOUT = 300.0
MISSING = (
    "no CUDA compiler found: pip install 'convopt[cuda]', or set CUDA_HOME to a CUDA toolkit of version 12 or"
    " newer"
)


def tvm_target(target: GpuTarget) -> Any:
    import tvm

    return tvm.target.Target({"kind": "cuda", "arch": target.arch, "max_num_threads": target.most_threads})


def generate(lowered: LoweredKernels, target: GpuTarget) -> DeviceCode:
    source = cuda_source(lowered, target)
    cubin, log = compile_cubin(source, target.arch)
    return DeviceCode(with_resources(lowered.kernels, log), source, cubin)


def cuda_source(lowered: LoweredKernels, target: GpuTarget) -> str:
    """TVM's source with the helpers that it calls in front of the first kernel."""
    import tvm
    import tvm_ffi

    # TVM would compile at once; the source is all that is wanted of it.
    tvm_ffi.register_global_func("tvm_callback_cuda_compile", lambda code, *rest: b"", override=True)
    wanted = tvm_target(target)
    with wanted:
        built = tvm.get_global_func("target.build.cuda")(lowered.module, wanted)
    source = str(built.inspect_source())
    for kernel in lowered.kernels:
        bounds = rf"__launch_bounds__\((\d+)\)(?= {kernel.symbol}\()"
        blocks = _blocks(prod(kernel.block), lowered.registers.get(kernel.symbol), target)
        source = re.sub(bounds, rf"__launch_bounds__(\1, {blocks})", source)
    start = source.index('extern "C" __global__')
    return source[:start] + cuda_helpers(source) + source[start:]


def _blocks(threads: int, registers: int | None, target: GpuTarget) -> int:
    """Blocks that a multiprocessor is to hold, by the registers that the kernel should do with.

    Left to itself, ptxas spills where a few registers less make room for one block more, or takes all that
    there are where half would do.
    """
    if registers is None:
        return 1
    step = target.register_step
    each = min(-(-registers // step) * step, target.most_registers) * threads
    return max(1, min(target.registers_per_cu // each, target.most_waves * target.wave // threads))


def compile_cubin(source: str, arch: str) -> tuple[bytes, str]:
    """(cubin, what ptxas said of each kernel). CompileError: no compiler, or its words."""
    check_compiler()
    nvcc = find_nvcc()
    return _by_nvrtc(source, arch) if nvcc is None else _by_nvcc(nvcc, source, arch)


def check_compiler() -> None:
    """CompileError: neither nvcc nor NVRTC."""
    nvrtc = util.find_spec("cuda") is not None and util.find_spec("cuda.bindings") is not None
    if find_nvcc() is None and not nvrtc:
        raise CompileError(MISSING)


@functools.cache
def find_nvcc() -> str | None:
    candidates = [Path(os.environ[v]) / "bin" / "nvcc" for v in ("CUDA_HOME", "CUDA_PATH") if v in os.environ]
    found = shutil.which("nvcc")
    candidates += [Path(found)] if found else []
    candidates += [folder / "bin" / "nvcc" for folder in _python_toolkits()]
    return next((str(path) for path in candidates if path.is_file()), None)


def find_tool(name: str) -> str | None:
    """cuobjdump, nvdisasm and the like."""
    places = [folder / "bin" / name for folder in _python_toolkits()]
    return next((str(path) for path in places if path.is_file()), shutil.which(name))


def _python_toolkits() -> Iterator[Path]:
    """nvidia/cu13 and so on, among the installed packages."""
    spec = util.find_spec("nvidia")
    for root in (spec.submodule_search_locations or ()) if spec is not None else ():
        yield from sorted(Path(root).glob("cu[0-9]*"), reverse=True)


def _by_nvcc(nvcc: str, source: str, arch: str) -> tuple[bytes, str]:
    with tempfile.TemporaryDirectory(prefix="convopt-") as folder:
        cu, cubin = Path(folder, "kernel.cu"), Path(folder, "kernel.cubin")
        cu.write_text(source)
        command = [nvcc, f"-arch={arch}", "-cubin", "-Xptxas", "-v", "-o", str(cubin), str(cu)]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, errors="replace", timeout=TIMEOUT, cwd=folder
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise CompileError(f"nvcc: {error}") from error
        if done.returncode:
            raise CompileError(f"nvcc for {arch}: {(done.stderr + done.stdout).strip()[-4000:]}")
        return cubin.read_bytes(), done.stderr


def _by_nvrtc(source: str, arch: str) -> tuple[bytes, str]:
    from cuda.bindings import nvrtc

    options = [f"-arch={arch}", "--ptxas-options=-v", "-default-device"]
    for folder in _python_toolkits():
        options += [f"-I{folder / 'include'}", f"-I{folder / 'include' / 'cccl'}"]
    encoded = [option.encode() for option in options]
    _, program = nvrtc.nvrtcCreateProgram(source.encode(), b"kernel.cu", 0, [], [])
    (status,) = nvrtc.nvrtcCompileProgram(program, len(encoded), encoded)
    try:
        log = _nvrtc_bytes(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog, program).decode()
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise CompileError(f"NVRTC for {arch}: {log.strip()[-4000:]}")
        return _nvrtc_bytes(nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN, program), log
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _nvrtc_bytes(size_of: Any, get: Any, program: Any) -> bytes:
    _, size = size_of(program)
    data = b" " * size
    get(program, data)
    return bytes(data)


def with_resources(kernels: tuple[DeviceKernel, ...], log: str) -> tuple[DeviceKernel, ...]:
    """The kernels with ptxas's registers, spills and shared bytes."""
    result = []
    for kernel in kernels:
        section = re.search(
            rf"Compiling entry function '{kernel.symbol}'(.*?)(?=Compiling entry|\Z)", log, re.S
        )
        if section is None:
            raise CompileError(f"ptxas said nothing of {kernel.symbol}: {log[-2000:]}")
        text = section.group(1)
        registers = re.search(r"Used (\d+) registers", text)
        static = re.search(r"(\d+) bytes smem", text)
        spills = [int(n) for n in re.findall(r"(\d+) bytes spill", text)]
        result.append(
            replace(
                kernel,
                registers=int(registers.group(1)) if registers else None,
                spills=sum(spills),
                shared=kernel.dynamic_shared + (int(static.group(1)) if static else 0),
            )
        )
    return tuple(result)
