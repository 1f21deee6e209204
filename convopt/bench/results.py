"""A bench run as one plain document: the machine, the versions, the protocol, the cases, the summary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import exp, log
from pathlib import Path
from typing import Any

from convopt.bench.bench_device import BenchDevice
from convopt.bench.compare import CaseResult, EngineResult
from convopt.bench.engine import Engine, Unavailable, version_of
from convopt.bench.peak import measure_bandwidth, measure_peak
from convopt.bench.protocol import PROTOCOL
from convopt.errors import InputError
from convopt.targets import GpuTarget, host_cpu
from convopt.targets.cpu import chip_name, usable_cores


@dataclass(frozen=True)
class Machine:
    """Where the measurement took place."""

    cpu: str
    flags: str  # those of vector units, as /proc/cpuinfo names them
    cores: int
    target: str
    device: str | None = None  # its own name, where the target is a GPU


def describe_machine(on: BenchDevice | None = None) -> Machine:
    """Reads /proc/cpuinfo. on: the GPU that all engines run on."""
    flags = ""
    cpuinfo = Path("/proc/cpuinfo")
    for line in cpuinfo.read_text().splitlines() if cpuinfo.exists() else ():
        key, _, value = (part.strip() for part in line.partition(":"))
        if key in ("flags", "Features"):
            vector = ("sse4", "avx", "fma", "f16c", "amx", "asimd", "sve", "bf16", "vaes")
            flags = " ".join(flag for flag in value.split() if flag.startswith(vector))
            break
    if on is not None:
        return Machine(chip_name(), flags, usable_cores(), on.target.name, on.text)
    return Machine(chip_name(), flags, usable_cores(), host_cpu().name)


@dataclass(frozen=True)
class Limits:
    """What the machine can do on `threads` cores; peak_gflops is None with `peak_refused` saying why."""

    threads: int
    peak_gflops: float | None
    peak_refused: str | None
    bandwidth_gbs: float


def measure_limits(threads: int) -> Limits:
    """Takes half a second, plus the C compiler."""
    peak = measure_peak(host_cpu(), threads)
    measured, refused = (peak, None) if isinstance(peak, float) else (None, peak)
    return Limits(threads, measured, refused, measure_bandwidth(threads, rounds=3))


def declared_limits(target: GpuTarget, precision: str, threads: int) -> Limits:
    """What the chip's declaration says, of its matrix units where it has some for the precision's type."""
    dtype = {"fp32": "float32", "tf32": "float32", "fp16": "float16", "bf16": "bfloat16"}[precision]
    unit = target.unit_of(dtype, "tf32" if precision == "tf32" else "float32")
    peak = target.flops(unit) * target.compute_units * target.clock / 1e9
    return Limits(threads, peak, None, target.memory_rate / 1e9)


def run_document(limits: Limits, cases: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The cases' documents on as many threads, and their summary."""
    best = {case["name"]: case["ratio_to_best_peer"] for case in cases}
    kinds = dict.fromkeys(case["kind"] for case in cases if case["kind"])
    return {
        **asdict(limits),
        "cases": list(cases),
        "kinds": {kind: _summary([c for c in cases if c["kind"] == kind]) for kind in kinds},
        "behind": sorted((n for n, ratio in best.items() if ratio and ratio < 1), key=lambda n: best[n]),
        **_summary(cases),
    }


def _summary(cases: Sequence[dict[str, Any]]) -> dict[str, Any]:
    best = [case["ratio_to_best_peer"] for case in cases if case["ratio_to_best_peer"] is not None]
    return {
        "geomean_ratio_to_best_peer": geometric_mean(best) if best else None,
        "least_ratio_to_best_peer": min(best, default=None),
    }


def document(
    runs: Sequence[dict[str, Any]],
    engines: Mapping[str, Engine],
    precision: str,
    seconds: float,
    on: BenchDevice | None = None,
) -> dict[str, Any]:
    """The JSON form that `convopt bench --json` prints."""
    return {
        "command": "bench",
        "protocol": PROTOCOL,
        "machine": asdict(describe_machine(on)),
        "precision": precision,
        "seconds": seconds,
        "versions": {name: _version(engine) for name, engine in engines.items()},
        "runs": list(runs),
    }


def geometric_mean(values: Sequence[float]) -> float:
    return exp(sum(log(value) for value in values) / len(values))


def _version(engine: Engine) -> str | None:
    try:
        return version_of(engine.packages)
    except Unavailable:
        return None


def case_document(result: CaseResult) -> dict[str, Any]:
    """One case as it stands in the document's runs."""
    case = result.case
    flop = case.flop if case else None
    return {
        "name": result.name,
        "kind": case and case.kind,
        "count": result.count,
        "flop": flop,
        "nbytes": case and case.nbytes,
        "end_to_end": {name: _engine(one, flop) for name, one in result.end_to_end.items()},
        "native": {name: _engine(one, flop) for name, one in result.native.items()} or None,
        "ratio_end_to_end": result.ratio_end_to_end,
        "ratio_native": result.ratio_native or None,
        "ratio_to_best_peer": result.ratio_to_best_peer,
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


def earlier_cases(
    earlier: Mapping[str, Any], now: Mapping[str, Any]
) -> dict[tuple[int, str], dict[str, Any]]:
    """(threads, name) -> the case's document, from a document that an interrupted run left.

    Raises:
        InputError: it was measured on another machine, or with other engines, precision or seconds.
    """
    for key in ("machine", "precision", "seconds", "versions", "protocol"):
        if earlier.get(key) != now[key]:
            raise InputError(f"--resume: the file was measured with another {key}: {earlier.get(key)!r}")
    return {(run["threads"], case["name"]): case for run in earlier["runs"] for case in run["cases"]}
