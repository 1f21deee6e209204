"""`convopt calibrate`: measures this machine's peak, bandwidth and launch cost, and keeps them."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from convopt.cli.bench import thread_counts
from convopt.cli.command import Command, Document, ReportProgress


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--threads",
        type=thread_counts,
        metavar="N[,N...]",
        help="to measure with (default: all usable cores)",
    )
    parser.add_argument("--cache-dir", metavar="DIR", help="that keeps them (default: as for optimize)")


def _run(arguments: argparse.Namespace, progress: ReportProgress) -> Document:
    from convopt.bench import calibration
    from convopt.codegen.cache import KernelCache
    from convopt.targets import host_cpu
    from convopt.targets.cpu import chip_name, usable_cores

    folder = KernelCache(arguments.cache_dir).root
    counts = arguments.threads or (usable_cores(),)
    measured = []
    for done, threads in enumerate(counts):
        progress("measuring", done, len(counts))
        found = calibration.calibrate(threads)
        path = calibration.save(folder, threads, found)
        measured.append({"threads": threads, **asdict(found)})
    return {
        "command": "calibrate",
        "target": host_cpu().name,
        "chip": chip_name(),
        "file": str(path),
        "measured": measured,
    }


def _show(document: Document) -> None:
    from convopt.report.tables import Column, number, print_line, print_table

    columns = [Column(title, True) for title in ("threads", "GFLOP/s", "GB/s", "us a kernel")]
    rows = [
        (
            str(one["threads"]),
            number(one["peak_gflops"], 0),
            number(one["bandwidth_gbs"], 1),
            number(one["launch_us"]),
        )
        for one in document["measured"]
    ]
    print_table(f"{document['chip']}, {document['target']}", columns, rows)
    print_line(f"kept in {document['file']}")


COMMAND = Command(
    name="calibrate",
    help="measure this machine's peak, bandwidth and launch cost",
    description="""\
Measures with 32-bit floats what the CPU's declared numbers leave open, and keeps it in the cache folder, per
chip and number of threads: `convopt targets` and `convopt explain --cost` show it. The machine should be
idle.""",
    fields={
        "target": "the code generator's name of the machine",
        "chip": "the processor's own name",
        "file": "where the numbers are kept",
        "measured[].threads": "how many cores took part",
        "measured[].peak_gflops": "multiply-adds in registers",
        "measured[].bandwidth_gbs": "a copy through memory on one core, reads and writes",
        "measured[].launch_us": "what a kernel more adds to a call",
        "measured[].at": "when, in seconds since 1970",
    },
    add_arguments=_add_arguments,
    run=_run,
    show=_show,
)
