"""A plan as something that can be timed anywhere: a Program of its kernels over memory of its own.

All operands lie in the arena, so that the time has no allocation in it. The Program's meta says where the
measuring process writes the input and reads the result: element counts and dtypes, byte offsets.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from convopt.codegen.cache import KernelCache
from convopt.codegen.device import DeviceCode
from convopt.codegen.workers import KernelSource, compile_kernels
from convopt.errors import CompileError
from convopt.lowering.arena import ALIGNMENT
from convopt.lowering.assemble import device_codes, image_of, kernel_steps, loaded_program, target_meta
from convopt.lowering.base import (
    Constant,
    KernelCall,
    LoweringContext,
    LoweringOptions,
    Operand,
    Temporary,
)
from convopt.lowering.conv_operands import ConvOperands
from convopt.lowering.conv_plans import planned_calls
from convopt.runtime.loaded import numpy_dtype
from convopt.runtime.memory import Blob, Bytes
from convopt.runtime.module import CompiledModule
from convopt.runtime.program import Address, Program
from convopt.schedules.conv_problem import ConvProblem
from convopt.selection.conv_plan import ConvPlan
from convopt.targets import GpuTarget

MEASURE = "measure"  # the key of the meta


@dataclass(frozen=True)
class Candidate:
    """A plan, compiled and written to a file that `convopt.tuning.measuring` reads."""

    plan: ConvPlan
    path: Path


def compile_candidates(
    problem: ConvProblem,
    plans: Sequence[ConvPlan],
    options: LoweringOptions,
    cache: KernelCache,
    folder: Path,
    deadline: float,
) -> tuple[list[Candidate], dict[ConvPlan, str]]:
    """The candidates as files in `folder`, and why the other plans did not become one.

    deadline: of `time.monotonic()`, for compiling.
    """
    memories = {plan: _Memory(problem) for plan in plans}
    calls: dict[ConvPlan, list[KernelCall]] = {}
    failures: dict[ConvPlan, str] = {}
    for plan, memory in memories.items():
        try:
            calls[plan] = _calls(problem, plan, memory.values, options)
        except ValueError as error:
            failures[plan] = str(error)
    keys = {
        plan: [KernelSource(c.schedule, c.problem, options.target) for c in made]
        for plan, made in calls.items()
    }
    compiled = compile_kernels((s for made in keys.values() for s in made), cache, deadline=deadline)
    failures |= {
        plan: compiled.failures[source.key]
        for plan, made in keys.items()
        for source in made
        if source.key in compiled.failures
    }
    codes = device_codes(compiled.objects, options.target)
    try:
        images = _images(
            {plan: [s.key for s in made] for plan, made in keys.items() if plan not in failures},
            compiled.objects, codes, cache, options,
        )  # fmt: skip
    except CompileError as error:
        return [], dict.fromkeys(plans, str(error))
    candidates = []
    for plan, image in images.items():
        memory = memories[plan]
        steps = tuple(
            step
            for call, source in zip(calls[plan], keys[plan], strict=True)
            for step in kernel_steps(call, source.key, memory.addresses(call), (), options.target, codes)
        )
        meta = {**target_meta(options.target), MEASURE: memory.description()}
        program = Program((), (), memory.size, memory.size, steps, (), meta)
        loaded = loaded_program(program, image, memory.weights(), (), options.target)
        path = folder / f"{_digest(plan)}.convopt"
        CompiledModule([loaded], threads=options.threads, target=options.target.name).save(path)
        candidates.append(Candidate(plan, path))
    return candidates, failures


def _images(
    keys: Mapping[ConvPlan, Sequence[str]],
    objects: Mapping[str, bytes],
    codes: Mapping[str, DeviceCode],
    cache: KernelCache,
    options: LoweringOptions,
) -> dict[ConvPlan, bytes]:
    """The code of each plan. A CPU's is linked once for all; on a device each has what it needs, since the
    driver may take long for each kernel, or refuse one.
    """
    if isinstance(options.target, GpuTarget):
        own = {plan: {key: codes[key] for key in made} for plan, made in keys.items()}
        return {plan: image_of({}, made, cache, options.target) for plan, made in own.items()}
    return dict.fromkeys(keys, image_of(objects, {}, cache, options.target))


def _digest(plan: ConvPlan) -> str:
    return hashlib.sha256(repr(plan).encode()).hexdigest()[:16]


def _calls(
    problem: ConvProblem, plan: ConvPlan, values: tuple[Temporary, ...], options: LoweringOptions
) -> list[KernelCall]:
    """The plan's kernels, with seeded weights; x, the others and y are `values`."""
    rng = np.random.default_rng(0)
    shape = (problem.groups, problem.features, problem.channels, *problem.kernel)
    fan_in = max(1, problem.channels * problem.taps)
    weights = rng.standard_normal(shape, np.float32) / np.float32(fan_in**0.5)
    bias = rng.standard_normal(shape[:2], np.float32) if problem.bias else None
    operands = ConvOperands(weights, bias, values, (0,) * len(values))
    context = LoweringContext({}, options)
    return planned_calls(problem, plan, operands, context)


