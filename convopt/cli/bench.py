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
from convopt.bench.whole_models import MODULES
from convopt.cli.bench_fields import FIELDS
from convopt.cli.command import (
    DEVICE_MISSING,
    Command,
    Document,
    ReportProgress,
    core_count,
    folder,
    output_path,
    parse_shapes,
    positive,
    positive_number,
)
from convopt.errors import InputError
from convopt.runtime.folders import written_whole

if TYPE_CHECKING:
    from convopt.bench.bench_device import BenchDevice
    from convopt.bench.whole_models import WholeModel, WholeModule

PEERS = ("onnxruntime", "openvino", "torch", "inductor")
DEVICE_PEERS = ("torch", "inductor", "miopen", "direct")
MODULE_PEERS = ("torch", "inductor")
SUITE_SECONDS = 0.2  # of the tens of cases of a suite


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("model", nargs="?", metavar="IN.onnx", help="a model to run end to end")
    what.add_argument("--network", choices=(*NETWORKS, "all"), help="a network with random weights")
    what.add_argument(
        "--module",
        choices=(*MODULES, "all"),
        help="a torch module with random weights behind torch.compile, channels-last tensors in and out",
    )
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
    parser.add_argument(
        "--target",
        default="cpu",
        metavar="NAME",
        help="cpu (default), or a GPU here: opencl, cuda, rocm, dcu, or what `convopt doctor` lists",
    )
    parser.add_argument(
        "--precision",
        choices=("fp32", "tf32", "bf16", "fp16"),
        help="of the inside; on GPUs of a convolution's input and output too (default: fp32; on GPUs fp16);"
        " tf32 on NVIDIA's GPUs only: float32 that all engines may round before they multiply",
    )
    parser.add_argument(
        "--against",
        metavar="ENGINES",
        help=f"peers, separated by commas: {', '.join(PEERS)}; on GPUs {', '.join(DEVICE_PEERS)}; one that"
        " can't run is named with the reason (default: onnxruntime; on GPUs torch,direct; --module:"
        f" {','.join(MODULE_PEERS)})",
    )
    parser.add_argument(
        "--seconds",
        type=positive_number,
        help=f"time for each engine, case and layout (default: 2; --suite: {SUITE_SECONDS})",
    )
    parser.add_argument(
        "--cache-dir",
        type=folder,
        metavar="DIR",
        help="of convopt's kernels and measurements (default: as for optimize)",
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
    """An argparse type: numbers of threads, separated by commas."""
    return tuple(core_count(part) for part in text.split(","))


thread_counts.__name__ = "list of positive integers"  # argparse names the type in its message


def _run(arguments: argparse.Namespace, progress: ReportProgress) -> Document:
    from convopt.targets.cpu import usable_cores

    output = output_path(arguments.output, (".json",)) if arguments.output else None
    _set_defaults(arguments)
    _check(arguments)
    on = None
    if arguments.target != "cpu":
        on, missing = _open(arguments.target, arguments.precision, arguments.cache_dir)
        if on is None:
            return {"command": "bench", "target": arguments.target, "missing": missing}
    if arguments.plot:
        from convopt.bench.plots import require_matplotlib

        require_matplotlib()
    if arguments.overhead:
        made = _overhead(arguments.threads or (1, 2), progress)
    else:
        threads = arguments.threads or (usable_cores(),)
        if arguments.startup:
            made = _startup(arguments, threads, progress)
        else:
            made = _compare(arguments, threads, progress, on)
    if arguments.plot:
        from convopt.bench.plots import write_plots

        folder = Path(arguments.plot)
        folder.mkdir(parents=True, exist_ok=True)
        made["plots"] = [str(path) for path in write_plots(made, folder)]
    if output:
        _write(made, output)
    return made


def _set_defaults(arguments: argparse.Namespace) -> None:
    """What depends on the target."""
    on_cpu = arguments.target == "cpu"
    if arguments.precision is None:
        arguments.precision = "fp32" if on_cpu else "fp16"
    if arguments.against is None:
        peers = MODULE_PEERS if arguments.module else PEERS[:1] if on_cpu else ("torch", "direct")
        arguments.against = ",".join(peers)


def _open(name: str, precision: str, cache_dir: str | None) -> tuple[BenchDevice | None, str | None]:
    """The target's device, or why it can't be used here.

    InputError: there is no such target, or it has not that precision.
    """
    from convopt.arguments import find_target, precision_of
    from convopt.bench.bench_device import BenchDevice
    from convopt.errors import CompilerMissing, DeviceMissing
    from convopt.targets import GpuTarget

    try:
        target = find_target(name)
        assert isinstance(target, GpuTarget)  # the name is not "cpu"
        precision_of(precision, (), target)
        return BenchDevice.open(target, cache_dir), None
    except (CompilerMissing, DeviceMissing) as error:
        return None, str(error)


def _check(arguments: argparse.Namespace) -> None:
    """Raises InputError for options that don't go together."""
    known = MODULE_PEERS if arguments.module else PEERS if arguments.target == "cpu" else DEVICE_PEERS
    if unknown := [name for name in _peers(arguments) if name not in known]:
        raise InputError(f"--against {unknown[0]}: expected some of {', '.join(known)}")
    if arguments.target != "cpu":
        if arguments.threads or arguments.startup or arguments.overhead or arguments.module:
            raise InputError(
                "--threads, --startup, --overhead and --module are of the CPU: they don't go with --target"
            )
        if arguments.precision == "bf16":
            raise InputError("--precision bf16: on GPUs bench compares fp16, fp32 and tf32")
    elif arguments.precision == "tf32":
        raise InputError("--precision tf32 goes with --target of an NVIDIA GPU")
    if arguments.cache_dir is not None and (arguments.startup or arguments.overhead):
        raise InputError("--cache-dir: --startup begins with an empty cache, --overhead compiles no kernels")
    if arguments.model == "":
        raise InputError("IN.onnx is empty; expected a file's name")
    if arguments.batch is not None and not (arguments.suite or arguments.network or arguments.module):
        raise InputError("--batch goes with --suite, --network and --module only")
    if arguments.max_batch is not None and not arguments.suite:
        raise InputError("--max-batch goes with --suite only")
    if (arguments.resume or arguments.plot) and (arguments.startup or arguments.overhead):
        raise InputError("--resume and --plot go with comparisons, not with --startup and --overhead")
    if arguments.resume and not arguments.output:
        raise InputError("--resume wants -o OUT.json, the file to go on with")
    if arguments.plot and Path(arguments.plot).exists() and not Path(arguments.plot).is_dir():
        raise InputError(f"--plot {arguments.plot}: not a folder")
    if arguments.shape and not arguments.model:
        raise InputError("--shape goes with a model only")
    whole = arguments.model or arguments.network or arguments.models or arguments.module
    if arguments.startup and not whole:
        raise InputError("--startup goes with IN.onnx, --network, --models and --module only")


def _peers(arguments: argparse.Namespace) -> list[str]:
    return [name.strip() for name in arguments.against.split(",") if name.strip()]


def _whole_models(arguments: argparse.Namespace) -> Sequence[WholeModel | WholeModule]:
    """The models that the arguments name; empty for --conv and --suite."""
    from convopt.bench.whole_models import from_file, from_modules, from_networks, from_real_models

    if arguments.model:
        return [from_file(arguments.model, parse_shapes(arguments.shape))]
    if arguments.network:
        return from_networks(arguments.network, arguments.batch)
    if arguments.module:
        return from_modules(arguments.module, arguments.batch)
    return from_real_models(arguments.models) if arguments.models else []


def _compare(
    arguments: argparse.Namespace, threads: Sequence[int], progress: ReportProgress, on: BenchDevice | None
) -> Document:
    from convopt.bench.cases import parse_case
    from convopt.bench.comparison import Comparison, read_earlier
    from convopt.bench.device_engines import device_engines
    from convopt.bench.engines import ENGINES
    from convopt.bench.module_engines import MODULE_ENGINES

    cases: Suite = ((parse_case(arguments.conv), 1),) if arguments.conv else ()
    if arguments.suite:
        cases = suite(arguments.suite, arguments.batch, arguments.max_batch)
    seconds = arguments.seconds or (SUITE_SECONDS if arguments.suite else 2.0)
    known = MODULE_ENGINES if arguments.module else ENGINES if on is None else device_engines()
    engines = {name: known[name] for name in ("convopt", *_peers(arguments))}
    output = Path(arguments.output) if arguments.output else None
    earlier = read_earlier(output) if output and arguments.resume else None
    return Comparison(engines, threads, arguments.precision, seconds, on, arguments.cache_dir).run(
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

    models = _whole_models(arguments)
    found = []
    for done, whole in enumerate(models):
        progress(whole.name, done, len(models))
        for count in threads:
            states = whole.startup(count)
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
    from convopt.report.tables import print_line

    if "missing" in document:
        print_line(f"{document['target']} can't be measured on this machine: {document['missing']}")
        return
    show_bench(document)


def _status(document: Document) -> int:
    return DEVICE_MISSING if "missing" in document else 0


COMMAND = Command(
    name="bench",
    description=PROTOCOL,
    fields=FIELDS,
    add_arguments=_add_arguments,
    run=_run,
    show=_show,
    status=_status,
)
