"""What a call costs beside its kernels: Programs of empty kernels, called with a warm pool of threads."""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np

from convopt.codegen.link import c_compiler, link
from convopt.runtime.loaded import LoadedProgram
from convopt.runtime.module import CompiledModule
from convopt.runtime.program import Address, KernelStep, Program, TensorSpec

EMPTY_KERNEL = "void convopt_empty(int begin, int end, void *scratch, void *y) {}\n"
TASKS = 8  # of each kernel, so that every thread gets some
KERNELS = (1, 10, 100, 400)
CALLS = 2000
ARGUMENT = np.zeros(1, np.float32)


@dataclass(frozen=True)
class OverheadPoint:
    """Microseconds of a call that launches so many empty kernels."""

    kernels: int
    median_us: float
    min_us: float


@dataclass(frozen=True)
class Overhead:
    """kernel_us: what each kernel more adds to the median, from the shortest Program to the longest.

    call_us: what is left of the shortest one's median.
    """

    threads: int
    call_us: float
    kernel_us: float
    points: tuple[OverheadPoint, ...]


def measure_overhead(threads: int, kernels: Sequence[int] = KERNELS, calls: int = CALLS) -> Overhead:
    """kernels: at least two numbers, ascending. CompileError without a C compiler."""
    image = _empty_image()
    modules = [_module(image, count, threads) for count in kernels]
    # In turn, so that a busy machine slows all of them alike.
    times = [[_call_us(module) for module in modules] for _ in range(calls)]
    counted = list(zip(*times[calls // 10 :], strict=True))  # the pools and the caches are warm by then
    points = tuple(
        OverheadPoint(count, median(of), min(of)) for count, of in zip(kernels, counted, strict=True)
    )
    first, last = points[0], points[-1]
    each = (last.median_us - first.median_us) / (last.kernels - first.kernels)
    return Overhead(threads, first.median_us - first.kernels * each, each, points)


def _module(image: bytes, kernels: int, threads: int) -> CompiledModule:
    step = KernelStep("convopt_empty", (Address("output", 0, 0),), TASKS)
    x, y = (TensorSpec(name, "float32", (1,)) for name in "xy")
    program = Program((x,), (y,), 0, 0, (step,) * kernels)
    return CompiledModule([LoadedProgram(program, image)], threads=threads)


def _call_us(module: CompiledModule) -> float:
    start = time.perf_counter()
    module(ARGUMENT)
    return (time.perf_counter() - start) * 1e6


def _empty_image() -> bytes:
    """The executor linked with one kernel that returns at once."""
    with tempfile.TemporaryDirectory(prefix="convopt-") as folder:
        source, compiled = Path(folder, "empty.c"), Path(folder, "empty.o")
        source.write_text(EMPTY_KERNEL)
        subprocess.run([*c_compiler(), "-O1", "-fPIC", "-c", str(source), "-o", str(compiled)], check=True)
        return link([compiled])
