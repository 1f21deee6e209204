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
    from convopt.targets import Target


@dataclass(frozen=True)
class TensorView:
    """How a kernel sees one operand: element [i0, i1, ...] is at pointer + sum(i * stride), in elements.

    A broadcast dimension has stride 0. The pointer is that of element 0, wherever in a buffer it lies.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str = "float32"

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
