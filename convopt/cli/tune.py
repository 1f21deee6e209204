"""`convopt tune`: measures schedules for a model's convolutions within a budget, and remembers them."""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING, Any

from convopt.bench.suites import SUITES, suite
from convopt.cli.command import (
    Command,
    Document,
    ReportProgress,
    core_count,
    duration,
    folder,
    parse_shapes,
    positive,
)
from convopt.errors import InputError

if TYPE_CHECKING:
    from collections import Counter

    from convopt.lowering.base import LoweringOptions
    from convopt.schedules.conv_problem import ConvProblem
    from convopt.targets import CpuTarget, GpuTarget
    from convopt.tuning.rpc import RemoteRunner
    from convopt.tuning.tuner import Outcome


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("model", nargs="?", metavar="IN.onnx", help="a model with all its convolutions")
    what.add_argument("--suite", choices=(*SUITES, "all"), help="a declared list of convolutions")
    what.add_argument("--conv", metavar="FIELDS", help="one convolution, in the form of `convopt bench`")
    parser.add_argument(
        "--budget", type=duration, required=True, metavar="TIME", help="for measuring: 60s, 10m, 1h"
    )
    parser.add_argument(
        "--shape", action="append", default=[], metavar="NAME:D,D,...", help="of an input of IN.onnx"
    )
    add_target_arguments(parser)
    parser.add_argument("--batch", type=positive, help="of a suite's convolutions")
    parser.add_argument("--threads", type=core_count, help="to tune for (default: all usable cores)")
    parser.add_argument(
        "--tracker", metavar="HOST:PORT", help="measure on machines that `convopt worker` offers there"
    )
    parser.add_argument("--key", help="with --tracker: the name of such machines")
    parser.add_argument("--workers", type=positive, help="with --tracker: how many at once (default: 1)")
    parser.add_argument(
        "--cache-dir",
        type=folder,
        metavar="DIR",
        help="of kernels and measurements (default: as for optimize)",
    )


def add_target_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--target", default="cpu", help="cpu: this machine's (default), or one that `convopt targets` lists"
    )
    parser.add_argument(
        "--precision", default="fp32", help="that the model is compiled in: fp32 (default), fp16, bf16, tf32"
    )


def _run(arguments: argparse.Namespace, progress: ReportProgress) -> Document:
    from convopt.codegen.cache import KernelCache
    from convopt.tuning.records import STORE_NAME
    from convopt.tuning.session import tune_problems
    from convopt.tuning.tuner import gain
    from convopt.tuning.where import ELSEWHERE

    target = target_of(arguments, "" if arguments.tracker else ELSEWHERE)
    runners = _runners(arguments, target)
    problems, options = problems_of(arguments, progress, target)
    cache = KernelCache(arguments.cache_dir)
    start = time.perf_counter()
    outcomes = tune_problems(problems, arguments.budget, options, cache, progress, runners)
    return {
        "command": "tune",
        **source_of(arguments),
        "target": options.target.name,
        "threads": options.threads,
        "store": str(cache.root / STORE_NAME),
        "budget_s": arguments.budget,
        "seconds": time.perf_counter() - start,
        "speedup": gain(outcomes),
        "convs": [_conv(outcome) for outcome in outcomes],
    }


SOURCE_FIELDS = {
    "source": "the model's path, the suite's name, or the convolution as it was given",
    "batch": "of a suite's convolutions, null where it is their own",
    "precision": "what the kernels were asked for",
}


def source_of(arguments: argparse.Namespace) -> Document:
    """What `SOURCE_FIELDS` describes."""
    source = arguments.model or arguments.suite or arguments.conv
    return {"source": source, "batch": arguments.batch, "precision": arguments.precision}


def target_of(arguments: argparse.Namespace, remedy: str) -> CpuTarget | GpuTarget:
    """What is tuned for. remedy: where else it could be measured, if it has to be on this machine.

    Raises:
        InputError: there is no such target. DeviceMissing: no such device is here.
        CompilerMissing: nothing here compiles for it.
    """
    from convopt.arguments import find_target
    from convopt.errors import DeviceMissing
    from convopt.tuning.where import why_not_here

    try:
        target = find_target(arguments.target)
    except DeviceMissing as error:  # "dcu" and the like, which are the device that is here
        raise DeviceMissing(
            f"--target {arguments.target}: {error}; name the chip (`convopt targets`)"
        ) from error
    if remedy and (refusal := why_not_here(target)) is not None:
        raise DeviceMissing(f"--target {arguments.target}: {refusal}; {remedy}")
    return target


def _runners(arguments: argparse.Namespace, target: CpuTarget | GpuTarget) -> list[RemoteRunner]:
    if arguments.tracker is None:
        if arguments.key is not None or arguments.workers is not None:
            raise InputError("--key and --workers go with --tracker")
        return []
    if arguments.key is None:
        raise InputError("--tracker wants --key, the name of the machines")
    from convopt.tuning import rpc

    rpc.require_rpc()
    address = rpc.parse_address(arguments.tracker)
    return [rpc.RemoteRunner(address, arguments.key, target) for _ in range(arguments.workers or 1)]


