"""The few words of TIR that every CPU kernel is written with. Needs tvm."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import tvm
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script.builder import ir as T

from convopt.schedules.base import TensorView


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
    Indices may be negative (a halo lies before element 0).
    """
    with IRBuilder() as builder, T.prim_func(s_tir=False):
        T.func_name(symbol)
        T.func_attr({"tirx.noalias": True, "global_symbol": symbol})
        begin, end = T.arg("begin", T.int32()), T.arg("end", T.int32())
        scratch = T.arg("scratch", T.handle("float32"))
        pointers = [T.arg(f"p{i}", T.handle(view.dtype)) for i, view in enumerate(arguments)]
        buffers = [
            T.decl_buffer(
                (2**31 - 1,), view.dtype, data=p, align=tvm.DataType(view.dtype).bits // 8, layout=None
            )
            for p, view in zip(pointers, arguments, strict=True)
        ]
        body = KernelBody(buffers, begin, end, scratch)
        yield body
    body.function = builder.get()


def lanes_at(index: Any, lanes: int, stride: int = 1) -> Any:
    """The index of `lanes` elements from `index` on."""
    return index if lanes == 1 else T.Ramp(index, stride, lanes)


def splat(value: Any, lanes: int) -> Any:
    return value if lanes == 1 else T.Broadcast(value, lanes)


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


def prefetch(buffer: Any, index: Any) -> None:
    """Asks for the cache line of an element, into L2; any address may be asked for, mapped or not."""
    T.evaluate(tvm.tirx.call_intrin("void", "tirx.prefetch", T.address_of(buffer[index]), 0, 2, 1))
