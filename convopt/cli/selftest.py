"""`convopt selftest`: what the device really is, kernel families and contest cases on it; one text file."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from convopt.cli.command import (
    DEVICE_MISSING,
    Command,
    Document,
    ReportProgress,
    duration,
    output_path,
)
from convopt.runtime.folders import written_whole

if TYPE_CHECKING:
    from convopt.bench.bench_device import BenchDevice
    from convopt.targets import GpuTarget

FAILED = 1


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--target",
        required=True,
        metavar="NAME",
        help="opencl, dcu:k100-ai, rocm:gfx90a and so on; cuda, rocm, hip or dcu: the device that is here",
    )
    parser.add_argument(
        "-o", "--output", metavar="FILE.txt", help="the report (default: selftest-TARGET.txt)"
    )
    parser.add_argument(
        "--layout-from", metavar="FILE.json", help="take a matrix unit's layout that a selftest found"
    )
    parser.add_argument(
        "--budget",
        type=duration,
        default=120.0,
        metavar="TIME",
        help="contest cases that take longer are left out",
    )


def _run(arguments: argparse.Namespace, progress: ReportProgress) -> Document:
    from convopt.arguments import find_gpu_here
    from convopt.errors import ExecutionError
    from convopt.selftest import lanes

    deadline = time.monotonic() + arguments.budget
    target, missing = None, None
    try:
        target = find_gpu_here(arguments.target)
    except ExecutionError as error:  # no device that would tell which target is meant
        missing = str(error)
    found = arguments.target if target is None else target.name
    output = output_path(arguments.output or f"selftest-{found.replace(':', '-')}.txt", (".txt",))
    taken = lanes.use(arguments.layout_from, target) if arguments.layout_from and target else None
    document: Document = {
        "command": "selftest",
        "target": found,
        "device": None,
        "missing": missing,
        "layout_from": taken,
        "facts": [],
        "units": [],
        "checks": [],
        "contest": [],
        "report": str(output),
    }
    bench = None if target is None else _open(target, document)
    if bench is not None:
        _probe(bench, document, output, progress)
        _check(bench, document, deadline, progress)
        with written_whole(output) as path:
            path.write_text(text(document))
    return document


def _open(target: GpuTarget, document: Document) -> BenchDevice | None:
    """None where the device or a compiler is missing. What merely fails is an error, or a check's result."""
    from convopt.arguments import find_target
    from convopt.bench.bench_device import BenchDevice
    from convopt.errors import CompilerMissing, DeviceMissing

    try:
        find_target(target.name)
        bench = BenchDevice.open(target)
        _compile_one(bench)
    except (CompilerMissing, DeviceMissing) as error:
        document["missing"] = str(error)
        return None
    document["device"] = bench.text
    return bench


def _compile_one(bench: BenchDevice) -> None:
    """CompilerMissing, DeviceMissing: of HIP source that is known only when it is loaded."""
    from convopt.errors import CompilerMissing, ConvoptError, DeviceMissing
    from convopt.schedules.gpu_probes import AtomicSums

    try:
        bench.device.load(bench.code(AtomicSums(threads=64)).binary)
    except (CompilerMissing, DeviceMissing):
        raise
    except ConvoptError:
        return  # the probes and checks tell what doesn't compile or load


def _probe(bench: BenchDevice, document: Document, output: Path, progress: ReportProgress) -> None:
    from dataclasses import asdict

    from convopt.errors import ConvoptError
    from convopt.selftest import lanes
    from convopt.selftest.device_facts import facts

    units = lanes.probed_units(bench.target)
    progress("probing", 0, 1 + len(units))
    document["facts"] = [asdict(fact) for fact in facts(bench)]
    for index, name in enumerate(units):
        progress("probing", 1 + index, 1 + len(units))
        try:
            report = lanes.probe(bench, name)
        except ConvoptError as error:
            document["units"].append({"unit": name, "agrees": False, "faults": [str(error)], "layout": None})
            continue
        layout = None
        if report.found is not None:
            layout = output.with_suffix(f".{name}.json")
            lanes.save(report, layout)
        document["units"].append(
            {
                "unit": name,
                "agrees": report.agrees,
                "faults": list(report.faults),
                "layout": None if layout is None else str(layout),
            }
        )
    progress("probing", 1 + len(units), 1 + len(units))


def _check(bench: BenchDevice, document: Document, deadline: float, progress: ReportProgress) -> None:
    from convopt.selftest.families import FINAL_CASES, SmallCase, contest_checks, small_cases
    from convopt.selftest.simple_families import SimpleCase, simple_cases

    cases: list[SmallCase | SimpleCase] = [*small_cases(bench.target), *simple_cases(bench.target)]
    bench.compile_all(
        [(one.schedule, one.problem) for one in cases],
        lambda done, total: progress("compile kernels", done, total),
    )
    for count, one in enumerate(cases):
        progress("kernel families", count, len(cases))
        document["checks"].append(_entry(one.check(bench)))
    for count, (case, check) in enumerate(contest_checks(bench, deadline)):
        progress("contest", count + 1, FINAL_CASES)
        rate = case.flop / check.seconds / 1e9 if check.seconds else None
        document["contest"].append(
            {"case": case.text, "us": check.seconds * 1e6 or None, "gflops": rate, **_entry(check)}
        )


