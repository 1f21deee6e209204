"""Every convolution family on small shapes, against float64 on the CPU; the contest's cases, timed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from convopt.bench.bench_device import BenchDevice
from convopt.bench.cases import ConvCase, conv_problem
from convopt.bench.suites import contest
from convopt.errors import ConvoptError
from convopt.schedules.conv_problem import ConvProblem
from convopt.schedules.gpu_conv_depthwise import GpuDepthwise
from convopt.schedules.gpu_conv_direct import GpuDirectConv
from convopt.schedules.gpu_implicit_gemm import ImplicitGemm
from convopt.selection.choose_gpu import choose_gpu_conv
from convopt.selftest.check import TOLERANCE, Check
from convopt.targets import GpuTarget

Array = np.ndarray[Any, Any]
REPEATS = 10
FINAL_CASES = 6  # of the contest; what follows are its preliminary ones
# An odd number of channels, a stride, tails in every tile; then one for a wide tile.
SMALL = (ConvCase(2, 16, 9, 7, 27, 3, 3, 1, 1), ConvCase(1, 24, 15, 11, 40, 3, 3, 2, 1))
DEPTHWISE = ConvCase(2, 24, 9, 10, 24, 3, 3, 2, 1, groups=24)


def dense_problem(case: ConvCase, dtype: str) -> ConvProblem:
    """The case with an input without border: GPU kernels check it themselves."""
    problem = conv_problem(case, dtype)
    image = case.h * case.w * case.c
    strides = (case.c // case.groups, image, image, case.w * case.c, case.c, 1)
    return replace(problem, x=replace(problem.x, strides=strides))


def families(problem: ConvProblem, target: GpuTarget) -> Iterator[tuple[str, Any]]:
    """Each family, each unit, with each primitive on and all of them off."""
    yield "direct", GpuDirectConv()
    for unit in ("simt", *target.matrix_units):
        forms = [s for s in ImplicitGemm.space(problem, target) if s.unit == unit]
        if not forms:
            continue
        plain = next((s for s in forms if s.split_k == 1 and s.stages == 1), forms[0])
        variants = {
            "plain": replace(plain, pad=(0, 0, 0), swizzle=(1, 1), epilogue="direct"),
            "padded, shared epilogue": plain,
            "2 stages": next((s for s in forms if s.stages == 2 and s.split_k == 1), None),
            "swizzled": next((s for s in forms if s.swizzle != (1, 1) and s.split_k == 1), None),
            "split-K": next((s for s in forms if s.split_k > 1 and not s.atomic), None),
            "split-K, atomic": next((s for s in forms if s.split_k > 1 and s.atomic), None),
        }
        for text, schedule in variants.items():
            if schedule is not None and schedule.why_not(problem, target) is None:
                yield f"implicit GEMM {unit}, {text}", schedule


@dataclass(frozen=True)
class SmallCase:
    name: str
    schedule: Any
    problem: ConvProblem
    case: ConvCase

    def check(self, bench: BenchDevice) -> Check:
        return checked(bench, self.name, self.problem, self.case, self.schedule)


def small_cases(target: GpuTarget) -> Iterator[SmallCase]:
    for dtype in ("float32", "float16"):
        for case in SMALL[:1] if dtype == "float32" else SMALL:
            problem = dense_problem(case, dtype)
            for name, schedule in families(problem, target):
                yield SmallCase(f"{name}, {dtype}, {case.text}", schedule, problem, case)
        problem = dense_problem(DEPTHWISE, dtype)
        vectors: dict[int, GpuDepthwise] = {}
        for schedule in GpuDepthwise.space(problem, target):
            vectors.setdefault(schedule.vector, schedule)
        for schedule in vectors.values():
            name = f"depthwise by {schedule.vector} channels, {dtype}, {DEPTHWISE.text}"
            yield SmallCase(name, schedule, problem, DEPTHWISE)


def checked(
    bench: BenchDevice, name: str, problem: ConvProblem, case: ConvCase, schedule: Any, repeats: int = 0
) -> Check:
    """The schedule's result against float64."""
    dtype = problem.x.dtype
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (case.n, case.h, case.w, case.c)).astype(dtype)
    g, per_group = case.groups, case.c // case.groups
    weight = rng.uniform(-1, 1, (case.k, per_group, case.r, case.s)).astype(dtype).astype(np.float32)
    bias = rng.uniform(-1, 1, case.k).astype(np.float32) if problem.bias else None
    normal = weight.reshape(g, case.k // g, per_group, 1, case.r, case.s)
    packed = schedule.pack(problem, bench.target, normal, None if bias is None else bias.reshape(g, -1))
    scratch = schedule.workspace_bytes(problem, bench.target)
    workspace = [np.zeros(scratch, np.uint8)] if scratch else []
    oh, ow = case.output_size
    y = np.zeros((case.n, oh, ow, case.k), dtype)
    try:
        code = bench.code(schedule, problem)
        seconds = bench.run(code, [x, *packed, *workspace], [y], repeats)
    except (ConvoptError, MemoryError) as error:
        return Check(name, None, TOLERANCE[dtype], reason=str(error))
    expected = _convolution(x, weight, bias, case)
    if not np.isfinite(y).all():
        return Check(name, None, TOLERANCE[dtype], seconds, "not finite")
    largest = float(np.abs(y - expected).max() / np.abs(expected).max())
    return Check(name, largest, TOLERANCE[dtype], seconds)


def _convolution(x: Array, weight: Array, bias: Array | None, case: ConvCase) -> Array:
    """In float64; of large cases float32 sums over the taps in float64, whose error is far below fp16's."""
    kind = np.float64 if case.flop < 1e9 else np.float32
    pads = ((0, 0), (case.pad, case.pad), (case.pad, case.pad), (0, 0))
    padded, (oh, ow) = np.pad(x.astype(kind), pads), case.output_size
    total = np.zeros((case.n, oh, ow, case.k)) + (0.0 if bias is None else bias)
    for i in range(case.r):
        for j in range(case.s):
            rows = slice(i * case.dilation, i * case.dilation + (oh - 1) * case.stride + 1, case.stride)
            columns = slice(j * case.dilation, j * case.dilation + (ow - 1) * case.stride + 1, case.stride)
            seen, taps = padded[:, rows, columns], weight[:, :, i, j].astype(kind)
            for g in range(case.groups):
                c, k = (slice(g * e // case.groups, (g + 1) * e // case.groups) for e in (case.c, case.k))
                total[..., k] += seen[..., c] @ taps[k].T
    return total


def contest_checks(bench: BenchDevice, deadline: float) -> Iterator[tuple[ConvCase, Check]]:
    """The six final cases in float16. deadline: of time.monotonic(); what would pass it is left out."""
    rate = None  # FLOP/s of the whole check so far, compiling and the reference included
    for case, _ in contest()[:FINAL_CASES]:
        problem = dense_problem(case, "float16")
        start = time.monotonic()
        needed = case.flop / rate if rate else case.flop / 1e9
        if start + needed > deadline:
            reason = f"left out: about {needed:.0f} s, and {max(0.0, deadline - start):.0f} s are left"
            yield case, Check(case.text, None, TOLERANCE["float16"], reason=reason)
            continue
        schedule = choose_gpu_conv(problem, bench.target, (GpuDirectConv, ImplicitGemm))
        yield case, checked(bench, repr(schedule), problem, case, schedule, REPEATS)
        rate = case.flop / (time.monotonic() - start)
