"""HIP source: for DCUs, whose chips LLVM doesn't know, and for AMD's GPUs by their own compiler.

What is made here is text. The machine that runs it compiles it (`convopt.runtime.hipcc`): the vendor's
compiler need not be here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from math import prod
from typing import Any

from convopt.codegen.device import DeviceCode, DeviceKernel, LoweredKernels
from convopt.codegen.hip_prelude import prelude
from convopt.targets import GpuTarget

KERNEL = 'extern "C" __global__'


def tvm_target(target: GpuTarget) -> Any:
    """CUDA's, as HIP has its names of the functions of mathematics."""
    import tvm

    return tvm.target.Target({"kind": "cuda", "arch": "sm_80", "max_num_threads": target.most_threads})


def check_compiler() -> None:
    """Nothing is needed to make text."""


def generate(lowered: LoweredKernels, target: GpuTarget) -> DeviceCode:
    from convopt.codegen.hip_printer import print_kernel

    texts = [
        print_kernel(lowered.module[kernel.symbol], kernel.symbol, prod(kernel.block))
        for kernel in lowered.kernels
    ]
    title = f"// convopt: HIP source for {target.name}\n// offload-arch: {target.arch}\n//"
    source = _file(title, list(map(_launch_line, lowered.kernels)), texts)
    return DeviceCode(lowered.kernels, source, source.encode())


def program_source(sources: Iterable[str]) -> str:
    """One `.hip` of all the kernels of sources made by `generate` for one target; equal ones once."""
    launches: dict[str, None] = {}
    kernels: dict[str, None] = {}
    title = ""
    for source in sources:
        title = source.partition("\n// launches:\n")[0]
        launches.update(dict.fromkeys(re.findall(r"^//   .*$", source, re.M)))
        parts = re.split(rf"(?=^{re.escape(KERNEL)})", source, flags=re.M)[1:]
        kernels.update(dict.fromkeys(part.rstrip() + "\n" for part in parts))
    return _file(title, list(launches), list(kernels))


def _launch_line(kernel: DeviceKernel) -> str:
    grid, block = (" x ".join(map(str, extents)) for extents in (kernel.grid, kernel.block))
    return (
        f"//   {kernel.symbol}  grid {grid}  block {block}"
        f"  shared {kernel.shared} B, of these dynamic {kernel.dynamic_shared} B"
    )


def _file(title: str, launches: Sequence[str], kernels: Sequence[str]) -> str:
    body = "\n".join(kernels)
    head = "\n".join([title, "// launches:", *launches])
    return f"{head}\n{prelude(body)}\n{body}"
