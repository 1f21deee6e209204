"""The arguments of `optimize`, checked: what each may be, and one error that says so."""

from __future__ import annotations

import logging
import operator
import os
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from convopt.codegen.device import why_no_compiler
from convopt.errors import CompilerMissing, InputError
from convopt.ir.precision import PRECISIONS, Precision
from convopt.runtime.cuda_device import this_gpu
from convopt.runtime.device_arrays import gpu_of
from convopt.runtime.hip_device import this_chip
from convopt.runtime.machine import allow_tiles
from convopt.targets import GPU_TARGETS, CpuTarget, GpuTarget, host_cpu
from convopt.targets import find_target as find_gpu

logger = logging.getLogger("convopt")

Array = np.ndarray[Any, Any]
FAMILIES = ("cuda", "rocm", "hip", "dcu")  # as targets: the device of it that is here
Verify = bool | Literal["raise"] | Mapping[str, Array]


def find_target(name: str) -> CpuTarget | GpuTarget:
    """The target of that name; "cuda", "rocm", "hip" and "dcu": that of the device here.

    InputError: no such target. CompilerMissing: nothing here compiles for it. DeviceMissing: there is no such
    device. Both with the remedy.
    """
    check_target(name)
    if name == "cpu":
        return host_cpu()
    found = find_gpu_here(name)
    if (refusal := why_no_compiler(found)) is not None:
        raise CompilerMissing(f"target {name}: {refusal}")
    return found


def check_target(name: object) -> None:
    """InputError, with the names that there are: it is none of them."""
    if not isinstance(name, str) or name not in ("cpu", *FAMILIES, *GPU_TARGETS):
        raise InputError(
            f"target {name!r} is not known; expected cpu, {', '.join(FAMILIES)} (the device that is here) or"
            f" one of {', '.join(sorted(GPU_TARGETS))}"
        )


def find_gpu_here(name: str) -> GpuTarget:
    """The GPU target of that name, whether or not it can be compiled for; of a family the one that is here.

    InputError: no such target. DeviceMissing: a family without a device.
    """
    if name == "cuda":
        return find_gpu(this_gpu())
    return find_gpu(_of_chip(name, this_chip()) if name in FAMILIES else name)


def target_of(value: object) -> str | None:
    """The name of the target that runs on the device where a torch or cupy array is; None on the host.

    Pass it as `optimize(..., target=target_of(tensor))`: the module then takes such arrays by their pointers
    and works on the stream that their library works on.

    InputError: no target is of that chip.
    """
    architecture = gpu_of(value)
    return None if architecture is None else target_of_chip(architecture)


def target_of_chip(architecture: str) -> str:
    """The name of the target for "sm_90", "gfx942" or the like. InputError: there is none."""
    families = ("cuda",) if architecture.startswith("sm_") else ("dcu", "hip")  # compiled where they run
    return _of_chip(families, architecture)


def _of_chip(families: str | tuple[str, ...], architecture: str) -> str:
    """The first target of the families, the text before the colon, that is such a chip."""
    wanted = (families,) if isinstance(families, str) else families
    for name, target in GPU_TARGETS.items():
        if name.partition(":")[0] in wanted and target.arch == architecture:
            return name
    raise InputError(
        f"no target of {' or '.join(wanted)} is a {architecture}, the chip here (`convopt doctor` lists all)"
    )


def usable_target(target: CpuTarget | GpuTarget, precision: str) -> CpuTarget | GpuTarget:
    """The target as this process may use it: pairs of bfloat16 where the system gives no AMX tiles."""
    if precision != "bf16" or not isinstance(target, CpuTarget) or target.bf16 != "amx" or target.emulated:
        return target
    refusal = allow_tiles()
    if refusal is not None:
        logger.warning("bf16 without AMX: %s", refusal)
    return target if refusal is None else replace(target, bf16="dot")


def check_count(name: str, value: object, most: int = 2**63 - 1) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
        limit = f" to {most}" if most < 2**63 - 1 else " or more"
        raise InputError(f"{name} is {value!r}; expected an integer of 1{limit}")