def problems_of(
    arguments: argparse.Namespace, progress: ReportProgress, target: CpuTarget | GpuTarget
) -> tuple[Counter[ConvProblem], LoweringOptions]:
    """The convolutions of the model, the suite or the case, and the options that they are compiled with.

    Raises:
        InputError: arguments that don't go together, dims that are left open.
    """
    from collections import Counter

    from convopt.bench.cases import conv_model, parse_case
    from convopt.compiler import model_problems
    from convopt.targets.cpu import usable_cores

    if arguments.batch is not None and not arguments.suite:
        raise InputError("--batch goes with --suite only")
    if arguments.shape and not arguments.model:
        raise InputError("--shape goes with a model only")
    threads = arguments.threads or usable_cores()
    compiled: dict[str, Any] = {"target": target, "precision": arguments.precision}
    if arguments.model:
        return model_problems(arguments.model, parse_shapes(arguments.shape), threads, **compiled)
    cases = suite(arguments.suite, arguments.batch) if arguments.suite else ((parse_case(arguments.conv), 1),)
    found: Counter[ConvProblem] = Counter()
    for done, (case, count) in enumerate(cases):
        progress("reading the convolutions", done, len(cases))
        # From NCHW, as behind another kernel: its input gets a border of zeros.
        problems, options = model_problems(conv_model(case), None, threads, **compiled)
        found.update({problem: count * n for problem, n in problems.items()})
    return found, options


def _conv(outcome: Outcome) -> Document:
    from convopt.selection.conv_plan import to_json

    known = outcome.untuned and outcome.tuned
    return {
        "conv": outcome.label,
        "count": outcome.task.count,
        "untuned_ms": None if outcome.untuned is None else 1e3 * outcome.untuned,
        "tuned_ms": None if outcome.tuned is None else 1e3 * outcome.tuned,
        "speedup": outcome.untuned / outcome.tuned if known and outcome.untuned and outcome.tuned else None,
        "untuned": to_json(outcome.baseline),
        "tuned": to_json(outcome.best),
        "measured": outcome.tried,
        "failed": outcome.failed,
    }


def _show(document: Document) -> None:
    from convopt.report.tables import Column, number, print_line, print_table
    from convopt.selection.conv_plan import from_json

    columns = [Column("conv"), Column("x", True), Column("untuned ms", True), Column("tuned ms", True)]
    columns += [Column("speedup", True), Column("measured", True), Column("plan")]
    rows = [
        (
            conv["conv"],
            str(conv["count"]),
            number(conv["untuned_ms"], 3),
            number(conv["tuned_ms"], 3),
            number(conv["speedup"]),
            str(conv["measured"]),
            from_json(conv["tuned"]).text,
        )
        for conv in document["convs"]
        if conv["measured"]
    ]
    threads = f", threads: {document['threads']}" if document["target"].startswith("cpu") else ""
    print_table(f"{document['target']}{threads}", columns, rows)
    if unreached := len(document["convs"]) - len(rows):
        print_line(
            f"{unreached} of {len(document['convs'])} convolutions were not reached: run it again, it goes on"
        )
    print_line(
        f"{document['speedup']:.2f} times as fast as untuned over the convolutions that were measured;"
        f" {document['seconds']:.0f} s of {document['budget_s']:.0f} s used"
    )
    print_line(f"kept in {document['store']}")


PLAN_FIELDS = {
    "family": "direct, winograd, depthwise, grouped, few-features or shifted; on a GPU implicit_gemm,"
    " gpu-depthwise or gpu-direct",
    "config{}": "the schedule's fields",
    "config{}[]": "of a field with several numbers",
    "expand_col": "images of an unfolded matrix that the schedule multiplies, 0 without im2col",
}

COMMAND = Command(
    name="tune",
    description="""\
Measures schedules for each convolution of a model, of a suite or a single one, where there is most to gain,
and stops within 5 s of the budget. What beats the untuned choice when both run in turn is kept in a store in
the cache folder: `convopt optimize` uses it from then on. Interrupted or killed, a second run goes on where
the first one was. Several may run at once on one store.""",
    fields={
        **SOURCE_FIELDS,
        "target": "what was tuned for",
        "threads": "what was tuned for on a CPU",
        "store": "the file that remembers",
        "budget_s": "seconds given",
        "seconds": "seconds used",
        "speedup": "untuned / tuned time over all measured convolutions, by how often they occur",
        "convs[].conv": "kernel, stride, groups x channels -> output channels, @ extents of the output",
        "convs[].count": "how often it occurs",
        "convs[].untuned_ms": "of the untuned choice; null where it was not measured",
        "convs[].tuned_ms": "of the best known; equal to untuned_ms where that is the untuned choice",
        "convs[].speedup": "of the two",
        **{f"convs[].untuned.{path}": f"of the untuned choice: {text}" for path, text in PLAN_FIELDS.items()},
        **{f"convs[].tuned.{path}": f"of the best known: {text}" for path, text in PLAN_FIELDS.items()},
        "convs[].measured": "candidates with a time, in this run and before",
        "convs[].failed": "candidates without: they could not be compiled, crashed or took too long",
    },
    add_arguments=_add_arguments,
    run=_run,
    show=_show,
)
