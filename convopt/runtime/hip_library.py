"""HIP's runtime library by ctypes: the same functions in ROCm's libamdhip64 and in DTK's libgalaxyhip.

ctypes is the only binding. hip-python would be a second one for the same thirty functions, and could not
replace it: each of its packages is for one release of ROCm (its installation guide), and DTK is none of them.

$CONVOPT_HIP_LIBRARY names the file; otherwise it is looked for in the toolkits' folders and where the
system's loader looks.
"""

from __future__ import annotations

import ctypes
import functools
import os
import re
from typing import Any

from convopt.errors import DeviceMissing, ExecutionError
from convopt.runtime.hipcc import toolkits

NAMES = (
    "libamdhip64.so",
    "libgalaxyhip.so",
    *(f"libamdhip64.so.{v}" for v in (7, 6, 5)),
    "libgalaxyhip.so.5",
)
MISSING = (
    "no HIP runtime library found (libamdhip64.so or libgalaxyhip.so): install ROCm or DTK, set ROCM_PATH to"
    " its folder, or CONVOPT_HIP_LIBRARY to the file"
)
OUT_OF_MEMORY, NO_DEVICE, NO_BINARY, NOT_FOUND = 2, 100, 209, 500
_PROPERTIES_BYTES = 1 << 14  # more than hipDeviceProp_t of any version
_ARCH = re.compile(rb"gfx[0-9a-f]{3,4}")

_P, _INT, _SIZE, _UINT = ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t, ctypes.c_uint
_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "hipGetDeviceCount": (_P,), "hipSetDevice": (_INT,), "hipRuntimeGetVersion": (_P,),
    "hipDeviceGetName": (ctypes.c_char_p, _INT, _INT),
    "hipMalloc": (_P, _SIZE), "hipFree": (_P,), "hipMemsetAsync": (_P, _INT, _SIZE, _P),
    "hipMemcpyAsync": (_P, _P, _SIZE, _INT, _P),
    "hipStreamCreateWithFlags": (_P, _UINT), "hipStreamDestroy": (_P,), "hipStreamSynchronize": (_P,),
    "hipEventCreateWithFlags": (_P, _UINT), "hipStreamWaitEvent": (_P, _P, _UINT),
    "hipEventDestroy": (_P,), "hipEventRecord": (_P, _P),
    "hipEventSynchronize": (_P,), "hipEventElapsedTime": (_P, _P, _P),
    "hipModuleLoadData": (_P, ctypes.c_char_p), "hipModuleUnload": (_P,),
    "hipModuleGetFunction": (_P, _P, ctypes.c_char_p),
    "hipModuleLaunchKernel": (_P, *(_UINT,) * 7, _P, _P, _P),
}  # fmt: skip
_GRAPH_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "hipStreamBeginCapture": (_P, _INT), "hipStreamEndCapture": (_P, _P),
    "hipGraphInstantiate": (_P, _P, _P, _P, _SIZE), "hipGraphLaunch": (_P, _P),
    "hipGraphExecDestroy": (_P,), "hipGraphDestroy": (_P,),
}  # fmt: skip


class HipError(ExecutionError):
    """A call that HIP refused; `status` is its hipError_t."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class HipLibrary:
    """The library at `path`. DeviceMissing: it lacks a function."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._library = ctypes.CDLL(path)
        if missing := self._declare(_SIGNATURES):
            raise DeviceMissing(f"{path} has no {missing}: it is no HIP runtime library, or too old a one")
        self.has_graphs = self._declare(_GRAPH_SIGNATURES) is None
        self._library.hipGetErrorString.restype = ctypes.c_char_p

    def _declare(self, signatures: dict[str, tuple[Any, ...]]) -> str | None:
        """The first function that is missing."""
        for name, arguments in signatures.items():
            function = getattr(self._library, name, None)
            if function is None:
                return name
            function.argtypes, function.restype = arguments, ctypes.c_int
        return None

    def call(self, name: str, *arguments: Any) -> None:
        """HipError where it does not return hipSuccess."""
        status = getattr(self._library, name)(*arguments)
        if status:
            words = self._library.hipGetErrorString(status)
            raise HipError(f"{name}: {words.decode(errors='replace')} (hipError_t {status})", status)

    def device_count(self) -> int:
        """0 also where there is no driver."""
        count = ctypes.c_int()
        try:
            self.call("hipGetDeviceCount", ctypes.byref(count))
        except HipError:
            return 0
        return count.value

    def device_name(self, index: int) -> str:
        name = ctypes.create_string_buffer(256)
        self.call("hipDeviceGetName", name, len(name), index)
        return name.value.decode(errors="replace").strip()

    def arch(self, index: int) -> str:
        """The chip, e.g. "gfx928"; "" where the library does not tell.

        hipDeviceProp_t has grown with every version; its gcnArchName is found by how it looks.
        """
        properties = ctypes.create_string_buffer(_PROPERTIES_BYTES)
        for name in ("hipGetDevicePropertiesR0600", "hipGetDeviceProperties"):
            function = getattr(self._library, name, None)
            if function is not None and function(properties, ctypes.c_int(index)) == 0:
                found = _ARCH.search(properties.raw[256:])
                return found.group().decode() if found else ""
        return ""


def find_library() -> HipLibrary:
    """DeviceMissing: none found, or the one named does not load."""
    return _find(os.environ.get("CONVOPT_HIP_LIBRARY"), tuple(map(str, toolkits())))


@functools.cache
def _find(wanted: str | None, folders: tuple[str, ...]) -> HipLibrary:
    if wanted:
        try:
            return HipLibrary(wanted)
        except OSError as error:
            raise DeviceMissing(f"CONVOPT_HIP_LIBRARY: {error}") from error
    places = [
        f"{folder}/{part}/{name}" for folder in folders for part in ("lib", "hip/lib") for name in NAMES
    ]
    for place in [p for p in places if os.path.exists(p)] + list(NAMES):  # noqa: PTH110
        try:
            return HipLibrary(place)
        except OSError:
            continue
    raise DeviceMissing(MISSING)
