"""Candidates as the measuring process has them in memory: their operands filled, one run timed.

The operands are filled from a seed that is equal for all candidates of a convolution.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from convopt.errors import CompileError
from convopt.runtime.artifact import load
from convopt.runtime.device import Compiling, open_device
from convopt.runtime.device_program import DeviceContext, DeviceProgram
from convopt.runtime.execution import ExecutionContext
from convopt.runtime.loaded import Loaded, LoadedProgram, numpy_dtype

Array = np.ndarray[Any, Any]
# Of one timing on a device: shorter runs are repeated, as each launch takes the host microseconds.
DEVICE_SECONDS = 5e-4
MOST_REPEATS = 64


class Instance(Protocol):
    """One candidate, ready to run."""

    def run(self) -> float:
        """Seconds of one run: by the executor's own clock, or by the device's driver."""
        ...

    def output(self) -> Array:
        """Of the last run, as float32."""
        ...

    def close(self) -> None: ...


def instance(path: str) -> Instance:
    """The candidate in the file. ConvoptError: it is none, or nothing here runs it."""
    module = load(path)
    loaded = module.programs[0]
    if isinstance(loaded, DeviceProgram):
        return DeviceInstance(loaded)
    assert isinstance(loaded, LoadedProgram)
    return HostInstance(loaded, module.threads)


def prepare(paths: Sequence[str]) -> list[str | None]:
    """Compiles what comes as source and was not compiled before, all at once; for each why it can't be."""
    programs = [load(path).programs[0] for path in paths]
    devices = [one for one in programs if isinstance(one, DeviceProgram)]
    device = open_device(devices[0].kind) if devices else None
    if isinstance(device, Compiling):
        try:
            device.prepare({binary for one in devices for binary in one.binaries.values()})
        except CompileError:  # of one of them: each is asked for its own
            return [_failure(device, one) for one in programs]
    return [None] * len(paths)


def _failure(device: Compiling, loaded: Loaded) -> str | None:
    assert isinstance(loaded, DeviceProgram)
    try:
        device.prepare(set(loaded.binaries.values()))
    except CompileError as error:
        return str(error)
    return None


class HostInstance:
    """On this machine's CPU, with threads of its own."""

    def __init__(self, loaded: LoadedProgram, threads: int) -> None:
        self._context = ExecutionContext(loaded, threads)
        self._meta = loaded.program.meta["measure"]
        _fill(self._meta, self._context.arena)

    def run(self) -> float:
        seconds: list[float] = []
        self._context.run([], seconds)
        return sum(seconds)

    def output(self) -> Array:
        return np.array(_view(self._meta["output"], self._context.arena), np.float32)

    def close(self) -> None:
        self._context.close()


class DeviceInstance:
    """On the device that the driver of the Program's kind opens.

    Kernels that come as source are compiled here, before any run is timed. A run is what the module's call
    launches, captured where the device can.
    """

    def __init__(self, loaded: DeviceProgram) -> None:
        self._context = DeviceContext(loaded, 1)
        self._device = self._context.device
        self._meta = loaded.program.meta["measure"]
        self._nbytes = loaded.program.arena_bytes
        arena = np.zeros(self._nbytes, np.uint8)
        _fill(self._meta, arena)
        self._device.write(self._context.arena, 0, arena)
        self._launch()  # the first one captures
        self._device.synchronise()
        once = self._device.time(self._launch)
        self._repeats = max(1, min(MOST_REPEATS, int(DEVICE_SECONDS / max(once, 1e-9))))

    def _launch(self) -> None:
        self._context.launch()

    def _launch_repeatedly(self) -> None:
        for _ in range(self._repeats):
            self._launch()

    def run(self) -> float:
        return self._device.time(self._launch_repeatedly) / self._repeats

    def output(self) -> Array:
        arena = np.empty(self._nbytes, np.uint8)
        self._device.read(self._context.arena, 0, arena)
        return np.array(_view(self._meta["output"], arena), np.float32)

    def close(self) -> None:
        self._context.close()


def _view(place: dict[str, Any], arena: Array) -> Array:
    """An operand, where the meta's description says."""
    dtype = numpy_dtype(place["dtype"])
    strides = [stride * dtype.itemsize for stride in place["strides"]]
    return np.ndarray(place["shape"], dtype, arena.data, place["offset"], strides)


def _fill(meta: dict[str, Any], arena: Array) -> None:
    rng = np.random.default_rng(0)
    for place in meta["inputs"]:
        view = _view(place, arena)
        view[...] = rng.standard_normal(view.shape, np.float32)
