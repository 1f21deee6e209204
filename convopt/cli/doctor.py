"""`convopt doctor`: what is installed, found and usable for each target, and the one missing thing."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from convopt.cli.command import DEVICE_MISSING, Command, Document, ReportProgress

if TYPE_CHECKING:
    from convopt.targets import GpuTarget


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--target",
        metavar="NAME",
        help="this one only, as optimize takes it (cuda, rocm, hip or dcu: the device that is here); then the"
        " exit status is 3 where it can't run",
    )


def _run(arguments: argparse.Namespace, progress: ReportProgress) -> Document:
    from convopt.targets import GPU_TARGETS

    del progress
    if arguments.target is not None:
        targets = [_asked(arguments.target)]
    else:
        targets = [_cpu(), *map(_gpu, GPU_TARGETS.values())]
    return {"command": "doctor", "asked": arguments.target, "targets": targets}


def _asked(name: str) -> Document:
    """InputError: no such target."""
    from convopt.arguments import check_target, find_gpu_here
    from convopt.errors import ExecutionError
    from convopt.targets import GPU_TARGETS

    check_target(name)
    if name == "cpu":
        return _cpu()
    try:
        return _gpu(find_gpu_here(name))
    except ExecutionError as error:  # a family's name, and no device that would tell which target is meant
        entry = _gpu(next(t for n, t in GPU_TARGETS.items() if n.partition(":")[0] == name))
        return {**entry, "name": name, "can_run": False, "missing": entry["missing"] or str(error)}


def _cpu() -> Document:
    from convopt.codegen.link import c_compiler
    from convopt.errors import CompileError
    from convopt.targets import host_cpu

    found = {"device": host_cpu().name}
    try:
        found["compiler"] = " ".join(c_compiler())
    except CompileError as error:
        return _entry("cpu", "cpu", found, False, True, str(error))
    return _entry("cpu", "cpu", found, True, True, None)


def _gpu(target: GpuTarget) -> Document:
    """One target. `missing` is what has to be done first: the compiler's part before the device's."""
    from convopt.codegen.device import why_no_compiler
    from convopt.codegen.found import find

    found, no_code = find(target), why_no_compiler(target)
    missing = no_code or found.no_run
    return _entry(target.name, target.kind, dict(found.parts), no_code is None, missing is None, missing)


def _entry(
    name: str, kind: str, found: dict[str, str], compiles: bool, runs: bool, missing: str | None
) -> Document:
    return {
        "name": name,
        "kind": kind,
        "found": found,
        "can_compile": compiles,
        "can_run": runs,
        "missing": missing,
    }


def _show(document: Document) -> None:
    from convopt.report.tables import Column, print_line, print_table

    columns = [Column("target"), Column("compile"), Column("run"), Column("found")]
    rows = [
        (
            t["name"],
            "yes" if t["can_compile"] else "no",
            "yes" if t["can_run"] else "no",
            ", ".join(t["found"].values()),
        )
        for t in document["targets"]
    ]
    print_table("what can be compiled for and run here", columns, rows)
    reasons: dict[str, list[str]] = {}
    for t in document["targets"]:
        if t["missing"] is not None:
            reasons.setdefault(t["missing"], []).append(t["name"])
    for reason, names in reasons.items():
        print_line(f"{', '.join(names)}: {reason}")


def _status(document: Document) -> int:
    usable = all(t["can_run"] for t in document["targets"])
    return 0 if document["asked"] is None or usable else DEVICE_MISSING


COMMAND = Command(
    name="doctor",
    description=(
        "Looks for compilers, runtime libraries and devices of every target. Where a target can't run here,"
        " the one thing that is missing first is named, with what to install or set."
    ),
    fields={
        "asked": "the target of --target, else null",
        "targets[].name": "as `optimize --target` takes it; a family's as it was asked for, without a device",
        "targets[].kind": "of its code: cpu, cuda, rocm, hip, opencl",
        "targets[].found{}": "the path or name of each part that is there: compiler, library, device",
        "targets[].can_compile": "true where `convopt optimize` makes artifacts for it",
        "targets[].can_run": "true where artifacts for it run on this machine",
        "targets[].missing": "the first missing thing with the remedy, else null",
    },
    add_arguments=_add_arguments,
    run=_run,
    show=_show,
    status=_status,
)