class _Memory:
    """The arena and the weights of one candidate.

    values: what stands for x (with the border that the pads reach), the others and y.
    """

    def __init__(self, problem: ConvProblem) -> None:
        self.size = 0
        self._views = (problem.x, *problem.others, problem.y)
        self._starts: dict[Temporary, int] = {}  # byte of element 0
        self._items: dict[Temporary, int] = {}  # bytes of an element
        self._blob = Blob()
        values = []
        for view in self._views:
            before, count = _reach(problem) if view is problem.x else (0, view.reach + 1)
            item = numpy_dtype(view.dtype).itemsize
            border = _rounded(before * item)  # element 0 is aligned, as GPU kernels are told
            values.append(Temporary(border + count * item))
            self._place(values[-1], border)
            self._items[values[-1]] = item
        self.values = tuple(values)

    def _place(self, value: Temporary, before: int) -> None:
        self._starts[value] = self.size + before
        self.size += _rounded(value.nbytes)

    def addresses(self, call: KernelCall) -> tuple[Address, ...]:
        offsets = call.offsets or (0,) * len(call.operands)
        return tuple(self._address(o, at) for o, at in zip(call.operands, offsets, strict=True))

    def _address(self, operand: Operand, offset: int) -> Address:
        """`offset` in elements; 0 within what only the plan's own kernels know."""
        if isinstance(operand, Constant):
            return Address("weights", 0, self._blob.add(operand.array) + offset * operand.array.itemsize)
        assert isinstance(operand, Temporary)
        if operand not in self._starts:
            self._place(operand, 0)  # an unfolded matrix, a workspace
        return Address("arena", 0, self._starts[operand] + offset * self._items.get(operand, 0))

    def weights(self) -> Bytes:
        return self._blob.joined()

    def description(self) -> dict[str, Any]:
        """What the measuring process fills and reads; strides in elements, offset: byte of element 0."""
        views = [
            {"shape": view.shape, "strides": view.strides, "dtype": view.dtype, "offset": self._starts[value]}
            for view, value in zip(self._views, self.values, strict=True)
        ]
        return {"inputs": views[:-1], "output": views[-1]}


def _rounded(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def _reach(problem: ConvProblem) -> tuple[int, int]:
    """(elements before x's element 0, elements from it on) that kernels may read."""
    x = problem.x
    before = sum(pad * stride for pad, stride in zip(problem.pads, x.strides[2:5], strict=True))
    last = sum((x.shape[d] - 1) * x.strides[d] for d in (0, 1, 5))
    for d in range(3):
        end = (problem.y.shape[2 + d] - 1) * problem.strides[d] - problem.pads[d]
        end += (problem.kernel[d] - 1) * problem.dilations[d]
        last += max(end, x.shape[2 + d] - 1) * x.strides[2 + d]
    return before, last + 1
