"""`convopt build`: compiles an artifact's HIP source by this machine's hipcc, before its first run does."""

from __future__ import annotations

import argparse
from typing import Any

from convopt.cli.command import Command, Document, ReportProgress
from convopt.errors import InputError


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("artifact", metavar="ARTIFACT", help="made by `convopt optimize` for a dcu: target")
    parser.add_argument(
        "--toolkit", metavar="DIR", help="DTK's or ROCm's folder (default: $ROCM_PATH, /opt/dtk, /opt/rocm)"
    )


def _run(arguments: argparse.Namespace, progress: ReportProgress) -> Document:
    from convopt.runtime import hipcc
    from convopt.runtime.artifact import load

    module = load(arguments.artifact)
    sources = hip_sources(module)
    if not sources:
        raise InputError(f"{arguments.artifact}: it is for {module.target} and holds no HIP source")
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
        "kernels": sum(len(hipcc.kernels_of(source)) for source in sources),
        "compiled": compiled,
        "cache": str(hipcc.cached_path(sources[0], compiler).parent),
    }


def hip_sources(module: Any) -> list[str]:
    """The HIP sources of a module's Programs, each once."""
    from convopt.runtime.device_program import DeviceProgram
    from convopt.runtime.hip_device import is_code_object

    programs = [loaded for loaded in module.programs if isinstance(loaded, DeviceProgram)]
    binaries = [b for p in programs if p.kind == "hip" for b in p.binaries.values() if not is_code_object(b)]
    return list(dict.fromkeys(binary.decode() for binary in binaries))


def _show(document: Document) -> None:
    from convopt.report.tables import print_line

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
    help="compile an artifact's HIP source on the machine that runs it",
    description=(
        "Compiles the HIP source that an artifact for a DCU holds with this machine's hipcc, on all cores."
        " Code objects are kept by source, flags and compiler, so that each is compiled once; the first run"
        " of an artifact that is not built does the same."
    ),
    fields={
        "artifact": "the file",
        "target": "what it was compiled for",
        "compiler": "path of hipcc",
        "version": "all that hipcc --version says",
        "lines[]": "the command, once for each chip, with KERNELS.hip and OUT.co for the files",
        "sources": "distinct HIP sources in the artifact",
        "kernels": "in all sources",
        "compiled": "sources that were compiled now; the others were cached",
        "cache": "the folder of the code objects",
    },
    add_arguments=_add_arguments,
    run=_run,
    show=_show,
)
