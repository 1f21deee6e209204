"""What compiled code asks of the machine it runs on."""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

# arch/x86/entry/syscalls/syscall_64.tbl, arch/x86/include/uapi/asm/prctl.h, asm/fpu/types.h
ARCH_PRCTL, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA = 158, 0x1023, 18


@dataclass(frozen=True)
class Requirements:
    """`sys.platform`, `platform.machine()`, and the words of /proc/cpuinfo's flags that must be there.

    Empty texts are met by every machine: a Program for a device has no code for the CPU.
    """

    system: str = ""
    machine: str = ""
    flags: tuple[str, ...] = ()

    def why_not(self) -> str | None:
        """Why this machine can't run the code, None if it can."""
        here = (sys.platform, platform.machine())
        if (self.system, self.machine) not in (here, ("", "")):
            return f"it was compiled for {self.system} on {self.machine}, this is {here[0]} on {here[1]}"
        known = cpu_flags()
        missing = [flag for flag in self.flags if flag not in known] if known else []
        return f"this CPU lacks {', '.join(missing)}" if missing else None


@cache
def cpu_flags() -> frozenset[str]:
    """The first core's features; empty where the system doesn't tell."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return frozenset()
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key.strip() in ("flags", "Features"):
            return frozenset(value.split())
    return frozenset()


@cache
def allow_tiles() -> str | None:
    """Asks Linux for AMX's tile registers, once for the whole process; why it refuses, None if it doesn't.

    A process may use them only after ARCH_REQ_XCOMP_PERM for feature 18 (Documentation/arch/x86/xstate.rst).
    """
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return "AMX is Linux on x86-64 here"
    if "amx_tile" not in cpu_flags():
        return "this CPU has no AMX"
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(ARCH_PRCTL, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA):
        return f"the system refuses the tile registers: {os.strerror(ctypes.get_errno())}"
    return None


def this_machine(flags: tuple[str, ...] = ()) -> Requirements:
    return Requirements(sys.platform, platform.machine(), flags)
