"""From a group of nodes to kernel calls: the form that every `lower` function here has.

A group is a node of the "convopt" domain whose `body` attribute is a graph of standard ONNX operators: its
meaning. `lower(group, context)` returns the kernel calls that compute it, in order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from convopt.ir.precision import FP32, Precision
from convopt.schedules.base import TensorView
from convopt.schedules.conv_problem import ConvProblem
from convopt.selection.conv_plan import Algorithm, ConvPlan
from convopt.selection.plans import CAP, Records, decide
from convopt.targets import CpuTarget, GpuTarget


@dataclass(frozen=True, eq=False)
class Constant:
    """An array that the kernel reads and that exists before the first run (packed weights, bias)."""

    array: np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False)
class Temporary:
    """Memory that lives between the calls of one group, in bytes."""

    nbytes: int


Operand = ir.Value | Constant | Temporary
Progress = Callable[[str, int, int], None]  # of a stage: its name, steps done, steps in all


@dataclass(frozen=True)
class KernelCall:
    """One kernel: a schedule instance on a problem, and the operands whose pointers it gets, in order.

    A value of the group's interface is passed at its element 0 (plus `offsets[i]` elements, if given).
    """

    schedule: Any
    problem: Any
    operands: tuple[Operand, ...]
    label: str = ""
    offsets: tuple[int, ...] = ()


@dataclass(frozen=True)
class LoweringOptions:
    """What is compiled for.

    im2col_cap: bytes that an unfolded matrix may take. algorithm: of convolutions; "auto" is by measured
    record where `records` has one, else by cost.
    """

    target: CpuTarget | GpuTarget
    threads: int
    im2col_cap: int = CAP
    algorithm: Algorithm = "auto"
    records: Records | None = None
    precision: Precision = FP32

    @property
    def cpu(self) -> CpuTarget:
        """The target, where only a CPU can be meant."""
        if not isinstance(self.target, CpuTarget):
            raise ValueError(f"{self.target.name} is no CPU")
        return self.target


@dataclass(frozen=True)
class LoweringContext:
    """What a lowering may know: the views of the group's outer inputs and outputs, and the options.

    borderless: convolutions whose padded input has no border of zeros, since their plan needs none.
    """

    views: Mapping[ir.Value, TensorView]
    options: LoweringOptions
    borderless: Set[ir.Node] = frozenset()

    @property
    def target(self) -> CpuTarget | GpuTarget:
        return self.options.target

    @property
    def threads(self) -> int:
        return self.options.threads

    def plan(self, problem: ConvProblem) -> ConvPlan:
        """How the convolution is computed. ValueError, with the reasons, where no schedule takes it."""
        o = self.options
        return decide(problem, o.target, o.threads, o.algorithm, o.im2col_cap, o.records)


class Refused(Exception):
    """This group can't become a kernel here; the text says why and becomes the fallback's reason."""
