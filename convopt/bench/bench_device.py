"""One device and its compiler: kernels compiled in workers, run on arrays, timed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from convopt.codegen.cache import KernelCache
from convopt.codegen.device import DeviceCode
from convopt.codegen.workers import KernelSource, compile_kernels
from convopt.errors import CompileError, ConvoptError, DeviceMissing
from convopt.runtime.device import Compiling, Device, Memory, open_device
from convopt.runtime.program import Launch
from convopt.targets import GpuTarget

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class BenchDevice:
    device: Device
    target: GpuTarget
    cache: KernelCache = field(default_factory=KernelCache)

    @staticmethod
    def open(target: GpuTarget, cache_dir: str | None = None) -> BenchDevice:
        """DeviceMissing: no driver, no device, or one of another chip than the target's."""
        device = open_device(target.kind)
        arch = getattr(device, "arch", "")
        if arch and arch != target.arch:
            raise DeviceMissing(f"{device.name} is a {arch}, {target.name} is a {target.arch}")
        return BenchDevice(device, target, KernelCache(cache_dir))

    @property
    def text(self) -> str:
        """The device's name and, where it tells, chip."""
        arch = getattr(self.device, "arch", "")
        return f"{self.device.name} ({arch})" if arch else self.device.name

    def code(self, schedule: Any, problem: Any = None, target: GpuTarget | None = None) -> DeviceCode:
        """CompileError: what refused it."""
        source = KernelSource(schedule, problem, target or self.target)
        compiled = compile_kernels([source], self.cache)
        if source.key not in compiled.objects:
            raise CompileError(compiled.failures[source.key])
        return DeviceCode.from_bytes(compiled.objects[source.key])

    def compile_all(
        self, kernels: Sequence[tuple[Any, Any]], report: Callable[[int, int], None] | None = None
    ) -> None:
        """Compiles (schedule, problem) pairs on all cores, so that `code` and the device find them done.

        What does not compile is left to them to say.
        """
        sources = [KernelSource(schedule, problem, self.target) for schedule, problem in kernels]
        compiled = compile_kernels(sources, self.cache, report)
        if isinstance(self.device, Compiling):
            with contextlib.suppress(ConvoptError):
                self.device.prepare(
                    [DeviceCode.from_bytes(data).binary for data in compiled.objects.values()]
                )

    def run(
        self, code: DeviceCode, inputs: Sequence[Array], outputs: Sequence[Array], repeats: int = 0
    ) -> float:
        """Fills `outputs`, the kernel's arguments behind the inputs; seconds, the least of `repeats`."""
        launch, memory = self.prepared(code, inputs, outputs)
        launch()
        for block, array in zip(memory[len(inputs) :], outputs, strict=True):
            self.device.read(block, 0, _bytes(array))
        return min((self.device.time(launch) for _ in range(repeats)), default=0.0)

    def prepared(
        self, code: DeviceCode, inputs: Sequence[Array], outputs: Sequence[Array]
    ) -> tuple[Callable[[], None], list[Memory]]:
        """What launches the kernels on memory that holds `inputs`, and that memory, outputs last."""
        device = self.device
        memory = [device.allocate(array.nbytes) for array in (*inputs, *outputs)]
        for block, array in zip(memory, inputs, strict=False):
            device.write(block, 0, _bytes(np.ascontiguousarray(array)))
        module = device.load(code.binary)
        kernels = [
            (device.kernel(module, k.symbol), Launch(k.grid, k.block, k.dynamic_shared)) for k in code.kernels
        ]

        def launch() -> None:
            for kernel, extents in kernels:
                device.launch(kernel, extents, [(block, 0) for block in memory])

        return launch, memory


def _bytes(array: Array) -> Array:
    flat: Array = array.reshape(-1).view(np.uint8)
    return flat
