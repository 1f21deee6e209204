"""Device functions, as the GPU schedules write them, to what TVM's code generators take. Needs tvm.

The functions are complete (see `schedules.primitives.gpu_emit`): barriers, shared memory and vectors are
written out, parameters are the kernel's. What is left is to unroll, to vectorise, to simplify the indices and
to replace the functions of mathematics by the target's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

from convopt.codegen.device import DeviceKernel, Extents, LoweredKernels
from convopt.errors import CompileError
from convopt.schedules.primitives.gpu_emit import REGISTERS

_AXES = ("x", "y", "z")


def lower(functions: Sequence[Any], target: Any, unroll: bool = True) -> LoweredKernels:
    """unroll: False leaves loops marked to be unrolled to the compiler.

    CompileError: a grid or a shared buffer whose size is not constant."""
    t = tirx.transform
    passes = tvm.transform.Sequential(
        [
            t.BindTarget(target),
            t.StmtSimplify(),
            t.NarrowDataType(32),
            t.VectorizeLoop(True),
            *([t.UnrollLoop()] if unroll else []),
            t.StmtSimplify(),
            t.LowerIntrin(),
        ]
    )
    named = {str(f.attrs["global_symbol"]): f.with_attr("tirx.is_global_func", True) for f in functions}
    with target:
        module = passes(tvm.IRModule(named))
    kernels: list[DeviceKernel] = []
    wanted = {symbol: f.attrs[REGISTERS] for symbol, f in named.items() if REGISTERS in f.attrs}
    for symbol in named:
        grid, block, dynamic, static = _launch(module[symbol])
        kernels.append(DeviceKernel(symbol, grid, block, dynamic, dynamic + static))
    return LoweredKernels(module, tuple(kernels), {symbol: int(n) for symbol, n in wanted.items()})


def _launch(function: Any) -> tuple[Extents, Extents, int, int]:
    """(grid, block, bytes of dynamic shared memory, bytes of static shared memory)."""
    extents: dict[str, int] = {}
    shared = {"shared": 0, "shared.dyn": 0}

    def constant(value: Any, what: str) -> int:
        if not isinstance(value, tirx.IntImm):
            raise CompileError(f"{what} is not constant: {value}")
        return int(value)

    def on_thread(node: Any, *rest: Any) -> None:
        if node.attr_key == "thread_extent":
            tag = str(node.node.thread_tag)
            extents[tag] = constant(node.value, f"the extent of {tag}")

    def on_buffer(node: Any, *rest: Any) -> None:
        scope = node.buffer.scope()
        if scope in shared:
            dtype = tvm.DataType(node.buffer.dtype)
            size = dtype.bits * dtype.lanes // 8
            for extent in node.buffer.shape:
                size *= constant(extent, "a shared buffer's extent")
            shared[scope] += size

    tvm_ffi.structural_walk(function.body, (tirx.AttrStmt, on_thread))
    tvm_ffi.structural_walk(function.body, (tirx.AllocBuffer, on_buffer))
    gx, gy, gz = (extents.get(f"blockIdx.{a}", 1) for a in _AXES)
    bx, by, bz = (extents.get(f"threadIdx.{a}", 1) for a in _AXES)
    return (gx, gy, gz), (bx, by, bz), shared["shared.dyn"], shared["shared"]
