"""The machine's peak of fused multiply-adds, measured: what GFLOP/s figures are compared with."""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from convopt.codegen.link import c_compiler
from convopt.errors import CompileError

if TYPE_CHECKING:
    from convopt.targets import CpuTarget

SOURCE = Path(__file__).with_name("peak.c")
STEPS = 200_000  # about a millisecond
ROUNDS = 60


def measure_peak(target: CpuTarget, threads: int) -> float | str:
    """GFLOP/s of float32 multiply-adds on `threads` cores at once, or why it could not be measured.

    Each round, every thread runs its chains together with the others; the best round counts, since whatever
    else runs on the machine can only slow it down.
    """
    try:
        compiler = c_compiler()
    except CompileError as error:
        return str(error)
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "peak.so"
        command = [*compiler, "-O3", "-march=native", "-ffp-contract=fast", "-shared", "-fPIC"]
        command += [f"-DVECTOR_BYTES={target.vector_bytes}", "-o", str(library), str(SOURCE)]
        built = subprocess.run(command, capture_output=True, text=True, check=False)
        if built.returncode != 0:
            return f"{compiler[0]} failed: {(built.stderr.strip().splitlines() or ['no message'])[-1]}"
        loaded = ctypes.CDLL(str(library))
        run = loaded.convopt_fma_chains
        run.argtypes, run.restype = [ctypes.c_long], ctypes.c_float
        flop = STEPS * ctypes.c_long.in_dll(loaded, "convopt_flop_per_step").value
        return flop * threads / _best_seconds(lambda _: run(STEPS), threads, ROUNDS) / 1e9


def _best_seconds(work: Callable[[int], object], threads: int, rounds: int) -> float:
    """The shortest time of work(thread) while every thread does its own, on the slowest thread."""
    barrier = threading.Barrier(threads)
    best = [float("inf")] * threads

    def body(thread: int) -> None:
        for _ in range(rounds):
            barrier.wait()
            start = time.perf_counter()
            work(thread)
            best[thread] = min(best[thread], time.perf_counter() - start)

    workers = [threading.Thread(target=body, args=(i,)) for i in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return max(best)


def measure_bandwidth(threads: int = 1, megabytes: int = 256, rounds: int = 5) -> float:
    """GB/s of a copy through memory on `threads` cores at once, each its own part of `megabytes`.

    Bytes read and bytes written both count; the best round of the slowest thread.
    """
    import numpy as np

    source = np.ones((threads, (megabytes << 18) // threads), np.float32)
    sink = np.zeros_like(source)
    seconds = _best_seconds(lambda thread: np.copyto(sink[thread], source[thread]), threads, rounds)
    return 2 * source.nbytes / seconds / 1e9
