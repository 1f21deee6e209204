"""The stub HIP device: its library and its hipcc, built once for each test process's folder."""

from __future__ import annotations

import ctypes
import subprocess
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent / "stub"


@dataclass(frozen=True)
class Stub:
    """library: what CONVOPT_HIP_LIBRARY names. toolkit: a folder with bin/hipcc, for ROCM_PATH."""

    library: Path
    toolkit: Path

    @property
    def _functions(self) -> ctypes.CDLL:
        return ctypes.CDLL(str(self.library))

    def configure(self, arch: str = "gfx928", memory: int = 1 << 30, devices: int = 1) -> None:
        self._functions.stub_configure(arch.encode(), ctypes.c_size_t(memory), devices)

    def fail_next_launch(self) -> None:
        self._functions.stub_fail_next_launch()

    @property
    def live(self) -> int:
        """Memory blocks, streams, events, modules and graphs that are not freed."""
        return int(self._functions.stub_live())

    def calls(self) -> list[str]:
        """What was called since the last time."""
        functions = self._functions
        functions.stub_log.restype = ctypes.c_char_p
        text: bytes = functions.stub_log()
        functions.stub_forget()
        return text.decode().splitlines()


def build(folder: Path) -> Stub:
    library, toolkit = folder / "libamdhip64.so", folder / "toolkit"
    (toolkit / "bin").mkdir(parents=True)
    (toolkit / "bin" / "hipcc").symlink_to(FOLDER / "hipcc")
    command = ["g++", "-shared", "-fPIC", "-O1", "-std=c++17", str(FOLDER / "libhip.cpp"), "-o", str(library)]
    subprocess.run(command, check=True)
    return Stub(library, toolkit)
