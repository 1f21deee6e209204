"""`convopt choices`: how near the untuned choices come to the best of a space that is measured whole."""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import asdict

from convopt.bench.suites import SUITES
from convopt.cli.command import Command, Document, ReportProgress, core_count, duration, folder, positive
from convopt.cli.tune import SOURCE_FIELDS, add_target_arguments, problems_of, source_of, target_of


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("model", nargs="?", metavar="IN.onnx", help="a model with all its convolutions")
    what.add_argument("--suite", choices=(*SUITES, "all"), help="a declared list of convolutions")
    what.add_argument("--conv", metavar="FIELDS", help="one convolution, in the form of `convopt bench`")
    parser.add_argument(
        "--budget", type=duration, default=600.0, metavar="TIME", help="for measuring (default: 10m)"
    )
    parser.add_argument(
        "--shape", action="append", default=[], metavar="NAME:D,D,...", help="of an input of IN.onnx"
    )
    add_target_arguments(parser)
    parser.add_argument("--batch", type=positive, help="of a suite's convolutions")
    parser.add_argument("--threads", type=core_count, help="to measure with (default: all usable cores)")
    parser.add_argument(
        "--cache-dir", type=folder, metavar="DIR", help="of kernels and measurements (as for optimize)"
    )


def _run(arguments: argparse.Namespace, progress: ReportProgress) -> Document:
    from statistics import median

    from convopt.bench.results import geometric_mean
    from convopt.codegen.cache import KernelCache
    from convopt.selection.plans import choose_plan
    from convopt.tuning.choices import measure_space, quality
    from convopt.tuning.records import STORE_NAME
    from convopt.tuning.runner import LocalRunner
    from convopt.tuning.store import Store

    problems, options = problems_of(
        arguments, progress, target_of(arguments, "choices are measured here only")
    )
    selection = []
    _forget()  # the problems were chosen for when they were collected
    for problem in problems:
        start = time.thread_time()
        choose_plan(problem, options.target, options.threads, "auto", options.im2col_cap)
        selection.append(1e3 * (time.thread_time() - start))
    cache = KernelCache(arguments.cache_dir)
    deadline = time.monotonic() + arguments.budget
    runner = LocalRunner()
    found = []
    try:
        with Store(cache.root / STORE_NAME) as store:
            for done, problem in enumerate(problems):

                def report(
                    plans: int, total: int, text: str = f"{problem.text} ({done + 1} of {len(problems)})"
                ) -> None:
                    progress(text, plans, total)

                raced = measure_space(problem, options, store, cache, runner, deadline, report)
                if (one := quality(problem, options, store, raced)) is not None:
                    found.append(one)
    finally:
        runner.close()
    ruled = [one.rule for one in found if one.rule is not None]
    return {
        "command": "choices",
        **source_of(arguments),
        "target": options.target.name,
        "threads": options.threads,
        "selection_ms": median(selection),
        "selection_most_ms": max(selection),
        "unmeasured": len(problems) - len(found),
        "first_geomean": geometric_mean([one.first for one in found]) if found else None,
        "first_least": min((one.first for one in found), default=None),
        "top8_geomean": geometric_mean([one.top8 for one in found]) if found else None,
        "rule_geomean": geometric_mean(ruled) if ruled else None,
        "convs": [asdict(one) for one in found],
    }


def _forget() -> None:
    """Empties all of the package's caches, so that a choice costs what it costs a new process."""
    modules = [module for name, module in sys.modules.items() if name.startswith("convopt.")]
    for value in [value for module in modules for value in vars(module).values()]:
        if callable(clear := getattr(value, "cache_clear", None)):
            clear()


def _show(document: Document) -> None:
    from convopt.report.tables import Column, number, print_line, print_table

    columns = [Column("conv"), Column("plans", True), Column("best ms", True), Column("first", True)]
    columns += [Column("best of 8", True), Column("rule", True), Column("space", True)]
    columns += [Column("tau", True)]
    rows = [
        (
            one["conv"],
            f"{one['measured']}{'' if one['complete'] else '+'}",
            number(1e3 * one["best_seconds"], 3),
            number(one["first"], 3),
            number(one["top8"], 3),
            number(one["rule"], 3),
            number(one["space"], 3),
            number(one["tau"]),
        )
        for one in document["convs"]
    ]
    title = f"best time / time of a choice; {document['target']}, threads: {document['threads']}"
    print_table(title, columns, rows)
    if rows:
        print_line(
            f"first choice: geometric mean {document['first_geomean']:.3f}, least"
            f" {document['first_least']:.3f}; best of its first 8: {document['top8_geomean']:.3f}"
            + ("" if document["rule_geomean"] is None else f"; the rule's: {document['rule_geomean']:.3f}")
        )
    print_line(
        f"choosing took {document['selection_ms']:.1f} ms of processor time a convolution, at most"
        f" {document['selection_most_ms']:.1f}"
    )
    if document["unmeasured"]:
        print_line(f"{document['unmeasured']} convolutions were not reached: run it again, it goes on")


COMMAND = Command(
    name="choices",
    description="""\
Measures a small space of each convolution whole, at least 64 plans over all algorithms where there are so
many, then the fastest few again in turn, and compares: the model's first choice, the best of its first
eight, the five-step rule's choice, and Kendall's tau between the predicted and the measured order. What was
measured before is used; a second run goes on.""",
    fields={
        **SOURCE_FIELDS,
        "target": "what was measured on",
        "threads": "what was measured with",
        "selection_ms": "processor time of a convolution's untuned choice, the median",
        "selection_most_ms": "the most that one took",
        "unmeasured": "convolutions that the budget did not reach",
        "first_geomean": "of convs[].first",
        "first_least": "of convs[].first",
        "top8_geomean": "of convs[].top8",
        "rule_geomean": "of convs[].rule, where there is one",
        "convs[].conv": "the convolution, as summaries name it",
        "convs[].measured": "plans with a time",
        "convs[].complete": "whether that is the whole small space, failures left out",
        "convs[].best_seconds": "the best time",
        "convs[].first": "best time / time of the model's first choice",
        "convs[].top8": "best time / best time of the model's first eight",
        "convs[].rule": "best time / time of the rule's choice, null without one",
        "convs[].space": "best time of all that is in the store, by `convopt tune` too / best_seconds",
        "convs[].tau": "Kendall's tau between the predicted and the measured order",
    },
    add_arguments=_add_arguments,
    run=_run,
    show=_show,
)
