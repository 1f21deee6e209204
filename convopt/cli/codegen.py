"""`convopt codegen`: the GPU kernels of a model as sources and binaries, and what can be said of each."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from convopt.cli.command import (
    Command,
    Document,
    ReportProgress,
    add_compile_arguments,
    compile_options,
    require_program,
)
from convopt.errors import InputError
from convopt.runtime.folders import write_files

if TYPE_CHECKING:
    from convopt.lowering.program import DeviceCall
    from convopt.targets import GpuTarget

# kind of target: endings of the source and, where it is another file, of the binary
_ENDINGS = {"opencl": ("cl", None), "cuda": ("cu", "cubin"), "rocm": ("s", "hsaco"), "hip": ("hip", None)}


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="IN.onnx")
    parser.add_argument("-o", "--output", required=True, metavar="DIR", help="where the files go")
    parser.add_argument(
        "--host",
        choices=("cpp",),
        help="write a C++ program that needs no Python, all kernels in one HIP source and the weights instead"
        " (dcu: and hip: targets); `convopt build ARTIFACT --host cpp` does so for an artifact",
    )
    add_compile_arguments(parser)


def _run(arguments: argparse.Namespace, progress: ReportProgress) -> Document:
    import convopt
    from convopt.targets import GPU_TARGETS, find_target

    if arguments.target not in GPU_TARGETS:
        raise InputError(
            f"--target {arguments.target}: kernels are written out for GPUs: {', '.join(sorted(GPU_TARGETS))}"
        )
    target = find_target(arguments.target)
    calls: list[DeviceCall] = []

    def observe(found: Any) -> None:
        calls[:] = found  # the last Program is the one that is kept

    module = convopt.optimize(
        arguments.model, **compile_options(arguments), progress=progress, observe=observe
    )
    require_program(module, arguments.model)
    folder = Path(arguments.output)
    host = _write_host(module, folder) if arguments.host else []
    kernels: list[dict[str, Any]] = []
    written: dict[str, list[str]] = {}
    contents: dict[str, bytes] = {}
    for call in calls:
        kernels += _rows(call, target)
        symbol = call.code.kernels[0].symbol
        if symbol not in written:
            files = {} if host else _files(call, target, len(written))
            written[symbol] = host[:1] or list(files)
            contents |= files
    if not host:
        write_files(folder, contents)
    for row in kernels:
        # Launches of one call share the files that its first is named in.
        row["files"] = written.get(row["symbol"], [])
    (program,) = module.programs
    return {
        "command": "codegen",
        "model": arguments.model,
        "target": target.name,
        "output": str(folder),
        "kernels": kernels,
        "host": host,
        "fallbacks": [
            {"node": place.node, "op": place.op, "reason": place.detail}
            for place in program.program.placement
            if place.where == "fallback"
        ],
    }


def _write_host(module: Any, folder: Path) -> list[str]:
    """The names of the files, the kernels' first."""
    from convopt.codegen.host_cpp import write_host

    (program,) = module.programs
    return write_host(program, folder)


def _rows(call: DeviceCall, target: GpuTarget) -> list[dict[str, Any]]:
    from dataclasses import asdict

    from convopt.codegen.kernel_table import rows_of
    from convopt.lowering.base import Constant

    constants = sum(o.array.nbytes for o in call.call.operands if isinstance(o, Constant))
    rows = rows_of(call.call.schedule, call.call.problem, call.call.label, constants, call.code, target)
    return [{**asdict(row), "configuration": repr(call.call.schedule)} for row in rows]


def _files(call: DeviceCall, target: GpuTarget, number: int) -> dict[str, bytes]:
    """The files by name, which begins with the kernel's place in the model."""
    label = re.sub(r"[^A-Za-z0-9]+", "_", call.call.label)[:48].strip("_")
    source, binary = _ENDINGS[target.kind]
    contents = {source: call.code.source.encode()}
    if binary is not None:
        contents[binary] = call.code.binary
    return {f"{number:03}_{label}.{ending}": data for ending, data in contents.items()}


