"""From a model's file to its first result, each time in a fresh process: cold, warm, from an artifact."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from convopt.errors import ConvoptError

if TYPE_CHECKING:
    import numpy as np
    import onnx

WARM_STARTS = 3


class StartupError(ConvoptError):
    """A process that should have started a model failed; the text has its last words."""


@dataclass(frozen=True)
class Startup:
    """Seconds, medians over `processes`; each part begins where the one before ends."""

    import_s: float  # the interpreter's start and the import of what the state needs
    ready_s: float  # convopt.optimize, or convopt.load
    first_result_s: float
    total_s: float
    processes: int


def measure_startup(
    name: str,
    model: onnx.ModelProto,
    inputs: Mapping[str, np.ndarray[Any, Any]],
    threads: int,
    warm_starts: int = WARM_STARTS,
) -> dict[str, Startup]:
    """ "cold": no kernel is cached. "warm": all are. "artifact": loads what the cold start saved.

    Files are in the system's page cache in all three. The cold start happens once.
    """
    with tempfile.TemporaryDirectory(prefix="convopt-startup-") as folder:
        source, artifact = Path(folder, "model.onnx"), Path(folder, "model.convopt")
        source.write_bytes(model.SerializeToString())
        compile_task = {
            "source": str(source),
            "artifact": False,
            "inputs": {key: [array.dtype.name, list(array.shape)] for key, array in inputs.items()},
            "threads": threads,
            "cache_dir": str(Path(folder, "cache")),
            "save": None,
        }
        load_task = compile_task | {"source": str(artifact), "artifact": True}
        return {
            "cold": _startup([_start(name, "cold", compile_task | {"save": str(artifact)})]),
            "warm": _startup([_start(name, "warm", compile_task) for _ in range(warm_starts)]),
            "artifact": _startup([_start(name, "artifact", load_task) for _ in range(warm_starts)]),
        }


def measure_module_startup(
    name: str, batch: int, threads: int, warm_starts: int = WARM_STARTS
) -> dict[str, Startup]:
    """A module of `convopt.bench.torch_nets` behind torch.compile, which compiles in the first call.

    "cold" and "warm" as above. import_s includes torch's import; ready_s is the making of the module.
    """
    with tempfile.TemporaryDirectory(prefix="convopt-startup-") as folder:
        task = {"module": name, "batch": batch, "threads": threads, "cache_dir": folder}
        return {
            "cold": _startup([_start(name, "cold", task)]),
            "warm": _startup([_start(name, "warm", task) for _ in range(warm_starts)]),
        }


def _start(name: str, state: str, task: dict[str, Any]) -> list[float]:
    """The parts' seconds in one fresh process."""
    arguments = json.dumps({"spawned": time.monotonic()} | task)
    command = [sys.executable, "-m", "convopt.bench.startup_process", arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        raise StartupError(f"{name}: the {state} start failed: {last}")
    parts: list[float] = json.loads(done.stdout.splitlines()[-1])
    return parts


def _startup(starts: Sequence[list[float]]) -> Startup:
    imported, ready, first_result = (median(part) for part in zip(*starts, strict=True))
    return Startup(imported, ready, first_result, median(sum(start) for start in starts), len(starts))
