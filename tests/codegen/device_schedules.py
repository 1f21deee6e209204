"""A small schedule for device code generation; importable in the compiler processes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from convopt.schedules.base import row_major
from convopt.targets import GpuTarget

ELEMENTS, THREADS, BLOCKS = 1000, 64, 4  # four elements a thread, the last block with a tail


@dataclass(frozen=True)
class Reversed:
    """y[i] = exp(x[i]) + the thread's number counted from the block's end, which passes shared memory."""

    def apply(self, dtype: str, target: GpuTarget, symbol: str) -> tuple[Any, ...]:
        from tvm.tirx.script.builder import ir as T

        from convopt.schedules.primitives import gpu_emit as emit

        view = row_major((ELEMENTS,), dtype)
        with emit.device_kernel(f"{symbol}_0", [view, view], (BLOCKS, 1, 1), THREADS) as body:
            x, y = body.buffers
            numbers = emit.shared(THREADS, "float32")
            T.buffer_store(numbers, T.Cast("float32", body.thread), [body.thread])
            emit.barrier()
            start = emit.hold((body.block[0] * THREADS + body.thread) * 4)
            with emit.when(start < ELEMENTS):
                values = emit.local(4, dtype)
                emit.store(values, 0, emit.vector(x, start, 4), 4)
                for lane in range(4):
                    value = T.exp(emit.to_float(values[lane], dtype)) + numbers[THREADS - 1 - body.thread]
                    T.buffer_store(values, emit.from_float(value, dtype), [lane])
                emit.store(y, start, emit.vector(values, 0, 4), 4)
        return (body.function,)
