"""`convopt targets`: the devices that convopt knows, and the one it runs on."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from convopt.cli.command import Command, Document, ReportProgress, folder


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--cache-dir",
        type=folder,
        metavar="DIR",
        help="with what `convopt calibrate` measured (default: as for optimize)",
    )


def _run(arguments: argparse.Namespace, progress: ReportProgress) -> Document:
    from convopt.bench import calibration
    from convopt.codegen.cache import KernelCache
    from convopt.targets import GPU_TARGETS
    from convopt.targets.cpu import BY_NAME, host_cpu, usable_cores

    del progress
    host = host_cpu()
    measured = calibration.load(KernelCache(arguments.cache_dir).root)
    return {
        "command": "targets",
        "host": host.name,
        "cores": usable_cores(),
        "targets": [
            {
                "name": target.name,
                "triple": target.triple,
                "vector_bits": 8 * target.vector_bytes,
                "vector_registers": target.vector_registers,
                "l1": target.l1,
                "l2": target.l2,
                "l3": target.l3,
                "host": target.mcpu == host.mcpu,
            }
            # The host's own caches are read from the machine, the others' are declared.
            for target in (host if t.mcpu == host.mcpu else t for t in BY_NAME.values())
        ],
        "gpus": [
            {
                "name": gpu.name,
                "chip": gpu.chip,
                "kind": gpu.kind,
                "compute_units": gpu.compute_units,
                "wave": gpu.wave,
                "shared_bytes": gpu.shared_per_block,
                "l2": gpu.l2,
                "matrix_units": list(gpu.matrix_units),
            }
            for gpu in GPU_TARGETS.values()
        ],
        "measured": [{"threads": threads, **asdict(one)} for threads, one in sorted(measured.items())],
    }


def _show(document: Document) -> None:
    from convopt.report.tables import Column, print_line, print_table

    columns = [Column("target"), Column("triple"), Column("vector", True), Column("registers", True)]
    columns += [Column("L1", True), Column("L2", True), Column("L3", True), Column("")]
    rows = [
        (
            t["name"],
            t["triple"],
            f"{t['vector_bits']} bit",
            str(t["vector_registers"]),
            *(f"{t[level] >> 10} KiB" for level in ("l1", "l2", "l3")),
            "this machine" if t["host"] else "",
        )
        for t in document["targets"]
    ]
    print_table("CPUs; --target cpu is this machine's", columns, rows)
    columns = [Column("target"), Column("chip"), Column("code"), Column("compute units", True)]
    columns += [Column("wave", True), Column("shared", True), Column("L2", True), Column("matrix units")]
    rows = [
        (
            g["name"],
            g["chip"],
            g["kind"],
            str(g["compute_units"]),
            str(g["wave"]),
            f"{g['shared_bytes'] >> 10} KiB",
            f"{g['l2'] >> 20} MiB",
            ", ".join(g["matrix_units"]),
        )
        for g in document["gpus"]
    ]
    print_table("GPUs, by name; cuda, rocm, hip, dcu: the one that is here", columns, rows)
    print_line(f"usable cores: {document['cores']}")
    for one in document["measured"]:
        print_line(
            f"measured on {one['threads']} threads: {one['peak_gflops']:.0f} GFLOP/s,"
            f" {one['bandwidth_gbs']:.1f} GB/s, {one['launch_us']:.2f} us a kernel"
        )


COMMAND = Command(
    name="targets",
    description="""\
The devices that convopt generates code for, with the numbers that its choices rest on. Of the CPUs, models
are compiled for the one marked as this machine, which `--target cpu` means; GPUs need not be here.""",
    fields={
        "host": "name of this machine's target",
        "cores": "cores that this process may use",
        "targets[].name": "as summaries and artifacts name it",
        "targets[].triple": "the code generator's name of the platform",
        "targets[].vector_bits": "width of a vector register",
        "targets[].vector_registers": "how many there are",
        "targets[].l1": "bytes of a core's data cache",
        "targets[].l2": "bytes of a core's second cache",
        "targets[].l3": "bytes of the shared cache",
        "targets[].host": "whether it is this machine's",
        "gpus[].name": "what --target takes",
        "gpus[].chip": "whose numbers these are",
        "gpus[].kind": "what is generated: cuda, rocm (code objects by LLVM), hip (source) or opencl",
        "gpus[].compute_units": "multiprocessors",
        "gpus[].wave": "lanes of a warp or wavefront",
        "gpus[].shared_bytes": "shared memory that a block may take",
        "gpus[].l2": "bytes",
        "gpus[].matrix_units[]": "instructions that multiply tiles, the preferred first",
        "measured[].threads": "of this machine, by `convopt calibrate`: how many cores took part",
        "measured[].peak_gflops": "multiply-adds in registers",
        "measured[].bandwidth_gbs": "a copy through memory on one core, reads and writes",
        "measured[].launch_us": "what a kernel more adds to a call",
        "measured[].at": "when, in seconds since 1970",
    },
    add_arguments=_add_arguments,
    run=_run,
    show=_show,
)
