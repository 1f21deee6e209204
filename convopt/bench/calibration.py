"""This machine's peak, bandwidth and launch cost, measured once and kept beside the declared numbers.

The file is calibration.json in the cache folder: chip -> number of threads (0: it is a GPU) -> what was
measured. Of a machine that is not in it nothing is assumed.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from convopt.bench.overhead import measure_overhead
from convopt.bench.peak import measure_bandwidth, measure_peak
from convopt.errors import CompileError, InputError
from convopt.runtime.folders import naming, written_whole
from convopt.targets import host_cpu
from convopt.targets.cpu import chip_name

FILE = "calibration.json"


@dataclass(frozen=True)
class Calibration:
    """peak_gflops: multiply-adds in registers on that many threads. bandwidth_gbs: a copy through memory on
    one core, bytes read and written. launch_us: what a kernel more adds to a call. at: seconds since 1970.
    """

    peak_gflops: float
    bandwidth_gbs: float
    launch_us: float
    at: float


def calibrate(threads: int) -> Calibration:
    """Measures for a few seconds; the machine should be idle.

    Raises:
        CompileError: there is no C compiler.
    """
    target = host_cpu()
    peak = measure_peak(target, threads)
    if isinstance(peak, str):
        raise CompileError(f"the peak can't be measured: {peak}")
    launch = measure_overhead(threads, (1, 100), 500).kernel_us
    return Calibration(peak, measure_bandwidth(), launch, time.time())


def load(folder: Path) -> dict[int, Calibration]:
    """What was measured on this chip, by number of threads.

    Raises:
        InputError: the file is damaged; the text says how to mend that.
    """
    found = _read(folder / FILE).get(chip_name(), {})
    try:
        return {int(threads): Calibration(**values) for threads, values in found.items()}
    except (TypeError, ValueError) as error:
        raise InputError(f"{folder / FILE} is damaged ({error}): remove it and calibrate again") from error


def save(folder: Path, threads: int, calibration: Calibration, chip: str | None = None) -> Path:
    """Adds to the file, which appears whole or not at all. chip: a GPU's name; this machine's by default."""
    path = folder / FILE
    with naming(folder):
        folder.mkdir(parents=True, exist_ok=True)
    known = _read(path)
    known.setdefault(chip or chip_name(), {})[str(threads)] = asdict(calibration)
    with written_whole(path) as temporary:
        temporary.write_text(json.dumps(known, indent=1))
    return path


def _read(path: Path) -> dict[str, dict[str, Mapping[str, float]]]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return {}  # nothing that this user measured
    except ValueError as error:
        raise InputError(f"{path} is damaged ({error}): remove it and calibrate again") from error
    if not isinstance(found, dict) or not all(isinstance(value, dict) for value in found.values()):
        raise InputError(f"{path} is damaged (no chips in it): remove it and calibrate again")
    return found
