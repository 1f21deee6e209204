"""OpenCL devices by pyopencl: GPUs, and CPUs through PoCL.

$CONVOPT_OPENCL_DEVICE, a part of a platform's or device's name, picks among several; otherwise the first GPU
is taken, else the first device.
"""

from __future__ import annotations

import functools
import os
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from convopt.errors import DeviceMissing, ExecutionError
from convopt.runtime.device import DevicePointer, Memory
from convopt.runtime.memory import Bytes
from convopt.runtime.program import Launch

NO_PYOPENCL = "OpenCL devices need pyopencl: pip install 'convopt[opencl]'"
NO_DEVICE = "no OpenCL device found: install the device's driver, or PoCL (apt-get install pocl-opencl-icd)"


def _import() -> Any:
    try:
        import pyopencl
    except ImportError as error:
        raise DeviceMissing(NO_PYOPENCL) from error
    return pyopencl


@functools.cache
def _context() -> Any:
    """The context of the device that all modules of the process share."""
    cl = _import()
    wanted = os.environ.get("CONVOPT_OPENCL_DEVICE", "")
    try:
        platforms = cl.get_platforms()
    except cl.Error as error:
        raise DeviceMissing(f"{NO_DEVICE} ({error})") from error
    found = [
        device
        for platform in platforms
        for device in platform.get_devices()
        if wanted in platform.name or wanted in device.name
    ]
    if not found:
        named = f" (of those there are, none is called {wanted!r})" if wanted else ""
        raise DeviceMissing(f"{NO_DEVICE}{named}")
    gpus = [device for device in found if device.type & cl.device_type.GPU]
    return cl.Context([(gpus or found)[0]])


class OpenClDevice:
    """One in-order queue. Kernels are made anew by `kernel`: their arguments are state."""

    index: int | None = None

    def __init__(self) -> None:
        self._cl = _import()
        self._context = _context()
        self._queue = self._cl.CommandQueue(self._context)
        self.name = str(self._queue.device.name).strip()

    def allocate(self, nbytes: int) -> Memory:
        size = max(nbytes, 1)
        try:
            memory = self._cl.Buffer(self._context, self._cl.mem_flags.READ_WRITE, size)
            self._cl.enqueue_fill_buffer(self._queue, memory, np.uint8(0), 0, size)
        except (self._cl.MemoryError, self._cl.LogicError) as error:
            raise MemoryError(f"{self.name} can't set aside {nbytes} bytes: {error}") from error
        return memory

    def write(self, memory: Memory, offset: int, data: Bytes) -> None:
        if data.nbytes:
            self._cl.enqueue_copy(self._queue, memory, data, dst_offset=offset, is_blocking=True)

    def read(self, memory: Memory, offset: int, out: Bytes) -> None:
        if out.nbytes:
            self._checked(
                lambda: self._cl.enqueue_copy(self._queue, out, memory, src_offset=offset, is_blocking=True)
            )

    def load(self, binary: bytes) -> Any:
        """`binary` is OpenCL C."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # compilers talk also where nothing is wrong
            return self._checked(
                lambda: self._cl.Program(self._context, binary.decode()).build(cache_dir=False)
            )

    def kernel(self, module: Any, symbol: str) -> Any:
        return self._checked(lambda: self._cl.Kernel(module, symbol))

    def launch(self, kernel: Any, launch: Launch, arguments: Sequence[DevicePointer]) -> None:
        if launch.shared:
            raise ExecutionError("OpenCL kernels have no dynamic shared memory")
        values = [part for memory, offset in arguments for part in (memory, np.uint64(offset))]
        work_items = tuple(g * b for g, b in zip(launch.grid, launch.block, strict=True))

        def enqueue() -> None:
            kernel.set_args(*values)
            self._cl.enqueue_nd_range_kernel(self._queue, kernel, work_items, launch.block)

        self._checked(enqueue)

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        return work

    def copy(self, to: Memory | int, source: Memory | int, nbytes: int) -> None:
        if nbytes:
            self._checked(lambda: self._cl.enqueue_copy(self._queue, to, source, byte_count=nbytes))

    def on_stream(self, stream: int) -> AbstractContextManager[None]:
        raise ExecutionError("OpenCL knows no arrays of other libraries: give numpy arrays")

    def synchronise(self) -> None:
        self._checked(self._queue.finish)

    def time(self, work: Callable[[], None]) -> float:
        self.synchronise()
        start = time.perf_counter()
        work()
        self.synchronise()
        return time.perf_counter() - start

    def _checked(self, action: Callable[[], Any]) -> Any:
        try:
            return action()
        except self._cl.Error as error:
            raise ExecutionError(f"{self.name}: {error}") from error
