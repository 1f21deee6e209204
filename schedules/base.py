"""What every kernel family shares: views of tensors, the form of a schedule, the estimate of its time.

A kernel is a C function made by TVM, `void symbol(int32 begin, int32 end, void *scratch, T *arg0, ...)`. It
computes tasks `begin <= t < end` of `tasks()`; any split of the tasks over threads gives the same result.
No pointer may be assumed to be aligned beyond its element. Modules here import without tvm: only `apply` and
what it calls import it, so that selection and explain answer at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

if TYPE_CHECKING:
    from convopt.targets import GpuTarget, Target


# The element types that kernels compute with, in bytes. Arithmetic is float32: the others are converted when
# they are loaded and rounded to nearest even when they are stored.
FLOAT_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}


@dataclass(frozen=True)
class TensorView:
    """How a kernel sees one operand: element [i0, i1, ...] is at pointer + sum(i * stride), in elements.

    A broadcast dimension has stride 0. The pointer is that of element 0, wherever in a buffer it lies.
    alignment: what that pointer is a multiple of, in bytes; GPU kernels choose the width of their loads by
    it, CPU kernels assume nothing.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str = "float32"
    alignment: int = 16

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def reach(self) -> int:
        """Elements from the first to the last one in memory."""
        return sum((e - 1) * abs(s) for e, s in zip(self.shape, self.strides, strict=True) if e > 0)


def row_major(shape: tuple[int, ...], dtype: str = "float32") -> TensorView:
    strides, step = [], 1
    for extent in reversed(shape):
        strides.append(step)
        step *= max(extent, 1)
    return TensorView(shape, tuple(reversed(strides)), dtype)


@dataclass(frozen=True)
class Estimate:
    """Predicted seconds of a kernel with the parts they come from. It ranks; it does not promise."""

    compute: float
    memory: float
    overhead: float = 0.0

    @property
    def seconds(self) -> float:
        return max(self.compute, self.memory) + self.overhead


class Schedule(Protocol):
    """A kernel family; an instance is one configuration: a frozen dataclass, hashable, with a stable repr.

    repr(schedule) and repr(problem) together are the kernel's identity in the cache.
    """

    name: ClassVar[str]

    def why_not(self, problem: Any, target: Target) -> str | None: ...

    def cost(self, problem: Any, target: Target) -> Estimate: ...

    def tasks(self, problem: Any, target: Target) -> int: ...

    def scratch_bytes(self, problem: Any, target: Target) -> int: ...

    def apply(self, problem: Any, target: Target, symbol: str) -> Any:
        """The tvm PrimFunc (see `schedules.primitives.emit.kernel`)."""
        ...


class GpuSchedule(Protocol):
    """A kernel family for GPUs; an instance is one configuration, as for `Schedule`.

    `apply` gives the device functions that are launched one after the other, named symbol_0, symbol_1, ...
    Each is complete (see `primitives.gpu_emit.device_kernel`): thread bindings by `launch_thread`, barriers,
    shared memory and vectors explicit, so that code generation adds nothing; `calling_conv` says so. All of
    them have the same parameters, p0, p1, ...: the operands in the order of the kernel call, which is inputs,
    then the workspace where `workspace_bytes` is not 0, then the outputs.
    """

    name: ClassVar[str]

    def why_not(self, problem: Any, target: GpuTarget) -> str | None: ...

    def cost(self, problem: Any, target: GpuTarget) -> Estimate: ...

    def workspace_bytes(self, problem: Any, target: GpuTarget) -> int:
        """Global memory that the functions pass partial results in; its contents before do not matter."""
        ...

    def shared_bytes(self, problem: Any, target: GpuTarget) -> int:
        """Shared memory of a block, exactly what the compiler reports: the most of all the functions."""
        ...

    def apply(self, problem: Any, target: GpuTarget, symbol: str) -> tuple[Any, ...]:
        """The tvm PrimFuncs."""
        ...
