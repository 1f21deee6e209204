"""Convolutions on GPUs: instances of a family run on PoCL and compared with float64."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from convopt.codegen.device import DeviceCode
from convopt.targets import GpuTarget
from tests.device_harness import (
    Array,
    DeviceOperand,
    as_opencl,
    flat,
    numbers,
    opencl_code,
    rounded,
    run,
)
from tests.schedules.conv_cases import Case, Data, convolve
from tests.unit_emulation import Emulated

TOLERANCE = {"float32": 1e-5, "float16": 2e-3, "bfloat16": 1e-2}  # of the outputs' scale


def typed(case: Case, dtype: str) -> Case:
    """dtype: of the elements; "tf32": float32 that is multiplied in it."""
    if dtype == "tf32":
        return replace(case, x_dtype="float32", y_dtype="float32", arithmetic="tf32")
    return replace(case, x_dtype=dtype, y_dtype=dtype)


def draw(case: Case) -> Data:
    """Operands that the case's types can hold, and the expected values in float64.

    tf32's factors have its bits already, so that nothing is left to round.
    """
    data = Data.draw(replace(case, x_dtype="float32", y_dtype="float32"))
    data.case = case
    data.x, data.weight = (rounded(a, case.x_dtype) for a in (data.x, data.weight))
    if case.arithmetic == "tf32":
        data.x, data.weight = (_with_10_bits(a) for a in (data.x, data.weight))
    data.others = [rounded(np.ascontiguousarray(o), case.y_dtype) for o in data.others]
    sums = convolve(case.problem, data.x, data.weight, data.bias)
    data.expected = case.epilogue[1](sums, *(o.astype(np.float64) for o in data.others))
    return data


def _with_10_bits(array: Array) -> Array:
    return (np.ascontiguousarray(array, np.float32).view(np.uint32) & 0xFFFFE000).view(np.float32)


@dataclass(frozen=True)
class Outcome:
    y: Array  # as the device stored it
    error: float  # of the outputs' scale


def compute(
    schedule: Any,
    data: Data,
    target: GpuTarget,
    units: dict[str, Emulated] | None = None,
    times: int = 1,
    moves: dict[str, Emulated] | None = None,
) -> Outcome:
    return compute_all([(schedule, data)], target, units, times, moves)[0]


def compute_all(
    jobs: Sequence[tuple[Any, Data]],
    target: GpuTarget,
    units: dict[str, Emulated] | None = None,
    times: int = 1,
    moves: dict[str, Emulated] | None = None,
) -> list[Outcome]:
    """Of schedules on data of one input type, all in one program."""
    chip, functions = as_opencl(target), []
    for index, (schedule, data) in enumerate(jobs):
        refusal = schedule.why_not(data.case.problem, target)
        assert refusal is None, refusal
        functions += schedule.apply(data.case.problem, chip, f"kernel{index}")
    code = opencl_code(functions, chip, units, moves)
    outcomes = []
    for index, (schedule, data) in enumerate(jobs):
        own = tuple(k for k in code.kernels if k.symbol.startswith(f"kernel{index}_"))
        outcomes.append(_run(schedule, data, target, replace(code, kernels=own), times))
    return outcomes


def _run(schedule: Any, data: Data, target: GpuTarget, code: DeviceCode, times: int) -> Outcome:
    problem = data.case.problem
    packed = [flat(a) for a in schedule.pack(problem, target, data.weight, data.bias)]
    others = [DeviceOperand(view).fill(a) for view, a in zip(problem.others, data.others, strict=True)]
    workspace = schedule.workspace_bytes(problem, target) // 4
    partials = [flat(np.full(workspace, np.nan, np.float32))] if workspace else []
    y = DeviceOperand(problem.y)
    x = DeviceOperand(problem.x).fill(data.x)
    run(code, [x, *packed, *others, *partials, y], times)
    scale = max(1.0, float(np.abs(data.expected).max()))
    result = numbers(y.array, problem.y.dtype)
    error = float(np.abs(result - data.expected).max() / scale) if np.isfinite(result).all() else np.inf
    return Outcome(y.array.copy(), error)


def check(schedule: Any, data: Data, target: GpuTarget) -> None:
    check_all([(schedule, data)], target)


def check_all(jobs: Sequence[tuple[Any, Data]], target: GpuTarget) -> None:
    """Of one input type."""
    for (schedule, data), outcome in zip(jobs, compute_all(jobs, target), strict=True):
        allowed = TOLERANCE[data.case.y_dtype]
        assert outcome.error <= allowed, f"{outcome.error:.1e} off: {schedule} on {target.name}"
