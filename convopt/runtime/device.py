"""What a Program asks of a device: one small protocol, a driver for each kind of device behind it.

Memory is an opaque handle; an address on a device is (memory, offset in bytes), as OpenCL's memory objects
know no pointers. A driver's calls are ordered as on one stream; only `read`, `synchronise` and `time` wait.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, runtime_checkable

from convopt.errors import ExecutionError
from convopt.runtime.memory import Bytes
from convopt.runtime.program import Launch

Memory = Any
DevicePointer = tuple[Memory, int]

# kind of target -> the driver's module here and its class
DRIVERS = {
    "cuda": ("cuda_device", "CudaDevice"),
    "hip": ("hip_device", "HipDevice"),
    "opencl": ("opencl_device", "OpenClDevice"),
    "rocm": ("hip_device", "HipDevice"),
}


class Device(Protocol):
    """One stream of work on one device. A context of a module has its own; `name` is the device's own.

    index: its number, as torch and cupy count devices too; None for devices that they don't know.
    """

    name: str
    index: int | None

    def allocate(self, nbytes: int) -> Memory:
        """At least `nbytes`, zeroed, freed with the last reference. MemoryError where it does not fit."""
        ...

    def write(self, memory: Memory, offset: int, data: Bytes) -> None:
        """Copies the host's bytes to the device; `data` may be reused when it returns."""
        ...

    def read(self, memory: Memory, offset: int, out: Bytes) -> None:
        """Copies from the device into `out`, after all work that was asked for before."""
        ...

    def load(self, binary: bytes) -> Any:
        """The module of a DeviceCode's binary. ExecutionError: the driver refuses it; its words."""
        ...

    def kernel(self, module: Any, symbol: str) -> Any:
        """A kernel of the module. ExecutionError where it has none of that name."""
        ...

    def launch(self, kernel: Any, launch: Launch, arguments: Sequence[DevicePointer]) -> None: ...

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        """Asks for the same launches again each time it is called, at less cost where the device can."""
        ...

    def copy(self, to: Memory | int, source: Memory | int, nbytes: int) -> None:
        """On the device, from the beginning of one block or pointer of others to that of another."""
        ...

    def on_stream(self, stream: int) -> AbstractContextManager[None]:
        """Work asked for inside goes to this stream of a caller's, ordered with the device's own.

        ExecutionError where the device knows no streams of others.
        """
        ...

    def synchronise(self) -> None:
        """Waits for all work. ExecutionError where a part of it failed."""
        ...

    def time(self, work: Callable[[], None]) -> float:
        """Seconds that the device takes for what `work` asks for, from the end of what came before."""
        ...


@runtime_checkable
class Compiling(Protocol):
    """A device whose `load` may have to compile."""

    def prepare(self, binaries: Collection[bytes]) -> None:
        """Compiles all of them at once, so that `load` finds them done. Errors as of `load`."""
        ...


def open_device(kind: str) -> Device:
    """The driver of the kind of target, on the first such device.

    ExecutionError: no driver package, no device; with the remedy.
    """
    if kind not in DRIVERS:
        raise ExecutionError(
            f"there is no driver for {kind} devices; there are those for {', '.join(DRIVERS)}"
        )
    module, name = DRIVERS[kind]
    driver: Callable[[], Device] = getattr(importlib.import_module(f"convopt.runtime.{module}"), name)
    return driver()


def why_no_device(kind: str) -> str | None:
    """Why nothing of this kind can run here, in words with the remedy; None if it can."""
    try:
        open_device(kind)
    except ExecutionError as error:
        return str(error)
    return None