def _entry(check: Any) -> Document:
    return {
        "name": check.name,
        "error": check.error,
        "tolerance": check.tolerance,
        "passed": check.passed,
        "reason": check.reason,
    }


def text(document: Document) -> str:
    """The report that a user sends back."""
    from convopt import __version__

    lines = [f"convopt {__version__} selftest of {document['target']} on {document['device']}"]
    if document["layout_from"]:
        lines.append(f"with the layout of {document['layout_from']} from an earlier selftest")
    lines += ["", "the device"]
    words = {True: "ok", False: "DIFFERS", None: "unknown"}
    lines += [f"  {words[f['agrees']]:8}{f['name']}: {f['text']}" for f in document["facts"]]
    lines += [] if document["units"] else ["  no matrix unit is declared for it"]
    for unit in document["units"]:
        lines.append(f"  {words[unit['agrees']]:8}lanes of {unit['unit']}")
        lines += [f"          {fault}" for fault in unit["faults"]]
        if unit["layout"]:
            lines.append(
                f"          the row c of {unit['unit']} in convopt/targets/matrix_units.py is to change;"
            )
            lines.append(f"          until then: --layout-from {unit['layout']}")
    lines += ["", "kernel families, largest error over largest value"]
    lines += [_line(check, check["name"]) for check in document["checks"]]
    lines += ["", "contest cases, float16"]
    for case in document["contest"]:
        what = f"{case['case']}"
        if case["us"]:
            what += f"  {case['us']:.1f} us  {case['gflops']:.0f} GFLOP/s  {case['name']}"
        lines.append(_line(case, what))
    return "\n".join(lines) + "\n"


def _line(check: Document, what: str) -> str:
    if check["passed"]:
        return f"  ok      {check['error']:.1e}  {what}"
    if check["error"] is None:
        return f"  {'left' if _left_out(check) else 'FAILED':8}{what}: {check['reason']}"
    return f"  FAILED  {check['error']:.1e}  {what}"


def _left_out(check: Document) -> bool:
    return str(check["reason"]).startswith("left out")


def _show(document: Document) -> None:
    from convopt.report.tables import print_line

    if document["missing"] is not None:
        print_line(f"{document['target']} can't be tested on this machine: {document['missing']}")
        return
    print_line(text(document).rstrip("\n"))
    print_line(f"written to {document['report']}")


def _status(document: Document) -> int:
    if document["missing"] is not None:
        return DEVICE_MISSING
    bad = [f for f in (*document["facts"], *document["units"]) if f["agrees"] is False]
    bad += [c for c in (*document["checks"], *document["contest"]) if not c["passed"] and not _left_out(c)]
    return FAILED if bad else 0


COMMAND = Command(
    name="selftest",
    description=(
        "Tiny kernels find out the wave size, atomic additions, banks of shared memory and which lane of a"
        " matrix unit holds which element; then every kernel family is compared with the CPU, and the six"
        " contest cases are checked and timed. All of it goes into one text file."
    ),
    fields={
        "target": "as asked for",
        "device": "its own name and chip, null where it is missing",
        "missing": "the device, driver or compiler that the target lacks here, else null",
        "layout_from": "the unit whose layout was taken from a file, else null",
        "facts[].name": "wave size, atomic additions, banks",
        "facts[].agrees": "with the declared target; null where the device can't tell",
        "facts[].text": "what was found",
        "units[].unit": "a matrix unit of the target, those that keep their layout to themselves left out",
        "units[].agrees": "whether all lanes hold what the table says",
        "units[].faults[]": "what differs",
        "units[].layout": "the file for --layout-from, where the layout found is one that can be written",
        "checks[].name": "kernel family, its form, the type, the convolution if it is one",
        "checks[].error": "largest difference from float64 over the largest value, null where it didn't run",
        "checks[].tolerance": "that it must not exceed",
        "checks[].passed": "true where it doesn't",
        "checks[].reason": "why it didn't run, else null",
        "contest[].case": "the convolution",
        "contest[].us": "microseconds, the least of 10 runs; null where it didn't run",
        "contest[].gflops": "GFLOP/s at that time",
        "contest[].name": "the schedule",
        "contest[].error": "as of checks",
        "contest[].tolerance": "as of checks",
        "contest[].passed": "as of checks",
        "contest[].reason": "as of checks; left out where the budget does not suffice",
        "report": "the text file",
    },
    add_arguments=_add_arguments,
    run=_run,
    show=_show,
    status=_status,
)
