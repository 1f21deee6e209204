"""One device and its compiler: kernels compiled in workers, run on arrays, timed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from convopt.codegen.cache import KernelCache
from convopt.codegen.device import DeviceCode
from convopt.codegen.workers import KernelSource, compile_kernels
from convopt.errors import CompileError
from convopt.runtime.device import Device
from convopt.runtime.program import Launch
from convopt.targets import GpuTarget

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class BenchDevice:
    device: Device
    target: GpuTarget

    def code(self, schedule: Any, problem: Any = None, target: GpuTarget | None = None) -> DeviceCode:
        """CompileError: what refused it."""
        source = KernelSource(schedule, problem, target or self.target)
        compiled = compile_kernels([source], KernelCache())
        if source.key not in compiled.objects:
            raise CompileError(compiled.failures[source.key])
        return DeviceCode.from_bytes(compiled.objects[source.key])

    def run(
        self, code: DeviceCode, inputs: Sequence[Array], outputs: Sequence[Array], repeats: int = 0
    ) -> float:
        """Fills `outputs`, the kernel's arguments behind the inputs; seconds, the least of `repeats`."""
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

        launch()
        for block, array in zip(memory[len(inputs) :], outputs, strict=True):
            device.read(block, 0, _bytes(array))
        return min((device.time(launch) for _ in range(repeats)), default=0.0)


def _bytes(array: Array) -> Array:
    flat: Array = array.reshape(-1).view(np.uint8)
    return flat
