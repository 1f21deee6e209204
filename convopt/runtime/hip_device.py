"""AMD and Hygon devices through HIP: ROCm's code objects, and HIP source that is compiled here at first.

$CONVOPT_HIP_DEVICE picks among several devices by number (0).
"""

from __future__ import annotations

import ctypes
import os
import weakref
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from convopt.errors import DeviceMissing, ExecutionError
from convopt.runtime import hipcc
from convopt.runtime.device import DevicePointer, Memory
from convopt.runtime.hip_library import (
    NO_BINARY,
    NOT_FOUND,
    OUT_OF_MEMORY,
    HipError,
    HipLibrary,
    find_library,
)
from convopt.runtime.memory import Bytes, address
from convopt.runtime.program import Launch

NO_DEVICE = (
    "no HIP device found: the driver sees none (try rocm-smi, or hy-smi on a DCU; is /dev/kfd readable?)"
)
_TO_DEVICE, _FROM_DEVICE, _ON_DEVICE = 1, 2, 3
_NON_BLOCKING = 1  # a stream that does not wait for the default stream
_NO_TIMING = 2
_CAPTURE_RELAXED = 2  # the collector may free another module's memory meanwhile
# hipModuleLaunchKernel's way to take all arguments as one block of memory.
_PARAMETERS, _PARAMETERS_SIZE, _END = 1, 2, 3


def is_code_object(binary: bytes) -> bool:
    """Whether a DeviceCode's binary is compiled already: an ELF file, or hipcc's bundle of them."""
    return binary.startswith((b"\x7fELF", b"__CLANG_OFFLOAD_BUNDLE__", b"CCOB"))


class HipMemory:
    """Device memory at `pointer`, freed with the last reference to this."""

    def __init__(self, library: HipLibrary, pointer: int) -> None:
        self.pointer = pointer
        end = weakref.finalize(self, _quietly, library, "hipFree", pointer)
        end.atexit = False


class HipModule:
    def __init__(self, library: HipLibrary, handle: int) -> None:
        self.handle = handle
        end = weakref.finalize(self, _quietly, library, "hipModuleUnload", handle)
        end.atexit = False


class HipKernel:
    """A function, and the module that it is gone with."""

    def __init__(self, module: HipModule, handle: int) -> None:
        self.module, self.handle = module, handle


def _quietly(library: HipLibrary, name: str, *arguments: Any) -> None:
    """Frees what is no longer needed; the driver may be gone already."""
    try:
        library.call(name, *arguments)
    except HipError:
        return


