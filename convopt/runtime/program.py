"""A Program: what the runtime executes, as plain data that goes to JSON and back.

A Program owns no memory. It names four kinds of memory ("spaces"): the arena (one block for all
intermediates), the weights (one read-only block), the caller's inputs and the caller's outputs. A step is
either one kernel launch or one fallback island; steps run in order, each may rely on all before it.

Nothing here imports numpy, tvm or onnxruntime.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

Space = Literal["arena", "weights", "input", "output"]


@dataclass(frozen=True)
class Address:
    """`offset` bytes into a space; `index` says which input or output (0 for arena and weights)."""

    space: Space
    index: int
    offset: int


@dataclass(frozen=True)
class TensorSpec:
    """A tensor at the module's boundary or an island's: contiguous, row-major unless `channels_last`.

    channels_last: dim 1 lies innermost in memory: N, spatial..., C. The shape is still N, C, spatial...
    dtype: the name in numpy or ml_dtypes, or "string". A dim of -1 is known once an island has made the
    tensor (NonZero and the like): an output, addressed as such by that island and by later ones that read it.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    channels_last: bool = False


@dataclass(frozen=True)
class Launch:
    """`grid` blocks of `block` threads each, `shared` bytes of dynamic shared memory per block."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared: int = 0


@dataclass(frozen=True)
class KernelStep:
    """One launch.

    On a CPU `symbol(begin, end, scratch, *args)` over all of `[0, tasks)`, split over the threads. scratch:
    bytes of private memory that each thread needs (64-byte aligned), 0 for none. serial: one thread does all
    tasks, as the kernel takes less time than a launch.
    On other devices `launch` is given, and the three are at their defaults: `symbol` of the image's member
    `binary` runs on the launch's threads with the pointers `args`.
    nodes: names of the model's nodes that this kernel computes, for profiles.
    label: a short text for people, e.g. "conv 3x3 s1 64->64 @56x56 direct".
    """

    symbol: str
    args: tuple[Address, ...]
    tasks: int = 0
    scratch: int = 0
    serial: bool = False
    nodes: tuple[str, ...] = ()
    label: str = ""
    launch: Launch | None = None
    binary: str = ""


@dataclass(frozen=True)
class IslandStep:
    """Nodes that run in onnxruntime: `model` indexes the Program's island models (ONNX bytes)."""

    model: int
    inputs: tuple[tuple[TensorSpec, Address], ...]
    outputs: tuple[tuple[TensorSpec, Address], ...]
    nodes: tuple[str, ...] = ()
    label: str = ""


Step = KernelStep | IslandStep


@dataclass(frozen=True)
class Placement:
    """Where one node of the optimized model runs, and why."""

    node: str
    op: str
    where: Literal["compiled", "fallback", "view", "folded"]
    detail: str  # the schedule for compiled nodes, the reason for fallback


@dataclass(frozen=True)
class Program:
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    arena_bytes: int
    live_bytes: int  # the largest sum of simultaneously live tensors, what arena_bytes is measured against
    steps: tuple[Step, ...]
    placement: tuple[Placement, ...] = ()
    # JSON values: target, precision, versions, pass notes. "cpu_flags", checked when an artifact loads, are
    # the words of /proc/cpuinfo's flags that the kernels' instructions need. "matrix_tiles": whether they use
    # AMX's tiles, which the system must allow first.
    meta: dict[str, Any] = field(default_factory=dict)

    @property
    def arena_to_live(self) -> float:
        """arena_bytes / live_bytes: 1 is the best plan that there can be, also where nothing needs memory."""
        return self.arena_bytes / self.live_bytes if self.live_bytes else 1.0
