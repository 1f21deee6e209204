"""Prints what a call costs beside its kernels: `python -m tests.runtime.call_overhead`.

The goal is 20 us per call, plus 1 us per kernel at one thread and 3 us per kernel at two, with empty kernels.
"""

from __future__ import annotations

import time
from statistics import median

import numpy as np

from convopt.runtime.loaded import LoadedProgram
from convopt.runtime.module import CompiledModule
from convopt.runtime.program import KernelStep, Program
from tests.runtime.snippets import at, floats, image


def empty_kernels(count: int) -> LoadedProgram:
    step = KernelStep("k_empty", (at("output"),), 8)
    return LoadedProgram(Program((floats("x", 1),), (floats("y", 1),), 64, 64, (step,) * count), image())


def microseconds(module: CompiledModule, calls: int) -> tuple[float, float]:
    """Median and minimum of a call's time."""
    x = np.zeros(1, np.float32)
    times = []
    for _ in range(calls):
        start = time.perf_counter()
        module(x)
        times.append((time.perf_counter() - start) * 1e6)
    return median(times[calls // 10 :]), min(times)


def main() -> None:
    print(f"{'threads':>7} {'kernels':>7} {'median us':>10} {'minimum us':>10} {'us/kernel':>10}")
    for threads in (1, 2, 4):
        fixed = 0.0
        for count in (1, 10, 100, 400):
            module = CompiledModule([empty_kernels(count)], threads=threads)
            middle, least = microseconds(module, 2000 if threads < 4 else 200)
            fixed = fixed or middle
            each = (middle - fixed) / (count - 1) if count > 1 else float("nan")
            print(f"{threads:7} {count:7} {middle:10.1f} {least:10.1f} {each:10.2f}")


if __name__ == "__main__":
    main()
