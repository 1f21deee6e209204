"""Running an onnxruntime session on arrays of any ONNX element type that it knows."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

# Element types that numpy lacks, by their names in ml_dtypes: (as onnxruntime spells them, ONNX's number).
# Its numpy interface has none of them, so their memory is passed.
_FOREIGN = {
    "bfloat16": ("tensor(bfloat16)", 16),
    "float8_e4m3fn": ("tensor(float8e4m3fn)", 17),
    "float8_e4m3fnuz": ("tensor(float8e4m3fnuz)", 18),
    "float8_e5m2": ("tensor(float8e5m2)", 19),
    "float8_e5m2fnuz": ("tensor(float8e5m2fnuz)", 20),
    "uint4": ("tensor(uint4)", 21),
    "int4": ("tensor(int4)", 22),
}
_NAMES = {spelling: name for name, (spelling, _) in _FOREIGN.items()}
_HALVES = ("uint4", "int4")  # onnxruntime packs two into a byte, the first in its lower half


def run_session(session: Any, names: Sequence[str], feeds: Mapping[str, Array]) -> list[Array]:
    """The outputs of these names, also where an element type is bfloat16 or has 8 or 4 bits."""
    types = {output.name: output.type for output in session.get_outputs()}
    foreign = any(array.dtype.name in _FOREIGN for array in feeds.values())
    if not foreign and _NAMES.keys().isdisjoint(types[name] for name in names):
        results: list[Array] = session.run(names, feeds)
        return results
    values = {name: _as_value(array) for name, array in feeds.items()}
    return [_as_numpy(value) for value in session.run_with_ort_values(list(names), values)]


def _as_value(array: Array) -> Any:
    from onnxruntime import OrtValue

    name = array.dtype.name
    if name not in _FOREIGN:
        return OrtValue.ortvalue_from_numpy(array)
    bits = np.ascontiguousarray(array).view(f"u{array.dtype.itemsize}").reshape(array.shape)
    if name in _HALVES:
        flat = bits.reshape(-1) & 0xF
        flat = np.append(flat, np.zeros(flat.size % 2, np.uint8))
        bits = np.zeros(array.shape, np.uint8)  # of this shape, as the value will be; the rest is not read
        bits.reshape(-1)[: flat.size // 2] = flat[::2] | flat[1::2] << 4
    return OrtValue.ortvalue_from_numpy_with_onnx_type(bits, _FOREIGN[name][1])


def _as_numpy(value: Any) -> Array:
    name = _NAMES.get(value.data_type())
    if name is None:
        array: Array = value.numpy()
        return array
    import ml_dtypes

    dtype, shape = np.dtype(getattr(ml_dtypes, name)), value.shape()
    array = np.empty(shape, dtype)
    if name not in _HALVES:
        ctypes.memmove(array.ctypes.data, value.data_ptr(), array.nbytes)
        return array
    packed = np.empty(-(-array.size // 2), np.uint8)
    ctypes.memmove(packed.ctypes.data, value.data_ptr(), packed.nbytes)
    bits = np.stack([packed & 0xF, packed >> 4], -1).reshape(-1)[: array.size].reshape(shape)
    return (bits if name == "uint4" else (bits.astype(np.int8) ^ 8) - 8).astype(dtype)
