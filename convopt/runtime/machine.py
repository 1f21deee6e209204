"""What compiled code asks of the machine it runs on."""

from __future__ import annotations

import platform
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path


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


def this_machine(flags: tuple[str, ...] = ()) -> Requirements:
    return Requirements(sys.platform, platform.machine(), flags)
