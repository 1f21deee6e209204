"""What the probes say of a device, beside what its declaration says."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from convopt.bench.bench_device import BenchDevice
from convopt.errors import ConvoptError
from convopt.schedules.gpu_probes import AtomicSums, BankReads, WaveSize

STRIDES = (1, 2, 4, 8, 16, 32, 64)  # words between neighbouring lanes
VISIBLE = 1.5  # slower by this factor than without conflicts: banks can be told from noise


@dataclass(frozen=True)
class Fact:
    """agrees: None where nothing can be said on this device; `text` tells why."""

    name: str
    agrees: bool | None
    text: str


def facts(bench: BenchDevice) -> list[Fact]:
    found = []
    for name, probe in (("wave size", _wave), ("atomic additions", _atomics), ("banks", _banks)):
        try:
            found.append(probe(bench))
        except ConvoptError as error:
            found.append(Fact(name, False, str(error)))
    return found


def _wave(bench: BenchDevice) -> Fact:
    target = bench.target
    if target.kind not in ("hip", "rocm"):
        return Fact("wave size", None, f"{target.kind} has no word for it")
    code = bench.code(WaveSize(), None, replace(target, kind="hip"))
    out = np.zeros(64, np.int32)
    bench.run(code, [], [out])
    agrees = bool((out == target.wave).all())
    return Fact("wave size", agrees, f"{out[0]} lanes, declared {target.wave}")


def _atomics(bench: BenchDevice) -> Fact:
    probe = AtomicSums(threads=min(256, bench.target.most_threads))
    out = np.zeros(2, np.float32)
    bench.run(bench.code(probe), [], [out])
    count = probe.blocks * probe.threads
    agrees = out.tolist() == [count, 0.5 * count]
    return Fact("atomic additions", agrees, f"{out[0]:g} and {out[1]:g} of {count} and {0.5 * count:g}")


def _banks(bench: BenchDevice) -> Fact:
    """The least stride beyond which reads get no slower is the number of banks (of 4 bytes)."""
    out = np.zeros(64, np.int32)
    times = {s: bench.run(bench.code(BankReads(s)), [], [out], repeats=5) for s in STRIDES}
    words = ", ".join(f"{s}: {t * 1e9 / BankReads(1).rounds:.1f} ns" for s, t in times.items())
    slowest = max(times.values())
    banks = next(s for s, t in times.items() if t > 0.9 * slowest)
    plateau = all(t > 0.8 * slowest for s, t in times.items() if s >= banks)
    if slowest < VISIBLE * times[1] or not plateau:
        return Fact("banks", None, f"no conflict is visible; time of a read by stride: {words}")
    declared = bench.target.banks
    return Fact(
        "banks", banks == declared, f"{banks} banks of 4 B, declared {declared}; read by stride: {words}"
    )
