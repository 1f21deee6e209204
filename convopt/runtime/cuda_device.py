"""NVIDIA GPUs by cuda-bindings' driver interface: the primary context, which torch and cupy use too.

$CONVOPT_CUDA_DEVICE is the number of the device (0).
"""

from __future__ import annotations

import functools
import os
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from convopt.errors import DeviceMissing, ExecutionError
from convopt.runtime.device import DevicePointer
from convopt.runtime.device_arrays import architecture_name
from convopt.runtime.memory import Bytes, address
from convopt.runtime.program import Launch

NO_BINDINGS = "NVIDIA GPUs need cuda-bindings: pip install 'convopt[cuda]'"
NO_DRIVER = "no NVIDIA GPU can be used here: its driver is not installed, or there is no such device"
STATIC_SHARED = (
    48 << 10
)  # dynamic shared memory beyond this a kernel has to ask for (CUDA C++ guide, table 27)


def _import() -> Any:
    try:
        from cuda.bindings import driver
    except ImportError as error:
        raise DeviceMissing(NO_BINDINGS) from error
    return driver


def _call(function: Any, *arguments: Any) -> Any:
    """The results behind the status: none, one, or a tuple. ExecutionError where the status is an error."""
    status, *results = function(*arguments)
    if int(status) != 0:
        raise ExecutionError(f"{function.__name__}: {status.name}")
    return results[0] if len(results) == 1 else tuple(results)


@functools.cache
def _primary_context(ordinal: int) -> tuple[Any, str]:
    """(context, the device's name); DeviceMissing where there is none."""
    driver = _import()
    try:
        _call(driver.cuInit, 0)
        device = _call(driver.cuDeviceGet, ordinal)
        name = _call(driver.cuDeviceGetName, 128, device)
        return _call(driver.cuDevicePrimaryCtxRetain, device), name.rstrip(b"\0").decode()
    except (ExecutionError, RuntimeError, OSError) as error:  # no libcuda.so.1: a RuntimeError of the finder
        raise DeviceMissing(f"{NO_DRIVER} ({error})") from error


@dataclass(eq=False)
class CudaMemory:
    """A block on the device, freed with the last reference."""

    pointer: int


@dataclass(eq=False)
class CudaModule:
    """Loaded code, unloaded with the last reference."""

    handle: Any


@dataclass(frozen=True, eq=False)
class CudaKernel:
    """A function, and the module that it is gone with."""

    module: CudaModule
    handle: Any


