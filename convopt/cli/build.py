"""`convopt build`: compiles an artifact's HIP source by this machine's hipcc, before its first run does."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from convopt.cli.command import Command, Document, ReportProgress
from convopt.errors import InputError


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "artifact", metavar="ARTIFACT", help="made by `convopt optimize` for a dcu: or hip: target"
    )
    parser.add_argument(
        "--toolkit", metavar="DIR", help="DTK's or ROCm's folder (default: $ROCM_PATH, /opt/dtk, /opt/rocm)"
    )
    parser.add_argument(
        "--host",
        choices=("cpp",),
        help="compile nothing: write a C++ program without Python, its kernels and its weights to -o DIR",
    )
    parser.add_argument("-o", "--output", metavar="DIR", help="the folder of --host")


def _run(arguments: argparse.Namespace, progress: ReportProgress) -> Document:
    from convopt.runtime import hipcc
    from convopt.runtime.artifact import load

    module = load(arguments.artifact)
    sources = hip_sources(module)
    if not sources:
        raise InputError(f"{arguments.artifact}: it is for {module.target} and holds no HIP source")
    if (arguments.host is None) != (arguments.output is None):
        raise InputError("--host and -o DIR go together")
    if arguments.host is not None:
        return _write_host(arguments, module)
    compiler = hipcc.find_hipcc(arguments.toolkit)
    archs = sorted({hipcc.arch_of(source) for source in sources})
    compiled = hipcc.compile_all(sources, compiler, lambda done, all_: progress("hipcc", done, all_))
    return {
        "command": "build",
        "artifact": str(arguments.artifact),
        "target": module.target,
        "compiler": compiler.path,
        "version": compiler.version,
        "lines": [" ".join(hipcc.command(compiler.path, arch, "KERNELS.hip", "OUT.co")) for arch in archs],
        "sources": len(sources),
        "kernels": sum(map(_count_kernels, sources)),
        "compiled": compiled,
        "cache": str(hipcc.cached_path(sources[0], compiler).parent),
        "files": [],
    }


def _write_host(arguments: argparse.Namespace, module: Any) -> Document:
    from convopt.codegen.host_cpp import write_host

    if len(module.programs) != 1:
        raise InputError(f"{arguments.artifact}: it has Programs for {len(module.programs)} shapes, not one")
    folder = Path(arguments.output)
    names = write_host(module.programs[0], folder)
    sources = hip_sources(module)
    return {
        "command": "build",
        "artifact": str(arguments.artifact),
        "target": module.target,
        "compiler": None,
        "version": None,
        "lines": [],
        "sources": len(sources),
        "kernels": sum(map(_count_kernels, sources)),
        "compiled": 0,
        "cache": None,
        "files": [str(folder / name) for name in names],
    }


def _count_kernels(source: str) -> int:
    from convopt.runtime import hipcc

    return len(hipcc.kernels_of(source))


def hip_sources(module: Any) -> list[str]:
    """The HIP sources of a module's Programs, each once."""
    from convopt.runtime.device_program import DeviceProgram
    from convopt.runtime.hip_device import is_code_object

    programs = [loaded for loaded in module.programs if isinstance(loaded, DeviceProgram)]
    binaries = [b for p in programs if p.kind == "hip" for b in p.binaries.values() if not is_code_object(b)]
    return list(dict.fromkeys(binary.decode() for binary in binaries))


def _show(document: Document) -> None:
    from convopt.report.tables import print_line

    if document["files"]:
        print_line(f"{document['kernels']} kernels for {document['target']}: {', '.join(document['files'])}")
        print_line("how to compile and run it: the first lines of model.cpp")
        return
    cached = document["sources"] - document["compiled"]
    print_line(f"compiler: {document['compiler']}")
    print_line(f"version:  {document['version'].splitlines()[0] if document['version'] else 'unknown'}")
    for line in document["lines"]:
        print_line(f"command:  {line}")
    print_line(
        f"{document['kernels']} kernels in {document['sources']} sources for {document['target']}:"
        f" {document['compiled']} compiled now, {cached} were in {document['cache']}"
    )


COMMAND = Command(
    name="build",
    description=(
        "Compiles the HIP source that an artifact for a DCU holds with this machine's hipcc, on all cores."
        " Code objects are kept by source, flags and compiler, so that each is compiled once; the first run"
        " of an artifact that is not built does the same."
    ),
    fields={
        "artifact": "the file",
        "target": "what it was compiled for",
        "compiler": "path of hipcc, null with --host",
        "version": "all that hipcc --version says, null with --host",
        "lines[]": "the command, once for each chip, with KERNELS.hip and OUT.co for the files",
        "sources": "distinct HIP sources in the artifact",
        "kernels": "in all sources",
        "compiled": "sources that were compiled now; the others were cached",
        "cache": "the folder of the code objects, null with --host",
        "files[]": "written by --host",
    },
    add_arguments=_add_arguments,
    run=_run,
    show=_show,
)