def _show(document: Document) -> None:
    from convopt.report.tables import Column, print_line, print_table

    names = ("kernel", "grid", "block", "regs", "shared", "spills", "occup.", "conflict", "L2", "MFLOP", "KB")
    columns = [Column(names[0]), *(Column(name, True) for name in names[1:])]
    rows = [
        (
            row["label"],
            "x".join(map(str, row["grid"])),
            "x".join(map(str, row["block"])),
            _text(row["registers"]),
            str(row["shared"]),
            _text(row["spills"]),
            _text(row["occupancy"], "{:.0%}"),
            _pair(row["conflict_degree_unpadded"], row["conflict_degree"], "{}"),
            _pair(row["l2_hit_rate_unswizzled"], row["l2_hit_rate"], "{:.0%}"),
            _text(None if row["flop"] is None else row["flop"] / 1e6, "{:.2f}"),
            _text(None if row["bytes"] is None else row["bytes"] / 1e3, "{:.1f}"),
        )
        for row in document["kernels"]
    ]
    print_table(f"kernels for {document['target']}", columns, rows)
    for fallback in document["fallbacks"]:
        print_line(f"fallback {fallback['op']} {fallback['node']}: {fallback['reason']}")
    print_line(f"written to {document['output']}")
    if document["host"]:
        print_line("how to compile and run it: the first lines of model.cpp")


def _text(value: Any, form: str = "{}") -> str:
    return "-" if value is None else form.format(value)


def _pair(without: Any, with_it: Any, form: str) -> str:
    """`4>1`: without the primitive, then with it."""
    return "-" if with_it is None else f"{_text(without, form)}>{_text(with_it, form)}"


COMMAND = Command(
    name="codegen",
    description="""\
Compiles the model for a GPU, which need not be here, and writes each kernel's source and binary to DIR. The
table has a row per launch: grid, block, registers per thread, shared bytes per block, spilled bytes,
occupancy, bank conflicts without and with padding, L2 hit rate without and with swizzle, MFLOP, KB moved.""",
    fields={
        "model": "the path",
        "target": "its name",
        "output": "the folder",
        "kernels[].symbol": "the device function",
        "kernels[].schedule": "name of the kernel family",
        "kernels[].configuration": "the schedule with its configuration",
        "kernels[].label": "what it computes",
        "kernels[].grid[]": "blocks in x, y and z",
        "kernels[].block[]": "threads of a block in x, y and z",
        "kernels[].registers": "per thread, as the compiler says; null for OpenCL",
        "kernels[].shared": "bytes of shared memory of a block",
        "kernels[].spills": "bytes per thread that did not fit the registers; null for OpenCL",
        "kernels[].occupancy": "resident waves against the slots for them; null for OpenCL",
        "kernels[].conflict_degree": "words of a shared-memory bank wanted at once in the main loop, at most;"
        " null for kernels without tiles",
        "kernels[].conflict_degree_unpadded": "the same without padding",
        "kernels[].epilogue_conflict_degree": "behind the main loop",
        "kernels[].epilogue_conflict_degree_unpadded": "the same without padding",
        "kernels[].l2_hit_rate": "predicted by simulating the block order; null for kernels without tiles",
        "kernels[].l2_hit_rate_unswizzled": "the same with blocks row by row",
        "kernels[].flop": "2 per multiply-add; null for a call's further launches",
        "kernels[].bytes": "of all operands, each element once; null for a call's further launches",
        "kernels[].files[]": "in the folder; empty for a call's further launches",
        "host[]": "files of --host in the folder",
        "fallbacks[].node": "name of a node that runs in onnxruntime",
        "fallbacks[].op": "its operator",
        "fallbacks[].reason": "why it was not compiled",
    },
    add_arguments=_add_arguments,
    run=_run,
    show=_show,
)
