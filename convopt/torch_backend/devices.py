"""Which target runs on the device where a graph's tensors are."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from convopt.arguments import find_target, target_of_chip
from convopt.errors import InputError
from convopt.runtime.device_arrays import architecture_name


def target_for(tensors: Iterable[Any], given: str | None) -> str:
    """The target's name: `given`, checked against the tensors' device, or what that device is.

    A CPU tensor of one element may stand beside tensors on a GPU, as in torch.

    Raises:
        InputError: tensors on several devices, on one that has no target, or not on that of `given`.
    """
    found = [t for t in tensors if isinstance(t, torch.Tensor)]
    devices = {t.device for t in found}
    if len(devices) > 1:
        devices = {t.device for t in found if t.device.type != "cpu" or t.dim() > 0}
    if not devices:
        return given or "cpu"
    if len(devices) > 1:
        names = " and ".join(sorted(map(str, devices)))
        raise InputError(f"tensors on {names}: expected all of a graph's tensors on one device")
    (device,) = devices
    if device.type == "cpu":
        if given not in (None, "cpu"):
            raise InputError(f"a tensor on cpu, the target is {given!r}: expected tensors on that device")
        return "cpu"
    if device.type != "cuda":
        where = f"the target is {given or 'cpu'!r}"
        raise InputError(f"a tensor on {device}, {where}: expected tensors on the CPU, or a CUDA or ROCm GPU")
    chip = chip_of(device)
    if given is None:
        return target_of_chip(chip)
    target = find_target(given)
    if getattr(target, "arch", "cpu") != chip:
        raise InputError(
            f"a tensor on {device}, a {chip}; the target is {given!r}: leave it out, or move the tensors"
        )
    return given


def chip_of(device: torch.device) -> str:
    """ "sm_90", "gfx942"; torch calls ROCm's devices cuda too."""
    properties = torch.cuda.get_device_properties(device)
    return architecture_name(properties.major, properties.minor, str(getattr(properties, "gcnArchName", "")))
