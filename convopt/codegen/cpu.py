"""TIR to an object file for a CPU, by TVM's LLVM. Runs in the processes of `convopt.codegen.workers`."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from convopt.targets import CpuTarget


def tvm_target(target: CpuTarget) -> Any:
    import tvm

    options: dict[str, Any] = {"kind": "llvm", "mcpu": target.mcpu, "mtriple": target.triple}
    if target.mattr:
        options["mattr"] = list(target.mattr)
    return tvm.target.Target(options)


def build_module(function: Any, target: CpuTarget) -> Any:
    """The LLVM module of one PrimFunc with a plain C signature.

    TVM's own pipeline wraps functions in its packed calling convention, with a check per argument. Ours ends
    before that step: the runtime calls plain C functions, compilation is faster and needs no TVM to run.
    """
    import tvm
    from tvm.tirx import transform

    llvm = tvm_target(target)
    symbol = str(function.attrs["global_symbol"])
    with llvm:
        module = tvm.IRModule({symbol: function})
        pipeline = tvm.transform.Sequential(
            [
                transform.BindTarget(llvm),
                transform.StmtSimplify(),
                transform.NarrowDataType(32),
                transform.VectorizeLoop(True),
                transform.UnrollLoop(),
                transform.StmtSimplify(),
                transform.LowerIntrin(),
            ]
        )
        return tvm.get_global_func("target.build.llvm")(pipeline(module), llvm)


def object_code(function: Any, target: CpuTarget) -> bytes:
    """The ELF object that defines the function's symbol."""
    module = build_module(function, target)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.o"
        module.write_to_file(str(path), "o")
        return path.read_bytes()


def assembly(function: Any, target: CpuTarget) -> str:
    return str(build_module(function, target).inspect_source("asm"))
