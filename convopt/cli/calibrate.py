"""`convopt calibrate`: measures this machine's peak, bandwidth and launch cost, and keeps them."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING

from convopt.cli.bench import thread_counts
from convopt.cli.command import Command, Document, ReportProgress, folder
from convopt.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path

    from convopt.targets import GpuTarget


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--threads",
        type=thread_counts,
        metavar="N[,N...]",
        help="to measure with (default: all usable cores)",
    )
    parser.add_argument(
        "--target",
        metavar="T",
        help="a GPU here, e.g. opencl, cuda, cuda:sm_90 (default: this machine's CPU)",
    )
    parser.add_argument(
        "--cache-dir", type=folder, metavar="DIR", help="that keeps them (default: as for optimize)"
    )


def _run(arguments: argparse.Namespace, progress: ReportProgress) -> Document:
    from convopt.arguments import FAMILIES, find_gpu_here
    from convopt.bench import calibration
    from convopt.codegen.cache import KernelCache
    from convopt.targets import GPU_TARGETS, host_cpu
    from convopt.targets.cpu import chip_name, usable_cores

    folder = KernelCache(arguments.cache_dir).root
    if arguments.target in (*FAMILIES, *GPU_TARGETS):
        if arguments.threads is not None:
            raise InputError("--threads goes with the CPU only")
        return _device(find_gpu_here(arguments.target), folder, progress)
    if arguments.target not in (None, "cpu", host_cpu().name):
        raise InputError(
            f"--target {arguments.target}: expected this machine's CPU, which is {host_cpu().name},"
            f" {', '.join(FAMILIES)} (the device that is here) or a GPU that `convopt targets` lists"
        )
    counts = arguments.threads or (usable_cores(),)
    measured = []
    for done, threads in enumerate(counts):
        progress("measuring", done, len(counts))
        found = calibration.calibrate(threads)
        path = calibration.save(folder, threads, found)
        measured.append({"threads": threads, **asdict(found)})
    declared = {"peak_gflops": None, "bandwidth_gbs": None}
    return {
        "command": "calibrate",
        "target": host_cpu().name,
        "chip": chip_name(),
        "file": str(path),
        "measured": measured,
        "declared": declared,
    }


def _device(target: GpuTarget, folder: Path, progress: ReportProgress) -> Document:
    from convopt.bench import calibration
    from convopt.bench.device_calibration import calibrate_device

    progress("measuring", 0, 1)
    chip, found = calibrate_device(target)
    path = calibration.save(folder, 0, found, chip)
    peak = target.compute_units * target.clock * target.vector_flops
    return {
        "command": "calibrate",
        "target": target.name,
        "chip": chip,
        "file": str(path),
        "measured": [{"threads": 0, **asdict(found)}],
        "declared": {"peak_gflops": 1e-9 * peak, "bandwidth_gbs": 1e-9 * target.memory_rate},
    }


def _show(document: Document) -> None:
    from convopt.report.tables import Column, number, print_line, print_table

    columns = [Column(title, True) for title in ("threads", "GFLOP/s", "GB/s", "us a kernel")]
    rows = [
        (
            str(one["threads"] or "GPU"),
            number(one["peak_gflops"], 0),
            number(one["bandwidth_gbs"], 1),
            number(one["launch_us"]),
        )
        for one in document["measured"]
    ]
    print_table(f"{document['chip']}, {document['target']}", columns, rows)
    declared = document["declared"]
    if declared["peak_gflops"] is not None:
        print_line(f"declared: {declared['peak_gflops']:.0f} GFLOP/s, {declared['bandwidth_gbs']:.1f} GB/s")
    print_line(f"kept in {document['file']}")


COMMAND = Command(
    name="calibrate",
    description="""\
Measures with 32-bit floats what the declared numbers leave open, and keeps it in the cache folder, per chip
and number of threads: `convopt targets` and `convopt explain --cost` show the CPU's. --target measures a GPU
by its driver. The machine should be idle.""",
    fields={
        "target": "the code generator's name of the machine",
        "chip": "the processor's own name",
        "file": "where the numbers are kept",
        "measured[].threads": "how many cores took part, 0 for a GPU",
        "measured[].peak_gflops": "multiply-adds in registers",
        "measured[].bandwidth_gbs": "a copy through memory, reads and writes; a CPU's on one core",
        "measured[].launch_us": "what a kernel more adds to a call",
        "measured[].at": "when, in seconds since 1970",
        "declared.peak_gflops": "what the GPU's declared numbers say, null for a CPU",
        "declared.bandwidth_gbs": "what the GPU's declared numbers say, null for a CPU",
    },
    add_arguments=_add_arguments,
    run=_run,
    show=_show,
)
