"""Arrays of other libraries that live on the device already: torch and cupy, by their CUDA array interface.

Neither library is imported here: who has such an array has imported it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from convopt.errors import InputError
from convopt.runtime.loaded import numpy_dtype
from convopt.runtime.program import TensorSpec
from convopt.runtime.signature import TensorInfo


@dataclass(frozen=True, eq=False)
class DeviceArray:
    """`value`, whose elements lie at `pointer` in the order that is wanted; `owner` keeps that memory."""

    value: Any
    owner: Any
    pointer: int
    shape: tuple[int, ...]
    nbytes: int


def memory_shape(spec: TensorSpec) -> tuple[int, ...]:
    """The extents in the order of memory, outermost first."""
    n, *rest = spec.shape or (1,)
    return (n, *rest[1:], rest[0]) if spec.channels_last else spec.shape


@dataclass(frozen=True)
class _Memory:
    """Where an array's elements lie; strides in bytes."""

    pointer: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def is_contiguous(self) -> bool:
        step = self.dtype.itemsize
        for extent, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if extent != 1 and stride != step:
                return False
            step *= extent
        return True


def _memory_of(value: Any) -> _Memory:
    """torch's by its own words, which know bfloat16; others' by the array interface."""
    if _is_torch(value):
        dtype = numpy_dtype(str(value.dtype).removeprefix("torch."))
        strides = tuple(s * dtype.itemsize for s in value.stride())
        return _Memory(int(value.data_ptr()), tuple(value.shape), strides, dtype)
    interface = value.__cuda_array_interface__
    dtype, shape = np.dtype(interface["typestr"]), tuple(int(n) for n in interface["shape"])
    strides = interface.get("strides")
    if strides is None:
        strides = tuple(dtype.itemsize * prod(shape[d + 1 :]) for d in range(len(shape)))
    return _Memory(int(interface["data"][0]), shape, tuple(strides), dtype)


def _is_torch(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def lives_on_device(value: Any) -> bool:
    """Whether it is a torch tensor on a GPU, or another array with a CUDA array interface."""
    if _is_torch(value):
        return bool(value.is_cuda)
    return getattr(value, "__cuda_array_interface__", None) is not None


def as_device_arrays(infos: Sequence[TensorInfo], values: Sequence[Any]) -> list[DeviceArray]:
    """The arguments, checked; made contiguous by their own library where they are not.

    InputError: an array on the host among them, another dtype or rank, a tensor that wants a gradient.
    """
    return [_checked(info, value) for info, value in zip(infos, values, strict=True)]


def _checked(info: TensorInfo, value: Any) -> DeviceArray:
    if not lives_on_device(value):
        raise InputError(
            f"input {info.name!r} is on the host, others are on the device: give all inputs on one side"
        )
    if getattr(value, "requires_grad", False):
        raise InputError(f"input {info.name!r} wants a gradient, which no output has: give x.detach()")
    memory = _memory_of(value)
    if memory.dtype != numpy_dtype(info.dtype):
        raise InputError(f"input {info.name!r}: expected dtype {info.dtype}, got {memory.dtype}")
    if info.shape is not None and len(memory.shape) != len(info.shape):
        raise InputError(
            f"input {info.name!r}: expected rank {len(info.shape)} {info.dims}, got shape {memory.shape}"
        )
    owner = _library(value).moveaxis(value, 1, -1) if info.channels_last else value
    return _device_array(value, owner, memory.shape)


def _device_array(value: Any, owner: Any, shape: tuple[int, ...]) -> DeviceArray:
    memory = _memory_of(owner)
    if not memory.is_contiguous:
        owner = owner.contiguous() if _is_torch(owner) else _library(owner).ascontiguousarray(owner)
        memory = _memory_of(owner)
    return DeviceArray(value, owner, memory.pointer, shape, prod(shape) * memory.dtype.itemsize)


def _library(value: Any) -> Any:
    name = "torch" if _is_torch(value) else type(value).__module__.partition(".")[0]
    if name not in ("torch", "cupy"):
        raise InputError(f"arrays of {name} on a device are not known; expected torch or cupy")
    return sys.modules[name]


def device_number(value: Any) -> int:
    """Which of its kind's devices the array is on, by its library's count."""
    return int(value.device.index if _is_torch(value) else value.device.id)


def gpu_of(value: Any) -> str | None:
    """The architecture of the device that the array is on: "sm_90", "gfx942"; None if it is on no device.

    `convopt.arguments.target_of` says which target that is.
    """
    if not lives_on_device(value):
        return None
    number, library = device_number(value), _library(value)
    if _is_torch(value):
        properties = library.cuda.get_device_properties(number)
        return architecture_name(
            properties.major, properties.minor, str(getattr(properties, "gcnArchName", ""))
        )
    found = library.cuda.runtime.getDeviceProperties(number)
    return architecture_name(found["major"], found["minor"], found.get("gcnArchName", b"").decode())


def architecture_name(major: int, minor: int, gcn_name: str = "") -> str:
    """ "sm_90", "gfx942" of a device's properties; torch for CUDA has a gcnArchName too: its name.

    NVIDIA's binaries run on later minor versions: 8.6 takes what is made for 8.0. Those of 7 are chips of
    their own.
    """
    if gcn_name.startswith("gfx"):
        return gcn_name.partition(":")[0]
    return f"sm_{major}{minor if major == 7 else 0}"


def current_stream(value: Any) -> int:
    """The stream on which the value's library works now."""
    library = _library(value)
    if _is_torch(value):
        return int(library.cuda.current_stream(value.device).cuda_stream)
    return int(library.cuda.get_current_stream().ptr)


def empty_like(value: Any, spec: TensorSpec) -> DeviceArray:
    """Uninitialised memory for an output, of the library and on the device of an input."""
    library, extents = _library(value), memory_shape(spec)
    if _is_torch(value):
        made = library.empty(extents, dtype=getattr(library, spec.dtype), device=value.device)
    else:
        with value.device:
            made = library.empty(extents, numpy_dtype(spec.dtype))
    result = library.moveaxis(made, -1, 1) if spec.channels_last else made
    return _device_array(result, made, spec.shape)
