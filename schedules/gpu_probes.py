"""Kernels that show what a device is: wave size, atomic additions, banks of shared memory, a unit's lanes.

Schedules in form, so that they go the way of every kernel; `problem` is not used.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from convopt.schedules.base import row_major
from convopt.targets import GpuTarget
from convopt.targets.matrix_units import MATRIX_UNITS


@dataclass(frozen=True)
class WaveSize:
    """One block writes what the device says its wave is. HIP source only: other languages have no word."""

    name: ClassVar[str] = "wave-size"

    def apply(self, problem: Any, target: GpuTarget, symbol: str) -> tuple[Any, ...]:
        from tvm.tirx.script.builder import ir as T

        from convopt.schedules.primitives.gpu_emit import device_kernel

        view = row_major((64,), "int32")
        with device_kernel(f"{symbol}_0", [view], (1, 1, 1), 64) as body:
            T.buffer_store(body.buffers[0], T.call_extern("int32", "wave_size"), [body.thread])
        return (body.function,)


@dataclass(frozen=True)
class AtomicSums:
    """`blocks` x `threads` additions of 1 to one float, of 0.5 to the next."""

    name: ClassVar[str] = "atomic-sums"
    blocks: int = 64
    threads: int = 256

    def apply(self, problem: Any, target: GpuTarget, symbol: str) -> tuple[Any, ...]:
        from tvm.tirx.script.builder import ir as T

        from convopt.schedules.primitives.gpu_emit import device_kernel

        view = row_major((2,))
        with device_kernel(f"{symbol}_0", [view], (self.blocks, 1, 1), self.threads) as body:
            for index, value in enumerate((1.0, 0.5)):
                place = T.address_of(body.buffers[0][index])
                T.evaluate(T.call_extern("float32", "atomic_add", place, T.float32(value)))
        return (body.function,)


@dataclass(frozen=True)
class BankReads:
    """Every lane reads shared memory `rounds` times, neighbours `stride` words apart.

    Each read's place depends on the value of the one before, so that they take their time one by one.
    """

    name: ClassVar[str] = "bank-reads"
    stride: int
    rounds: int = 4096
    threads: int = 64
    words: int = 4096

    def apply(self, problem: Any, target: GpuTarget, symbol: str) -> tuple[Any, ...]:
        from tvm.tirx.script.builder import ir as T

        from convopt.schedules.primitives.gpu_emit import barrier, device_kernel, local, shared

        view = row_major((self.threads,), "int32")
        with device_kernel(f"{symbol}_0", [view], (1, 1, 1), self.threads) as body:
            pool, place = shared(self.words, "int32"), local(1, "int32")
            with T.serial(0, self.words // self.threads) as i:
                at = i * self.threads + body.thread
                # Every lane moves on by as much: their distances, and the conflicts, stay.
                T.buffer_store(pool, (at + self.threads * self.stride) % self.words, [at])
            barrier()
            T.buffer_store(place, body.thread * self.stride % self.words, [0])
            with T.serial(0, self.rounds):
                T.buffer_store(place, pool[place[0]], [0])
            T.buffer_store(body.buffers[0], place[0], [body.thread])
        return (body.function,)


@dataclass(frozen=True)
class UnitRegisters:
    """Block i multiplies the registers p0[i] by p1[i], all lanes' as given, into p2[i], as they come out."""

    name: ClassVar[str] = "unit-registers"
    unit: str
    dtype: str
    experiments: int

    def apply(self, problem: Any, target: GpuTarget, symbol: str) -> tuple[Any, ...]:
        from tvm.tirx.script.builder import ir as T

        from convopt.schedules.primitives.gpu_emit import device_kernel, local

        unit = MATRIX_UNITS[self.unit]
        counts = [layout.registers for layout in (unit.a, unit.b, unit.c)]
        dtypes = [self.dtype, self.dtype, "float32"]
        views = [
            row_major((self.experiments * unit.lanes * n,), dtype)
            for n, dtype in zip(counts, dtypes, strict=True)
        ]
        with device_kernel(f"{symbol}_0", views, (self.experiments, 1, 1), unit.lanes) as body:
            held = [local(n, dtype) for n, dtype in zip(counts, dtypes, strict=True)]
            lane = body.block[0] * unit.lanes + body.thread
            for registers, buffer, n in zip(held[:2], body.buffers, counts, strict=False):
                for r in range(n):
                    T.buffer_store(registers, buffer[lane * n + r], [r])
            for r in range(counts[2]):
                T.buffer_store(held[2], T.float32(0), [r])
            places = [T.address_of(registers[0]) for registers in (held[2], held[0], held[1])]
            T.evaluate(T.call_extern("int32", f"{unit.helper}_{self.dtype}", *places))
            for r in range(counts[2]):
                T.buffer_store(body.buffers[2], held[2][r], [lane * counts[2] + r])
        return (body.function,)
