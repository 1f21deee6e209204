"""The few words of TIR that every CPU kernel is written with. Needs tvm."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import tvm
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script.builder import ir as T

from convopt.schedules.base import TensorView
from convopt.schedules.primitives.nest import CACHE_LINE


@dataclass
class KernelBody:
    """Inside `kernel`: a flat buffer per argument, the task range, the scratch pointer, then the function."""

    buffers: list[Any]
    begin: Any
    end: Any
    scratch: Any
    function: Any = field(default=None)

    @contextmanager
    def task(self) -> Iterator[Any]:
        """The loop over this thread's tasks; yields the task's index."""
        with T.serial(0, self.end - self.begin) as step:
            yield self.begin + step


@contextmanager
def kernel(symbol: str, arguments: Sequence[TensorView]) -> Iterator[KernelBody]:
    """A function of the form described in `schedules.base`; after the block, `.function` is the PrimFunc.

    Buffers are flat, of unknown length, and aligned to one element only: callers' arrays are no better.
    Indices may be negative (a halo lies before element 0). bfloat16 is held as its bits, uint16.
    """
    with IRBuilder() as builder, T.prim_func(s_tir=False):
        T.func_name(symbol)
        T.func_attr({"tirx.noalias": True, "global_symbol": symbol})
        begin, end = T.arg("begin", T.int32()), T.arg("end", T.int32())
        scratch = T.arg("scratch", T.handle("float32"))
        kinds = ["uint16" if view.dtype == "bfloat16" else view.dtype for view in arguments]
        pointers = [T.arg(f"p{i}", T.handle(kind)) for i, kind in enumerate(kinds)]
        buffers = [
            T.decl_buffer((2**31 - 1,), kind, data=p, align=tvm.DataType(kind).bits // 8, layout=None)
            for p, kind in zip(pointers, kinds, strict=True)
        ]
        body = KernelBody(buffers, begin, end, scratch)
        yield body
    body.function = builder.get()


def lanes_at(index: Any, lanes: int, stride: int = 1) -> Any:
    """The index of `lanes` elements from `index` on."""
    return index if lanes == 1 else T.Ramp(index, stride, lanes)


def splat(value: Any, lanes: int) -> Any:
    return value if lanes == 1 else T.Broadcast(value, lanes)


def dtype_of(value: Any) -> tvm.DataType:
    """The element type and lanes of an expression."""
    return tvm.DataType(str(value.ty.dtype if hasattr(value, "ty") else value.dtype))


def widened(value: Any) -> Any:
    """float32 of stored elements: float32, float16, or bfloat16 as its bits (`kernel`)."""
    kind = dtype_of(value)
    wide = "float32" if kind.lanes == 1 else f"float32x{kind.lanes}"
    if not str(kind).startswith("uint16"):
        return value if str(kind) == wide else T.Cast(wide, value)
    bits = T.Cast(wide.replace("float", "uint"), value)
    return T.reinterpret(wide, T.shift_left(bits, splat(T.uint32(16), kind.lanes)))


def narrowed(value: Any, dtype: str, lanes: int) -> Any:
    """float32 as elements of `dtype`, rounded to nearest even; of bfloat16 the bits, NaN quiet."""
    if dtype == "float32":
        return value
    if dtype != "bfloat16":
        return T.Cast(dtype if lanes == 1 else f"{dtype}x{lanes}", value)
    wide = "uint32" if lanes == 1 else f"uint32x{lanes}"
    bits = hold(T.reinterpret(wide, value), lanes, "uint32")

    def number(n: int) -> Any:
        return splat(T.uint32(n), lanes)

    upper = T.shift_right(bits, number(16))
    rounded = T.shift_right(bits + number(0x7FFF) + T.bitwise_and(upper, number(1)), number(16))
    is_nan = T.bitwise_and(bits, number(0x7FFFFFFF)) > number(0x7F800000)
    result = tvm.tirx.Select(is_nan, T.bitwise_or(upper, number(0x40)), rounded)
    return T.Cast("uint16" if lanes == 1 else f"uint16x{lanes}", result)


def register(lanes: int, dtype: str = "float32", scope: str = "global") -> Any:
    """A vector that the compiler keeps in a register.

    On a CPU scope "local" would become a heap workspace; on a GPU it is what a thread's own variables have.
    """
    return T.alloc_buffer((lanes,), dtype, scope=scope, layout=None)


def hold(value: Any, lanes: int, dtype: str = "float32", scope: str = "global") -> Any:
    """`value`, computed once, to be used several times."""
    slot = register(lanes, dtype, scope)
    T.buffer_store(slot, value, [lanes_at(0, lanes)])
    return slot[lanes_at(0, lanes)]


def prefetch(buffer: Any, index: Any, count: int = 1) -> None:
    """Asks for the cache lines of `count` elements, into L2; any address may be asked for, mapped or not."""
    line = CACHE_LINE // tvm.DataType(buffer.dtype).itemsize
    for first in range(0, count, line):
        at = T.address_of(buffer[index + first])
        T.evaluate(tvm.tirx.call_intrin("void", "tirx.prefetch", at, 0, 2, 1))


def steps_of_line(nbytes: int) -> int:
    """How many steps of a sum ask for one cache line, `nbytes` each; 8 at most."""
    return min(8, max(1, CACHE_LINE // nbytes))


@contextmanager
def reduction(extent: int, ahead: Callable[[Any, int], None] | None, group: int = 8) -> Iterator[Any]:
    """The loop over the steps of a sum; yields the step.

    ahead(first, count): emits what `count` steps from `first` on prefetch, once for each group of steps. One
    request in every step takes a load's place, and asks for each line several times: 3 to 17% slower where
    another thread shares the core (1x1 convolutions, Zen 3). Many at once are 4 to 9% slower than one by one
    (Winograd with 256 and 512 channels).
    """
    if ahead is None:
        with T.serial(0, extent) as step:
            yield step
        return
    count = next(size for size in range(group, 0, -1) if extent % size == 0)
    with T.serial(0, extent // count) as outer:
        ahead(outer * count, count)
        with T.serial(0, count) as inner:
            yield outer * count + inner