def check_choices(
    precision: str, verify: Verify, check: str | None, skip: Collection[str], algorithm: str
) -> None:
    if precision not in PRECISIONS:
        raise InputError(f"precision is {precision!r}; expected {', '.join(PRECISIONS)}")
    if not isinstance(verify, bool | Mapping) and verify != "raise":
        raise InputError(f"verify is {verify!r}; expected True, False, 'raise' or arrays by input name")
    if check not in (None, "each-pass"):
        raise InputError(f"check is {check!r}; expected each-pass or nothing")
    if algorithm not in ("auto", "direct", "im2col"):
        raise InputError(f"algorithm is {algorithm!r}; expected auto, direct or im2col")
    if isinstance(verify, Mapping) and not all(isinstance(a, np.ndarray) for a in verify.values()):
        raise InputError("verify has a value that is no numpy array; expected arrays by input name")
    if isinstance(skip, str):
        raise InputError(f"skip is the text {skip!r}; expected a list of passes' names")
    if not isinstance(skip, Collection) or not all(isinstance(name, str) for name in skip):
        raise InputError(f"skip is {skip!r}; expected a list of passes' names")


def check_kinds(tune: float | None, deterministic: bool, **callbacks: object) -> None:
    if not isinstance(deterministic, bool):
        raise InputError(f"deterministic is {deterministic!r}; expected True or False")
    if tune is not None and (
        not isinstance(tune, int | float) or isinstance(tune, bool) or not 0 < tune < float("inf")
    ):
        raise InputError(f"tune is {tune!r}; expected seconds, more than 0")
    for name, value in callbacks.items():
        if value is not None and not callable(value):
            raise InputError(f"{name} is {value!r}; expected a function")


def folder_of(cache_dir: str | os.PathLike[str] | None) -> Path | None:
    """None: the default one. InputError: no path, or that of a file: nothing would ever be kept."""
    if cache_dir is None:
        return None
    if not isinstance(cache_dir, str | os.PathLike) or "\0" in (name := os.fspath(cache_dir)) or not name:
        raise InputError(f"cache_dir is {cache_dir!r}; expected the path of a folder")
    folder = Path(cache_dir)
    with suppress(OSError):  # what can't be looked at costs the cache, not the compilation
        if folder.is_file():
            raise InputError(f"cache_dir {folder} is a file; expected the path of a folder")
    return folder


def precision_of(name: str, keep_fp32: Collection[str], target: CpuTarget | GpuTarget) -> Precision:
    if isinstance(keep_fp32, str):
        raise InputError(f"keep_fp32 is the text {keep_fp32!r}; expected a list of nodes' names")
    if not isinstance(keep_fp32, Collection) or not all(isinstance(node, str) for node in keep_fp32):
        raise InputError(f"keep_fp32 is {keep_fp32!r}; expected a list of nodes' names")
    if keep_fp32 and name == "fp32":
        raise InputError(
            'keep_fp32 goes with precision "fp16", "bf16" and "tf32": in "fp32" every node is float32'
        )
    if name == "tf32" and (isinstance(target, CpuTarget) or not target.has_tf32):
        raise InputError(
            f'precision "tf32": {target.name} has no matrix unit that multiplies in it; "fp32" is float32 on'
            " every target"
        )
    if not isinstance(target, CpuTarget):
        return Precision(name, frozenset(keep_fp32))
    if name == "bf16" and (reason := target.why_no_bf16) is not None:
        raise InputError(f'precision "bf16": {reason}; "fp16" stores 16 bits on any CPU')
    return Precision(name, frozenset(keep_fp32))


def extents_of(shapes: Mapping[str, Sequence[int]]) -> dict[str, tuple[int, ...]]:
    try:
        return {name: tuple(operator.index(extent) for extent in extents) for name, extents in shapes.items()}
    except (AttributeError, TypeError, ValueError):
        raise InputError(
            f"shapes is {shapes!r}; expected integers by input name, as in {{'x': (1, 3, 224, 224)}}"
        ) from None