class HipDevice:
    """One stream on the device, its own or, inside `on_stream`, a caller's.

    toolkit: the folder whose hipcc compiles source, if not the one that is found.
    ExecutionError: no library, no device.
    """

    def __init__(self, toolkit: str | None = None) -> None:
        self._library = find_library()
        self._toolkit = toolkit
        number = _wanted_device(self._library)
        self.index: int | None = number
        self._library.call("hipSetDevice", number)
        self.name = self._library.device_name(number)
        self.arch = self._library.arch(number)
        self._own = self._made("hipStreamCreateWithFlags", _NON_BLOCKING)
        self._stream = self._own
        weakref.finalize(self, _quietly, self._library, "hipStreamDestroy", self._own).atexit = False

    @contextmanager
    def on_stream(self, stream: int) -> Iterator[None]:
        self._follow(stream, self._own)
        self._stream = stream
        try:
            yield
        finally:
            self._stream = self._own
            self._follow(self._own, stream)

    def _follow(self, later: int, earlier: int) -> None:
        """Work on `later` waits for what is on `earlier` now."""
        event = self._made("hipEventCreateWithFlags", _NO_TIMING)
        try:
            self._call("hipEventRecord", event, earlier)
            self._call("hipStreamWaitEvent", later, event, 0)
        finally:
            _quietly(self._library, "hipEventDestroy", event)  # goes once it has happened

    def allocate(self, nbytes: int) -> Memory:
        size = max(nbytes, 1)
        try:
            memory = HipMemory(self._library, self._made("hipMalloc", size))
        except HipError as error:
            if error.status == OUT_OF_MEMORY:
                raise MemoryError(f"{self.name} can't set aside {nbytes} bytes: {error}") from error
            raise
        self._call("hipMemsetAsync", memory.pointer, 0, size, self._stream)
        return memory

    def write(self, memory: Memory, offset: int, data: Bytes) -> None:
        if data.nbytes:
            self._copy(memory.pointer + offset, address(data), data.nbytes, _TO_DEVICE)

    def read(self, memory: Memory, offset: int, out: Bytes) -> None:
        if out.nbytes:
            self._copy(address(out), memory.pointer + offset, out.nbytes, _FROM_DEVICE)

    def copy(self, to: HipMemory | int, source: HipMemory | int, nbytes: int) -> None:
        if nbytes:
            ends = [end.pointer if isinstance(end, HipMemory) else end for end in (to, source)]
            self._call("hipMemcpyAsync", *ends, nbytes, _ON_DEVICE, self._stream)

    def _copy(self, to: int, origin: int, nbytes: int, kind: int) -> None:
        self._call("hipMemcpyAsync", to, origin, nbytes, kind, self._stream)
        self.synchronise()  # the host's memory is not pinned: it may be reused when this returns

    def load(self, binary: bytes) -> HipModule:
        """`binary`: a code object, or HIP source, which this machine's hipcc compiles if it hasn't yet.

        DeviceMissing: it is for another chip. CompileError: no hipcc, or what it said.
        """
        if is_code_object(binary):
            return self._load(binary, "its code object")
        source = self._checked_source(binary)
        code, _ = hipcc.compile_source(source, hipcc.find_hipcc(self._toolkit))
        return self._load(code, f"the code object for {hipcc.arch_of(source)}")

    def prepare(self, binaries: Collection[bytes]) -> None:
        sources = [self._checked_source(binary) for binary in binaries if not is_code_object(binary)]
        if sources:
            hipcc.compile_all(sources, hipcc.find_hipcc(self._toolkit))

    def _checked_source(self, binary: bytes) -> str:
        source = binary.decode()
        arch = hipcc.arch_of(source)
        if self.arch and self.arch != arch:
            raise DeviceMissing(
                f"{self.name} is a {self.arch}, the kernels are for {arch}: compile the model for a target of"
                " that chip (`convopt targets` lists them)"
            )
        return source

    def _load(self, code: bytes, what: str) -> HipModule:
        try:
            return HipModule(self._library, self._made("hipModuleLoadData", code))
        except HipError as error:
            if error.status != NO_BINARY:
                raise ExecutionError(f"{self.name}: {error}") from error
            raise DeviceMissing(
                f"{self.name}: {what} is for another chip than {self.arch}: {error}"
            ) from error

    def kernel(self, module: HipModule, symbol: str) -> HipKernel:
        try:
            function = self._made("hipModuleGetFunction", module.handle, symbol.encode())
        except HipError as error:
            if error.status == NOT_FOUND:
                raise ExecutionError(f"{self.name}: the code object has no kernel {symbol!r}") from error
            raise
        return HipKernel(module, function)

    def launch(self, kernel: HipKernel, launch: Launch, arguments: Sequence[DevicePointer]) -> None:
        pointers = (ctypes.c_void_p * len(arguments))(*(m.pointer + offset for m, offset in arguments))
        size = ctypes.c_size_t(ctypes.sizeof(pointers))
        packed = (ctypes.c_void_p * 5)(
            _PARAMETERS, ctypes.addressof(pointers), _PARAMETERS_SIZE, ctypes.addressof(size), _END
        )
        self._call(
            "hipModuleLaunchKernel", kernel.handle, *launch.grid, *launch.block, launch.shared, self._stream,
            None, packed,
        )  # fmt: skip

    def synchronise(self) -> None:
        self._call("hipStreamSynchronize", self._stream)

    def time(self, work: Callable[[], None]) -> float:
        events = [self._made("hipEventCreateWithFlags", 0) for _ in range(2)]
        try:
            self._call("hipEventRecord", events[0], self._stream)
            work()
            self._call("hipEventRecord", events[1], self._stream)
            self._call("hipEventSynchronize", events[1])
            milliseconds = ctypes.c_float()
            self._call("hipEventElapsedTime", ctypes.byref(milliseconds), *events)
        finally:
            for event in events:
                _quietly(self._library, "hipEventDestroy", event)
        return milliseconds.value * 1e-3

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        """`work`'s launches as one graph; on versions of HIP without graphs, `work` itself."""
        if not self._library.has_graphs:
            return work
        before, self._stream = self._stream, self._own  # the default stream can't be captured
        try:
            self._call("hipStreamBeginCapture", self._own, _CAPTURE_RELAXED)
            graph = ctypes.c_void_p()
            try:
                work()
            except BaseException:
                _quietly(self._library, "hipStreamEndCapture", self._own, ctypes.byref(graph))
                if graph.value:  # a failed launch has spoilt it: then there is none
                    _quietly(self._library, "hipGraphDestroy", graph)
                raise
            self._call("hipStreamEndCapture", self._own, ctypes.byref(graph))
            try:
                executable = self._made("hipGraphInstantiate", graph, None, None, 0)
            finally:
                self._call("hipGraphDestroy", graph)
        finally:
            self._stream = before

        def replay() -> None:
            self._call("hipGraphLaunch", executable, self._stream)

        weakref.finalize(replay, _quietly, self._library, "hipGraphExecDestroy", executable).atexit = False
        return replay

    def _made(self, name: str, *arguments: Any) -> int:
        result = ctypes.c_void_p()
        self._call(name, ctypes.byref(result), *arguments)
        return result.value or 0

    def _call(self, name: str, *arguments: Any) -> None:
        try:
            if self.index:  # HIP's current device is the thread's, and 0 in a new one
                self._library.call("hipSetDevice", self.index)
            self._library.call(name, *arguments)
        except HipError as error:
            raise HipError(f"{self.name}: {error}", error.status) from error


def this_chip() -> str:
    """The architecture of the HIP device here, e.g. "gfx942". DeviceMissing where there is none."""
    return HipDevice().arch


def _wanted_device(library: HipLibrary) -> int:
    count = library.device_count()
    if count == 0:
        raise DeviceMissing(f"{NO_DEVICE} ({library.path})")
    text = os.environ.get("CONVOPT_HIP_DEVICE", "0")
    if not text.isdigit() or int(text) >= count:
        raise DeviceMissing(f"CONVOPT_HIP_DEVICE={text}: there are {count} devices, numbered from 0")
    return int(text)
