"""What an artifact for a GPU target needs, and what of it is on this machine: compiler, library, device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from convopt.errors import ConvoptError
from convopt.runtime import hip_library, hipcc
from convopt.runtime.device import open_device
from convopt.targets import GPU_TARGETS, GpuTarget


@dataclass(frozen=True)
class Found:
    """parts: the path or name of each part that is there: compiler, library, device.

    no_run: why the target's artifacts don't run here: the first thing that is missing, in words with the
    remedy; None where nothing is.
    """

    parts: Mapping[str, str]
    no_run: str | None


def find(target: GpuTarget) -> Found:
    parts: dict[str, str] = {}
    missing = []
    try:
        if target.kind == "hip":
            parts["compiler"] = hipcc.find_hipcc().name
    except ConvoptError as error:
        missing.append(str(error))
    try:
        if target.kind in ("hip", "rocm"):
            parts["library"] = hip_library.find_library().path
        device = open_device(target.kind)
        arch = getattr(device, "arch", "")
        parts["device"] = f"{device.name} ({arch})" if arch else device.name
        if arch and arch != target.arch:
            missing.append(f"the device here, {parts['device']}, is no {target.chip} ({target.arch})")
    except ConvoptError as error:
        missing.append(str(error))
    return Found(parts, missing[0] if missing else None)


def runnable() -> list[GpuTarget]:
    """The targets whose artifacts run on this machine."""
    return [target for target in GPU_TARGETS.values() if find(target).no_run is None]
