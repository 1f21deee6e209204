"""The tensors at a module's boundary as the model declares them, and the check of what a caller passes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from convopt.errors import InputError
from convopt.runtime.loaded import numpy_dtype
from convopt.runtime.program import TensorSpec

Array = np.ndarray[Any, Any]
Shape = tuple[int, ...]


@dataclass(frozen=True)
class TensorInfo:
    """An input or output of a module.

    Dims are extents, names (equal names, equal extents) or None; without a shape only a run tells the rank.
    """

    name: str
    dtype: str
    shape: tuple[int | str | None, ...] | None
    channels_last: bool = False  # as of TensorSpec

    @classmethod
    def of(cls, spec: TensorSpec) -> TensorInfo:
        shape = tuple(None if extent < 0 else extent for extent in spec.shape)
        return cls(spec.name, spec.dtype, shape, spec.channels_last)

    @property
    def dims(self) -> str:
        """The shape as text: (1, 3, H, W), ? for a dim of any extent, (...) for any rank."""
        if self.shape is None:
            return "(...)"
        inside = ", ".join("?" if extent is None else str(extent) for extent in self.shape)
        return f"({inside},)" if len(self.shape) == 1 else f"({inside})"


def gather(
    inputs: Sequence[TensorInfo], positional: Sequence[Any], named: Mapping[str, Any]
) -> Sequence[Any]:
    """A call's arguments in the model's order. InputError for excess, unknown, doubled or missing ones."""
    if not named and len(positional) == len(inputs):
        return positional
    if not positional and len(named) == len(inputs):
        try:
            return [named[info.name] for info in inputs]
        except KeyError:  # the message is made below
            pass
    names = [info.name for info in inputs]
    if len(positional) > len(names):
        raise InputError(f"{len(positional)} inputs given, the model has {len(names)}: {', '.join(names)}")
    given = dict(zip(names, positional, strict=False))
    for name, value in named.items():
        if name in given:
            raise InputError(f"input {name!r} is given twice, by position and by name")
        if name not in names:
            raise InputError(f"the model has no input {name!r}; its inputs are {', '.join(names)}")
        given[name] = value
    missing = [name for name in names if name not in given]
    if missing:
        raise InputError(f"missing input {', '.join(map(repr, missing))}")
    return [given[name] for name in names]


def as_array(info: TensorInfo, value: Any) -> Array:
    """The argument, aligned, contiguous in the declared order of dims, copied only if need be.

    InputError names the input, what was expected and what came.
    """
    array = value if isinstance(value, np.ndarray) else _import(info, value)
    expected = numpy_dtype(info.dtype)
    if info.dtype == "string" and array.dtype.kind == "U":  # numpy's own strings, of fixed length
        array = array.astype(object)
    if array.dtype != expected:
        raise InputError(f"input {info.name!r}: expected dtype {info.dtype}, got {array.dtype}")
    if info.shape is not None and array.ndim != len(info.shape):
        raise InputError(
            f"input {info.name!r}: expected rank {len(info.shape)} {info.dims}, got shape {array.shape}"
        )
    if info.channels_last:
        return np.moveaxis(_contiguous(np.moveaxis(array, 1, -1)), -1, 1)
    return _contiguous(array)


def _contiguous(array: Array) -> Array:
    flags = array.flags
    if flags.c_contiguous and flags.aligned:
        return array
    return np.array(array, order="C", copy=True)


def _import(info: TensorInfo, value: Any) -> Array:
    if isinstance(value, np.generic):
        return np.asarray(value)
    if isinstance(value, dict):
        raise InputError(f"input {info.name!r}: got a dict; run() takes arrays by name")
    if not hasattr(value, "__dlpack__"):
        raise InputError(
            f"input {info.name!r}: expected a numpy array or an object with __dlpack__, "
            f"got {type(value).__name__}"
        )
    try:
        return np.from_dlpack(value)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise InputError(f"input {info.name!r}: its memory can't be read by DLPack: {error}") from error


def check_shapes(inputs: Sequence[TensorInfo], shapes: Sequence[Shape]) -> None:
    """InputError where a shape contradicts a declared extent, or two dims of one name differ."""
    seen: dict[str, tuple[int, str]] = {}
    for info, shape in zip(inputs, shapes, strict=True):
        for axis, (declared, extent) in enumerate(
            zip(info.shape or (None,) * len(shape), shape, strict=True)
        ):
            if isinstance(declared, int) and extent != declared:
                raise InputError(
                    f"input {info.name!r}: expected shape {info.dims}, got {shape}: dim {axis} is {extent}"
                )
            if isinstance(declared, str):
                first, where = seen.setdefault(declared, (extent, info.name))
                if first != extent:
                    raise InputError(
                        f"input {info.name!r}: expected shape {info.dims}, got {shape}: "
                        f"dim {declared!r} is {first} in {where!r} and {extent} here"
                    )