class CudaDevice:
    """One stream on the device, its own or, inside `on_stream`, a caller's. index: the device's number."""

    def __init__(self) -> None:
        self._driver = driver = _import()
        self.index: int | None = (number := _wanted_device())
        self._context, self.name = _primary_context(number)
        self._enter()
        self._own = _call(driver.cuStreamCreate, int(driver.CUstream_flags.CU_STREAM_NON_BLOCKING))
        self._stream = self._own
        self._large: set[tuple[int, int]] = set()  # kernels that have asked for more shared memory
        self._free_with(self, "cuStreamDestroy", self._own)

    @property
    def arch(self) -> str:
        """The chip, e.g. "sm_90"."""
        return this_gpu().partition(":")[2]

    def _free_with(self, owner: Any, function: str, handle: Any) -> None:
        """Calls the driver's function with the handle once `owner` is gone, but for the exit."""
        free = getattr(self._driver, function)
        weakref.finalize(owner, _free, self._driver, self._context, free, handle).atexit = False

    def _enter(self) -> None:
        """Makes the context current in this thread, as every call of the driver needs."""
        _call(self._driver.cuCtxSetCurrent, self._context)

    @contextmanager
    def on_stream(self, stream: int) -> Iterator[None]:
        """Work asked for inside goes to the caller's stream, behind what this device's own stream has."""
        driver = self._driver
        self._enter()
        caller = driver.CUstream(stream)
        self._follow(caller, self._own)
        self._stream = caller
        try:
            yield
        finally:
            self._stream = self._own
            self._follow(self._own, caller)

    def _follow(self, later: Any, earlier: Any) -> None:
        """Work on `later` waits for what is on `earlier` now."""
        driver = self._driver
        event = _call(driver.cuEventCreate, int(driver.CUevent_flags.CU_EVENT_DISABLE_TIMING))
        _call(driver.cuEventRecord, event, earlier)
        _call(driver.cuStreamWaitEvent, later, event, 0)
        _call(driver.cuEventDestroy, event)  # goes once it has happened

    def allocate(self, nbytes: int) -> CudaMemory:
        self._enter()
        driver, size = self._driver, max(nbytes, 1)
        status, pointer = driver.cuMemAlloc(size)
        if status == driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY:
            raise MemoryError(f"{self.name} can't set aside {nbytes} bytes")
        if int(status) != 0:
            raise ExecutionError(f"cuMemAlloc: {status.name}")
        memory = CudaMemory(int(pointer))
        self._free_with(memory, "cuMemFree", int(pointer))
        _call(driver.cuMemsetD8Async, pointer, 0, size, self._stream)
        return memory

    def write(self, memory: CudaMemory, offset: int, data: Bytes) -> None:
        if data.nbytes:
            self._enter()
            _call(
                self._driver.cuMemcpyHtoDAsync,
                memory.pointer + offset,
                address(data),
                data.nbytes,
                self._stream,
            )
            self.synchronise()  # the host's bytes may change from now on

    def read(self, memory: CudaMemory, offset: int, out: Bytes) -> None:
        if out.nbytes:
            self._enter()
            _call(
                self._driver.cuMemcpyDtoHAsync,
                address(out),
                memory.pointer + offset,
                out.nbytes,
                self._stream,
            )
        self.synchronise()

    def copy(self, to: CudaMemory | int, source: CudaMemory | int, nbytes: int) -> None:
        """From the beginning of one block, ours or a pointer, to that of another, on the stream."""
        if nbytes:
            self._enter()
            ends = [end.pointer if isinstance(end, CudaMemory) else end for end in (to, source)]
            _call(self._driver.cuMemcpyDtoDAsync, *ends, nbytes, self._stream)

    def load(self, binary: bytes) -> CudaModule:
        """`binary` is a cubin for this very architecture."""
        self._enter()
        try:
            module = CudaModule(_call(self._driver.cuModuleLoadData, binary))
        except ExecutionError as error:
            kind = DeviceMissing if "NO_BINARY_FOR_GPU" in str(error) else ExecutionError
            raise kind(
                f"{self.name} does not take the kernels ({error}): compile for its own architecture"
            ) from error
        self._free_with(module, "cuModuleUnload", module.handle)
        return module

    def kernel(self, module: CudaModule, symbol: str) -> CudaKernel:
        self._enter()
        return CudaKernel(module, _call(self._driver.cuModuleGetFunction, module.handle, symbol.encode()))

    def launch(self, kernel: CudaKernel, launch: Launch, arguments: Sequence[DevicePointer]) -> None:
        self._enter()
        self._allow_shared(kernel.handle, launch.shared)
        values = np.array([memory.pointer + offset for memory, offset in arguments], np.uint64)
        places = np.arange(len(values), dtype=np.uint64) * np.uint64(8) + np.uint64(address(values))
        _call(
            self._driver.cuLaunchKernel,
            kernel.handle,
            *launch.grid,
            *launch.block,
            launch.shared,
            self._stream,
            address(places) if len(places) else 0,  # void**: a pointer to each argument
            0,
        )

    def _allow_shared(self, kernel: Any, nbytes: int) -> None:
        key = (int(kernel), nbytes)
        if nbytes <= STATIC_SHARED or key in self._large:
            return
        attribute = self._driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        _call(self._driver.cuFuncSetAttribute, kernel, attribute, nbytes)
        self._large.add(key)

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        """`work`'s launches as one CUDA graph: what is returned asks for them again, in one call.

        What `work` raises comes through, and neither graph nor capture stay behind.
        """
        driver, before = self._driver, self._stream
        self._enter()
        # Relaxed: the collector may free another module's memory meanwhile.
        mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        _call(driver.cuStreamBeginCapture, self._own, mode)
        self._stream = self._own  # a caller's may be the default stream, which can't be captured
        try:
            work()
        except BaseException:
            _, graph = driver.cuStreamEndCapture(self._own)
            if graph is not None and int(graph):  # a failed launch has spoilt it: then there is none
                driver.cuGraphDestroy(graph)
            raise
        finally:
            self._stream = before
        graph = _call(driver.cuStreamEndCapture, self._own)
        try:
            executable = _call(driver.cuGraphInstantiate, graph, 0)
        finally:
            driver.cuGraphDestroy(graph)

        def replay() -> None:
            self._enter()
            _call(driver.cuGraphLaunch, executable, self._stream)

        self._free_with(replay, "cuGraphExecDestroy", executable)
        return replay

    def synchronise(self) -> None:
        self._enter()
        _call(self._driver.cuStreamSynchronize, self._stream)

    def time(self, work: Callable[[], None]) -> float:
        """By events on the stream."""
        driver = self._driver
        self._enter()
        begin, end = (_call(driver.cuEventCreate, 0) for _ in range(2))
        try:
            _call(driver.cuEventRecord, begin, self._stream)
            work()
            _call(driver.cuEventRecord, end, self._stream)
            _call(driver.cuEventSynchronize, end)
            return float(_call(driver.cuEventElapsedTime, begin, end)) * 1e-3
        finally:
            for event in (begin, end):
                _call(driver.cuEventDestroy, event)


def _free(driver: Any, context: Any, function: Any, handle: Any) -> None:
    driver.cuCtxSetCurrent(context)
    function(handle)


def _wanted_device() -> int:
    text = os.environ.get("CONVOPT_CUDA_DEVICE", "0")
    if not text.isdigit():
        raise ExecutionError(f"CONVOPT_CUDA_DEVICE={text}: expected a device's number")
    return int(text)


def this_gpu() -> str:
    """The target of the GPU here: "cuda:" and its architecture. DeviceMissing where there is none."""
    driver = _import()
    _primary_context(ordinal := _wanted_device())
    device = _call(driver.cuDeviceGet, ordinal)
    kinds = driver.CUdevice_attribute
    major, minor = (
        int(_call(driver.cuDeviceGetAttribute, kind, device))
        for kind in (
            kinds.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
            kinds.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
        )
    )
    return f"cuda:{architecture_name(major, minor)}"
