"""A bench run as one plain document: the machine, the versions, the protocol, the cases, the summary."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import exp, log
from pathlib import Path
from typing import Any

from convopt.bench.compare import CaseResult, EngineResult
from convopt.bench.engines import Engine, Unavailable
from convopt.bench.peak import measure_peak
from convopt.bench.protocol import PROTOCOL
from convopt.targets import CpuTarget, host_cpu
from convopt.targets.cpu import usable_cores


@dataclass(frozen=True)
class Machine:
    """Where the measurement took place."""

    cpu: str
    flags: str  # those of vector units, as /proc/cpuinfo names them
    cores: int
    target: str


@dataclass(frozen=True)
class Run:
    """All cases with every engine on `threads` cores; peak_gflops is None with `peak_refused` saying why."""

    threads: int
    peak_gflops: float | None
    peak_refused: str | None
    cases: Sequence[CaseResult]


def describe_machine(target: CpuTarget | None = None) -> Machine:
    """Reads /proc/cpuinfo."""
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
    return Machine(model, flags, usable_cores(), target.name)


def run_of(threads: int, cases: Sequence[CaseResult]) -> Run:
    """Measures the peak beside the cases (0.1 s, plus the C compiler)."""
    peak = measure_peak(host_cpu(), threads)
    measured, refused = (peak, None) if isinstance(peak, float) else (None, peak)
    return Run(threads, measured, refused, cases)


def document(runs: Sequence[Run], engines: Mapping[str, Engine], precision: str) -> dict[str, Any]:
    """The JSON form that `convopt bench --json` prints."""
    return {
        "command": "bench",
        "protocol": PROTOCOL,
        "machine": asdict(describe_machine()),
        "precision": precision,
        "versions": {name: _version(engine) for name, engine in engines.items()},
        "runs": [_run(run) for run in runs],
    }


def _run(run: Run) -> dict[str, Any]:
    best = [r for case in run.cases if (r := case.ratio_to_best_peer) is not None]
    return {
        "threads": run.threads,
        "peak_gflops": run.peak_gflops,
        "peak_refused": run.peak_refused,
        "cases": [_case(case) for case in run.cases],
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
