"""CPUs: vector width, registers and caches, declared per instruction set or read from the running machine.

`mcpu` comes from a fixed list: LLVM aborts the process on a name it does not know.
"""

from __future__ import annotations

import functools
import os
import platform
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal


@dataclass(frozen=True)
class CpuTarget:
    """A CPU as the schedules see it. Cache sizes in bytes, per core for l1 and l2, shared for l3."""

    mcpu: str
    triple: str
    vector_bytes: int
    vector_registers: int
    fma_from_memory: bool  # FMA reads a broadcast operand from memory (AVX-512)
    l1: int
    l2: int
    l3: int
    mattr: tuple[str, ...] = ()
    bf16: Literal["amx", "dot"] | None = None  # tiles of bfloat16, or vectors of pairs (AVX512-BF16)
    emulated: bool = False  # products of bfloat16 by plain loops: proofs where the CPU has none

    def __hash__(self) -> int:
        return self._hash

    @functools.cached_property
    def _hash(self) -> int:
        """Kept: selection asks caches about the target for each of hundreds of schedules."""
        return hash(tuple(getattr(self, field.name) for field in fields(self)))

    def __getstate__(self) -> dict[str, Any]:
        """The fields alone: another process hashes texts differently."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @property
    def lanes(self) -> int:
        """float32 elements in a vector register."""
        return self.vector_bytes // 4

    @property
    def why_no_bf16(self) -> str | None:
        """Why products of bfloat16 can't be had at the speed of the hardware; None where they can."""
        if self.bf16 is None:
            return f"{self.name} has neither AMX nor AVX512-BF16"
        return None

    @property
    def cpu_flags(self) -> tuple[str, ...]:
        """The flags of /proc/cpuinfo that code for this target needs."""
        return _FLAGS.get(self.mcpu, ())

    @property
    def name(self) -> str:
        return f"cpu:{self.mcpu}"


# Vector registers and widths: Intel SDM volume 1 (16 ymm, 32 zmm), Arm ARM (32 v registers of 128 bits).
# Caches: the smallest of the common server parts of each family; `host_cpu` replaces them by sysfs's.
SKYLAKE_AVX512 = CpuTarget("skylake-avx512", "x86_64-linux-gnu", 64, 32, True, 32 << 10, 1 << 20, 16 << 20)
COOPERLAKE = CpuTarget(
    "cooperlake", "x86_64-linux-gnu", 64, 32, True, 32 << 10, 1 << 20, 24 << 20, bf16="dot"
)
SAPPHIRERAPIDS = CpuTarget(
    "sapphirerapids", "x86_64-linux-gnu", 64, 32, True, 48 << 10, 2 << 20, 32 << 20, bf16="amx"
)
ZNVER4 = CpuTarget("znver4", "x86_64-linux-gnu", 64, 32, True, 32 << 10, 1 << 20, 32 << 20, bf16="dot")
ZNVER3 = CpuTarget("znver3", "x86_64-linux-gnu", 32, 16, False, 32 << 10, 512 << 10, 32 << 20)
HASWELL = CpuTarget("haswell", "x86_64-linux-gnu", 32, 16, False, 32 << 10, 256 << 10, 8 << 20)
X86_64 = CpuTarget("x86-64", "x86_64-linux-gnu", 16, 16, False, 32 << 10, 256 << 10, 4 << 20)
NEON = CpuTarget("generic", "aarch64-linux-gnu", 16, 32, False, 64 << 10, 512 << 10, 8 << 20, ("+neon",))

_AVX2 = ("avx2", "bmi1", "bmi2", "f16c", "fma", "movbe")
_AVX512 = (*_AVX2, "avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl")
_FLAGS = {
    "haswell": _AVX2,
    "znver3": (*_AVX2, "pku", "vaes", "vpclmulqdq"),
    "skylake-avx512": _AVX512,
    "cooperlake": (*_AVX512, "avx512_bf16", "avx512_vnni"),
    "znver4": (*_AVX512, "avx512_bf16", "avx512_vnni", "avx512vbmi"),
    "sapphirerapids": (*_AVX512, "amx_bf16", "amx_tile", "avx512_bf16", "avx512_fp16", "avx512_vnni"),
}

BY_NAME = {
    t.mcpu: t for t in (SKYLAKE_AVX512, COOPERLAKE, SAPPHIRERAPIDS, ZNVER4, ZNVER3, HASWELL, X86_64, NEON)
}


def _cpu_flags() -> tuple[str, frozenset[str]]:
    """(vendor, flags) of the first core from /proc/cpuinfo; empty where there is none."""
    vendor, flags = "", frozenset[str]()
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return vendor, flags
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "vendor_id":
            vendor = value.strip()
        elif key.strip() in ("flags", "Features"):
            flags = frozenset(value.split())
            break
    return vendor, flags


@functools.cache
def chip_name() -> str:
    """This machine's processor as it calls itself, e.g. "AMD EPYC 7763 64-Core Processor"."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        text = ""
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            return value.strip()
    return platform.processor() or platform.machine()


def _cache_bytes(level: int) -> int | None:
    """Size of core 0's data or unified cache of that level as sysfs says, None where it doesn't."""
    for index in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*"):
        try:
            if int((index / "level").read_text()) != level:
                continue
            if (index / "type").read_text().strip() == "Instruction":
                continue
            text = (index / "size").read_text().strip()
        except OSError:
            continue
        scale = {"K": 1 << 10, "M": 1 << 20}.get(text[-1:], 1)
        return int(text.rstrip("KM")) * scale
    return None


@functools.cache
def host_cpu() -> CpuTarget:
    """The CPU this process runs on."""
    vendor, flags = _cpu_flags()
    if platform.machine() in ("aarch64", "arm64"):
        chip = NEON
    elif {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512cd"} <= flags:
        # The newest whose every flag is there: LLVM may use any instruction of the chip that it is told.
        newest = (ZNVER4,) if vendor == "AuthenticAMD" else (SAPPHIRERAPIDS, COOPERLAKE)
        chip = next((c for c in newest if flags.issuperset(c.cpu_flags)), SKYLAKE_AVX512)
    elif {"avx2", "fma", "bmi2", "f16c"} <= flags:
        chip = ZNVER3 if vendor == "AuthenticAMD" and {"vaes", "pku"} <= flags else HASWELL
    else:
        chip = X86_64
    return replace(
        chip, l1=_cache_bytes(1) or chip.l1, l2=_cache_bytes(2) or chip.l2, l3=_cache_bytes(3) or chip.l3
    )


def usable_cores() -> int:
    """Cores this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
