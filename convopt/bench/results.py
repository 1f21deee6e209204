"""A bench run as one plain document: the machine, the versions, the protocol, the cases, the summary."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import exp, log
from pathlib import Path
from typing import Any

from convopt.bench.compare import CaseResult, EngineResult
from convopt.bench.engines import Engine, Settings, Unavailable
from convopt.bench.peak import measure_peak
from convopt.bench.protocol import PROTOCOL
from convopt.targets import CpuTarget, host_cpu
from convopt.targets.cpu import usable_cores


@dataclass(frozen=True)
class Machine:
    """Where the run took place; peak_gflops at the run's threads, None with `peak_refused` saying why."""

    cpu: str
    flags: str  # those of vector units, as /proc/cpuinfo names them
    cores: int
    target: str
    peak_gflops: float | None
    peak_refused: str | None


def describe_machine(threads: int, target: CpuTarget | None = None) -> Machine:
    """Reads /proc/cpuinfo and measures the peak (0.1 s, plus the C compiler)."""
    target = target or host_cpu()
    model, flags = platform.processor() or platform.machine(), ""
    cpuinfo = Path("/proc/cpuinfo")
    for line in cpuinfo.read_text().splitlines() if cpuinfo.exists() else ():
        key, _, value = (part.strip() for part in line.partition(":"))
        if key == "model name":
            model = value
        elif key in ("flags", "Features"):
            vector = ("sse4", "avx", "fma", "f16c", "amx", "asimd", "sve", "bf16", "vaes")
            flags = " ".join(flag for flag in value.split() if flag.startswith(vector))
            break
    peak = measure_peak(target, threads)
    measured, refused = (peak, None) if isinstance(peak, float) else (None, peak)
    return Machine(model, flags, usable_cores(), target.name, measured, refused)


def document(
    cases: Sequence[CaseResult], engines: Mapping[str, Engine], settings: Settings, machine: Machine
) -> dict[str, Any]:
    """The JSON form that `convopt bench --json` prints."""
    best = [r for case in cases if (r := case.ratio_to_best_peer) is not None]
    return {
        "command": "bench",
        "protocol": PROTOCOL,
        "machine": asdict(machine),
        "threads": settings.threads,
        "precision": settings.precision,
        "versions": {name: _version(engine) for name, engine in engines.items()},
        "cases": [_case(case) for case in cases],
        "geomean_ratio_to_best_peer": geometric_mean(best) if best else None,
        "least_ratio_to_best_peer": min(best, default=None),
    }


def geometric_mean(values: Sequence[float]) -> float:
    return exp(sum(log(value) for value in values) / len(values))


def _version(engine: Engine) -> str | None:
    try:
        return engine.version()
    except Unavailable:
        return None


def _case(case: CaseResult) -> dict[str, Any]:
    return {
        "name": case.name,
        "count": case.count,
        "flop": case.flop,
        "end_to_end": {name: _engine(result, case.flop) for name, result in case.end_to_end.items()},
        "native": {name: _engine(result, case.flop) for name, result in case.native.items()} or None,
        "ratio_end_to_end": case.ratio_end_to_end,
        "ratio_native": case.ratio_native or None,
        "ratio_to_best_peer": case.ratio_to_best_peer,
    }


def _engine(result: EngineResult, flop: int | None) -> dict[str, Any]:
    timing = result.timing
    return {
        "layout": result.layout,
        "median_ms": timing and timing.median_ms,
        "min_ms": timing and timing.min_ms,
        "calls": timing and timing.calls,
        "gflops": flop / timing.median_ms / 1e6 if timing and flop else None,
        "max_error": result.max_error,
        "refused": result.refused,
    }
