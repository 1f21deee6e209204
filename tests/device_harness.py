"""Runs the device functions of a GPU schedule on PoCL, on operands in numpy arrays.

A chip other than "opencl" is taken at its word (tiles, waves, units); only its code is OpenCL, with matrix
units and copies emulated. Operands lie between bytes of a pattern, checked afterwards.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from convopt.codegen import opencl
from convopt.codegen.device import DeviceCode
from convopt.codegen.device_lowering import lower
from convopt.runtime.device import open_device
from convopt.runtime.program import Launch
from convopt.schedules.base import TensorView
from convopt.targets import GpuTarget
from tests.unit_emulation import (
    EMULATED,
    Emulated,
    copies,
    emulation,
    fragment_moves,
    ldmatrix,
    with_scratch,
)

Array = np.ndarray[Any, Any]
PATTERN = 0xA5
FENCE = 64  # bytes of pattern on either side


def stored(array: Array, dtype: str) -> Array:
    """As the device keeps it: bfloat16 as its bits, rounded to nearest even."""
    if dtype != "bfloat16":
        return array.astype(dtype)
    bits = np.ascontiguousarray(array, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def numbers(array: Array, dtype: str) -> Array:
    """What the device's bytes mean, in float64."""
    if dtype != "bfloat16":
        return array.astype(np.float64)
    return (array.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def rounded(array: Array, dtype: str) -> Array:
    """Values that `dtype` can hold, as float32."""
    return numbers(stored(array, dtype), dtype).astype(np.float32)


class DeviceOperand:
    """A view's memory on the host, and where element 0 lies in it."""

    def __init__(self, view: TensorView) -> None:
        self.view = view
        self.kind = np.dtype("uint16" if view.dtype == "bfloat16" else view.dtype)
        self.bytes = np.full((view.reach + 1) * self.kind.itemsize + 2 * FENCE, PATTERN, np.uint8)

    @property
    def array(self) -> Array:
        strides = tuple(s * self.kind.itemsize for s in self.view.strides)
        return np.ndarray(self.view.shape, self.kind, self.bytes, FENCE, strides)

    def fill(self, values: Array) -> DeviceOperand:
        distinct = tuple(slice(0, 1) if s == 0 else slice(None) for s in self.view.strides)
        self.array[distinct] = stored(values[distinct], self.view.dtype)
        return self

    def outside(self) -> bytes:
        rest = self.bytes.copy()
        strides = tuple(s * self.kind.itemsize for s in self.view.strides)
        np.ndarray(self.view.shape, self.kind, rest, FENCE, strides)[...] = 0
        return rest.tobytes()


def flat(array: Array) -> DeviceOperand:
    operand = DeviceOperand(TensorView((array.size,), (1,), str(array.dtype)))
    operand.array[...] = array.reshape(-1)
    return operand


def as_opencl(target: GpuTarget) -> GpuTarget:
    """The chip with OpenCL code, all shared memory static."""
    return replace(target, kind="opencl", static_shared=target.shared_per_block)


def opencl_code(
    functions: Sequence[Any],
    target: GpuTarget,
    units: dict[str, Emulated] | None = None,
    moves: dict[str, Emulated] | None = None,
) -> DeviceCode:
    """The functions' OpenCL, with what they call emulated by `units`; their elements are of one type.

    moves: whose layouts an opaque unit's loads and stores have, if not those of EMULATED.
    """
    code = opencl.generate(lower(functions, opencl.tvm_target(target)), target)
    source = emulated(code.source, max(k.block[0] for k in code.kernels) // target.wave, units, moves)
    return DeviceCode(code.kernels, source, source.encode())


def emulated(
    source: str,
    waves: int,
    units: dict[str, Emulated] | None = None,
    moves: dict[str, Emulated] | None = None,
) -> str:
    """The source with the units and copies that it calls, for blocks of up to so many waves."""
    prelude = ""
    for name, unit in (units or EMULATED).items():
        for dtype in unit.dtypes:
            if re.search(rf"\b{unit.helper}_{dtype}\(", source):
                prelude += emulation(unit, dtype)
                prelude += fragment_moves((moves or EMULATED)[name], dtype) if unit.opaque else ""
                if "convopt_ldmatrix_x4(" in source and "emulated_ldmatrix" not in prelude:
                    prelude += ldmatrix(dtype)
    if prelude:
        source = with_scratch(source, waves)
    if "convopt_copy_commit(" in source:
        prelude += copies()
    first = source.index("__kernel")
    return source[:first] + prelude + source[first:]


@functools.lru_cache(maxsize=16)
def _loaded(binary: bytes) -> Any:
    """Building a program takes as long as compiling three of its kernels: it is done once."""
    return open_device("opencl").load(binary)


def run(code: DeviceCode, operands: Sequence[DeviceOperand], times: int = 1) -> None:
    """Launches the kernels in order, `times` over; the last operand's memory is read back.

    AssertionError: an operand other than the last was written to, or bytes beside the last.
    """
    device = open_device("opencl")
    memory = device.allocate(sum(-(-o.bytes.nbytes // 256) * 256 for o in operands))
    places, at = [], 0
    for operand in operands:
        device.write(memory, at, operand.bytes)
        places.append(at)
        at += -(-operand.bytes.nbytes // 256) * 256
    around = operands[-1].outside()
    module = _loaded(code.binary)
    for _ in range(times):
        for kernel in code.kernels:
            launch = Launch(kernel.grid, kernel.block, kernel.dynamic_shared)
            arguments = [(memory, place + FENCE) for place in places]
            device.launch(device.kernel(module, kernel.symbol), launch, arguments)
    device.read(memory, places[-1], operands[-1].bytes)
    assert operands[-1].outside() == around, "written beside the output"
