"""A plan as something that can be timed anywhere: a Program of its kernels over memory of its own.

All operands lie in the arena, so that the time has no allocation in it. The Program's meta says where the
measuring process writes the input and reads the result: element counts and dtypes, byte offsets.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from convopt.codegen.cache import KernelCache, symbol_of
from convopt.codegen.link import link
from convopt.codegen.workers import KernelSource, compile_kernels
from convopt.errors import CompileError
from convopt.lowering.arena import ALIGNMENT
from convopt.lowering.assemble import LAUNCH_SECONDS
from convopt.lowering.base import (
    Constant,
    KernelCall,
    LoweringContext,
    LoweringOptions,
    Operand,
    Temporary,
)
from convopt.lowering.conv_operands import ConvOperands, packed_call
from convopt.lowering.im2col import im2col_calls
from convopt.runtime.loaded import LoadedProgram, numpy_dtype
from convopt.runtime.memory import Blob, Bytes
from convopt.runtime.module import CompiledModule
from convopt.runtime.program import Address, KernelStep, Program
from convopt.schedules.conv_problem import ConvProblem
from convopt.selection.plans import ConvPlan

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
    calls = {plan: _calls(problem, plan, memories[plan].values, options) for plan in plans}
    keys = {
        plan: [KernelSource(c.schedule, c.problem, options.target) for c in made]
        for plan, made in calls.items()
    }
    compiled = compile_kernels((s for made in keys.values() for s in made), cache, deadline=deadline)
    failures = {
        plan: compiled.failures[source.key]
        for plan, made in keys.items()
        for source in made
        if source.key in compiled.failures
    }
    try:
        image = link(compiled.objects, cache)
    except CompileError as error:
        return [], dict.fromkeys(plans, str(error))
    candidates = []
    for plan in (p for p in plans if p not in failures):
        memory = memories[plan]
        steps = tuple(
            _step(call, source.key, memory, options)
            for call, source in zip(calls[plan], keys[plan], strict=True)
        )
        meta = {"cpu_flags": list(options.cpu.cpu_flags), MEASURE: memory.description()}
        program = Program((), (), memory.size, memory.size, steps, (), meta)
        loaded = LoadedProgram(program, image, memory.weights())
        path = folder / f"{_digest(plan)}.convopt"
        CompiledModule([loaded], threads=options.threads).save(path)
        candidates.append(Candidate(plan, path))
    return candidates, failures


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
    if plan.expand_col:
        return im2col_calls(problem, plan.expand_col, plan.schedule, operands, context)
    return [packed_call(plan.schedule, problem, operands, context)]


class _Memory:
    """The arena and the weights of one candidate.

    values: what stands for x (with the border that the pads reach), the others and y.
    """

    def __init__(self, problem: ConvProblem) -> None:
        self.size = 0
        self._views = (problem.x, *problem.others, problem.y)
        self._starts: dict[Temporary, int] = {}  # byte of element 0
        self._blob = Blob()
        values = []
        for view in self._views:
            before, count = _reach(problem) if view is problem.x else (0, view.reach + 1)
            item = numpy_dtype(view.dtype).itemsize
            values.append(Temporary((before + count) * item))
            self._place(values[-1], before * item)
        self.values = tuple(values)

    def _place(self, value: Temporary, before: int) -> None:
        self._starts[value] = self.size + before
        self.size += -(-value.nbytes // ALIGNMENT) * ALIGNMENT

    def address(self, operand: Operand, offset: int, itemsize: int) -> Address:
        """`offset` in elements."""
        if isinstance(operand, Constant):
            return Address("weights", 0, self._blob.add(operand.array) + offset * operand.array.itemsize)
        assert isinstance(operand, Temporary)
        if operand not in self._starts:
            self._place(operand, 0)  # an unfolded matrix
        return Address("arena", 0, self._starts[operand] + offset * itemsize)

    def weights(self) -> Bytes:
        return self._blob.joined()

    def description(self) -> dict[str, Any]:
        """What the measuring process fills and reads; strides in elements, offset: byte of element 0."""
        views = [
            {"shape": view.shape, "strides": view.strides, "dtype": view.dtype, "offset": self._starts[value]}
            for view, value in zip(self._views, self.values, strict=True)
        ]
        return {"inputs": views[:-1], "output": views[-1]}


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


def _step(call: KernelCall, key: str, memory: _Memory, options: LoweringOptions) -> KernelStep:
    offsets = call.offsets or (0,) * len(call.operands)
    items = [numpy_dtype(view.dtype).itemsize for view in call.problem.operands]
    places = zip(call.operands, offsets, items, strict=True)
    return KernelStep(
        symbol_of(key),
        tuple(memory.address(operand, at, item) for operand, at, item in places),
        call.schedule.tasks(call.problem, options.target),
        call.schedule.scratch_bytes(call.problem, options.target),
        call.schedule.cost(call.problem, options.target).seconds < LAUNCH_SECONDS,
        label=call.label,
    )
