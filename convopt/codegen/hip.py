"""HIP source: for DCUs, whose chips LLVM doesn't know, and for AMD's GPUs by their own compiler.

What is made here is text. The machine that runs it compiles it (`convopt.runtime.hipcc`): the vendor's
compiler need not be here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
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
    from math import prod

    from convopt.codegen.hip_printer import print_kernel

    texts = [
        print_kernel(lowered.module[kernel.symbol], kernel.symbol, prod(kernel.block))
        for kernel in lowered.kernels
    ]
    source = _file(target.arch, target.name, lowered.kernels, texts)
    return DeviceCode(lowered.kernels, source, source.encode())


def program_source(codes: Iterable[tuple[Sequence[DeviceKernel], str]], target: GpuTarget) -> str:
    """One `.hip` of all the kernels, of (launches, source) by `generate`; equal ones once."""
    kernels: dict[str, DeviceKernel] = {}
    texts: dict[str, str] = {}
    for launches, source in codes:
        parts = re.split(rf"(?=^{re.escape(KERNEL)})", source, flags=re.M)[1:]
        for kernel, text in zip(launches, parts, strict=True):
            kernels[kernel.symbol] = kernel
            texts[kernel.symbol] = text.rstrip() + "\n"
    return _file(target.arch, target.name, tuple(kernels.values()), list(texts.values()))


def _file(arch: str, target: str, kernels: Sequence[DeviceKernel], texts: Sequence[str]) -> str:
    lines = [f"// convopt: HIP source for {target}", f"// offload-arch: {arch}", "//", "// launches:"]
    for kernel in kernels:
        grid, block = (" x ".join(map(str, extents)) for extents in (kernel.grid, kernel.block))
        lines.append(
            f"//   {kernel.symbol}  grid {grid}  block {block}"
            f"  shared {kernel.shared} B, of these dynamic {kernel.dynamic_shared} B"
        )
    body = "\n".join(texts)
    return "\n".join(lines) + "\n" + prelude(body) + "\n" + body
