"""The few words of TIR that every GPU kernel is written with. Needs tvm.

A kernel here is already the device function: thread bindings, shared memory, barriers and vector accesses are
written out, and the code generators print them one to one. Nothing is left to TVM's automatic barrier
insertion or storage rewriting, so what the models of `smem_padding` and `swizzle` count is what runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import tvm
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script.builder import ir as T

from convopt.schedules.base import TensorView
from convopt.schedules.primitives.emit import lanes_at

if TYPE_CHECKING:
    from convopt.targets import GpuTarget

REGISTERS = "convopt.registers"  # a function's attribute
DEVICE_CALLING_CONVENTION = 2  # CallingConv::kDeviceKernelLaunch: parameters are taken as they are
Extents = tuple[int, int, int]


def storage_type(dtype: str) -> str:
    """How elements of `dtype` are declared: bfloat16 as its bits, which every code generator can move."""
    return "uint16" if dtype == "bfloat16" else dtype


@dataclass
class DeviceBody:
    """Inside `device_kernel`: a flat buffer per operand, the block's and the thread's indices; `function`
    after.
    """

    buffers: list[Any]
    block: tuple[Any, Any, Any]
    thread: Any
    function: Any = field(default=None)


@contextmanager
def device_kernel(
    symbol: str, operands: Sequence[TensorView], grid: Extents, threads: int, registers: int | None = None
) -> Iterator[DeviceBody]:
    """A device function of `grid` blocks of `threads` threads (threadIdx.x); after the block, `.function`.

    Operands are p0, p1, ...; their buffers are flat and of unknown length, indices are int32. registers: of a
    thread, what the compiler should do with; None leaves it to choose.
    """
    with IRBuilder() as builder, T.prim_func(s_tir=False):
        T.func_name(symbol)
        attributes = {
            "tirx.noalias": True, "global_symbol": symbol, "calling_conv": DEVICE_CALLING_CONVENTION,
        }  # fmt: skip
        T.func_attr(attributes if registers is None else {**attributes, REGISTERS: registers})
        dtypes = [storage_type(view.dtype) for view in operands]
        pointers = [T.arg(f"p{i}", T.handle(dtype)) for i, dtype in enumerate(dtypes)]
        buffers = [
            T.decl_buffer((2**31 - 1,), dtype, data=pointer, layout=None)
            for pointer, dtype in zip(pointers, dtypes, strict=True)
        ]
        frames = [T.launch_thread(f"blockIdx.{axis}", n) for axis, n in zip("xyz", grid, strict=True)]
        with frames[0] as x, frames[1] as y, frames[2] as z, T.launch_thread("threadIdx.x", threads) as t:
            body = DeviceBody(buffers, (x, y, z), t)
            yield body
    body.function = builder.get()


def shared(elements: int, dtype: str, dynamic: bool = False) -> Any:
    scope = "shared.dyn" if dynamic else "shared"
    return T.alloc_buffer((elements,), storage_type(dtype), scope=scope, layout=None)


def reinterpreted(buffer: Any, elements: int, dtype: str) -> Any:
    """The same memory as another type."""
    return T.decl_buffer((elements,), dtype, data=buffer.data, scope=buffer.scope(), layout=None)


@dataclass(frozen=True)
class Bits:
    """A buffer as a copy sees it: elements of 16 bits travel in 32-bit words, which every compiler keeps in
    registers, where its vectors of four halves may be a structure in memory.
    """

    buffer: Any
    elements: int  # per word
    dtype: str

    @classmethod
    def of(cls, buffer: Any, dtype: str, lanes: int) -> Bits:
        """For accesses of `lanes` elements, each at a multiple of `lanes`."""
        kind = storage_type(dtype)
        if kind not in ("float16", "uint16") or lanes % 2:
            return cls(buffer, 1, kind)
        return cls.words(buffer, 2)

    @classmethod
    def words(cls, buffer: Any, elements: int) -> Bits:
        """Words of 32 bits, `elements` in each."""
        view = T.decl_buffer((2**30,), "uint32", data=buffer.data, scope=buffer.scope(), layout=None)
        return cls(view, elements, "uint32")

    def get(self, start: Any, lanes: int) -> Any:
        return vector(self.buffer, start // self.elements, lanes // self.elements)

    def put(self, start: Any, value: Any, lanes: int) -> None:
        store(self.buffer, start // self.elements, value, lanes // self.elements)

    def zeros(self, lanes: int) -> Any:
        return zeros(self.dtype, lanes // self.elements)


def local(elements: int, dtype: str = "float32") -> Any:
    """An array that the compiler keeps in registers if all indices are constants after unrolling."""
    return T.alloc_buffer((elements,), storage_type(dtype), scope="local", layout=None)


def hold(value: Any, dtype: str = "int32") -> Any:
    """`value`, computed once."""
    slot = local(1, dtype)
    T.buffer_store(slot, value, [0])
    return slot[0]


def hold_multiple(value: Any, unit: int) -> Any:
    """An index that is a multiple of `unit`, computed once.

    Code generators take a vector access apart whose start they cannot prove to be aligned.
    """
    return hold(value) if unit == 1 else hold(value // unit) * unit


def barrier() -> None:
    T.evaluate(T.tvm_storage_sync("shared"))


def vector(buffer: Any, start: Any, lanes: int) -> Any:
    return buffer[lanes_at(start, lanes)]


def store(buffer: Any, start: Any, value: Any, lanes: int) -> None:
    T.buffer_store(buffer, value, [lanes_at(start, lanes)])


def zeros(dtype: str, lanes: int) -> Any:
    zero = tvm.tirx.const(0, storage_type(dtype))
    return zero if lanes == 1 else T.Broadcast(zero, lanes)


def to_float(value: Any, dtype: str) -> Any:
    """A stored scalar of `dtype` as float32."""
    if dtype == "bfloat16":
        return T.reinterpret("float32", T.shift_left(T.Cast("uint32", value), T.uint32(16)))
    return value if dtype == "float32" else T.Cast("float32", value)


def from_float(value: Any, dtype: str) -> Any:
    """A float32 scalar as it is stored in `dtype`: bfloat16 rounded to nearest even, NaN kept."""
    if dtype != "bfloat16":
        return value if dtype == "float32" else T.Cast(dtype, value)
    held = hold(value, "float32")
    bits = hold(T.reinterpret("uint32", held), "uint32")
    odd = T.bitwise_and(T.shift_right(bits, T.uint32(16)), T.uint32(1))
    rounded = T.shift_right(bits + T.uint32(0x7FFF) + odd, T.uint32(16))
    quiet = T.bitwise_or(T.shift_right(bits, T.uint32(16)), T.uint32(0x40))
    return T.Cast("uint16", T.Select(T.isnan(held), quiet, rounded))


def all_of(conditions: Sequence[Any]) -> Any:
    """Their conjunction, None if there are none."""
    result = None
    for condition in conditions:
        result = condition if result is None else T.And(result, condition)
    return result


@contextmanager
def when(condition: Any) -> Iterator[None]:
    """The block under a condition; None is always true."""
    if condition is None:
        yield
        return
    with T.If(condition), T.Then():
        yield


def rolled(target: GpuTarget, extent: int) -> Any:
    """A loop over a long body that stays one: unrolled, compilers load everything at its start.

    Measured on 128x64x32 in float32: LLVM 22 took 402 registers on gfx90a, 146 of the loop; ptxas spilled.
    """
    if target.kind != "rocm":
        return T.serial(0, extent)
    # TVM has no word for it: the count holds a zero that LLVM can't see, the sign of the block's index.
    block = T.call_llvm_pure_intrin("int32", "llvm.amdgcn.workgroup.id.x")
    return T.serial(0, extent + T.shift_right(block, T.int32(31)))


def unrolled(target: GpuTarget, extent: int) -> Any:
    """A loop that must be unrolled for its arrays to live in registers.

    OpenCL's is left to the device's compiler: on a CPU, unrolling costs minutes and gains nothing.
    """
    return T.serial(0, extent) if target.kind == "opencl" else T.unroll(0, extent)
