"""`convopt bench`: convopt beside other engines, on a model, a convolution or a list of convolutions."""

from __future__ import annotations

import argparse
from typing import Any

from convopt.bench.protocol import PROTOCOL
from convopt.bench.suites import SUITES, suite
from convopt.cli.command import Command, Document, ReportProgress, output_path, parse_shapes, positive
from convopt.errors import InputError

PEERS = ("onnxruntime", "openvino", "torch")


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("model", nargs="?", metavar="IN.onnx", help="a model to run end to end")
    what.add_argument(
        "--conv",
        metavar="FIELDS",
        help="one convolution: n=16,c=128,h=64,w=64,k=27,r=3,s=3,stride=1,pad=1[,dilation=1][,groups=1]",
    )
    what.add_argument("--suite", choices=(*SUITES, "all"), help="a declared list of convolutions")
    parser.add_argument("--batch", type=positive, help="replaces n in a suite's convolutions")
    parser.add_argument(
        "--shape", action="append", default=[], metavar="NAME:D,D,...", help="of a model's input"
    )
    parser.add_argument("--threads", type=positive, help="of every engine (default: all usable cores)")
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
        default=2.0,
        help="time for each engine, case and layout (default: %(default)s)",
    )
    parser.add_argument(
        "-o", "--output", metavar="OUT.json", help="write the JSON document into this file too"
    )


def _run(arguments: argparse.Namespace, progress: ReportProgress) -> Document:
    import json

    from convopt.bench.cases import parse_case
    from convopt.bench.compare import compare_case
    from convopt.bench.engines import ENGINES, Settings
    from convopt.bench.results import describe_machine, document
    from convopt.cli.command import written_whole
    from convopt.targets.cpu import usable_cores

    output = output_path(arguments.output, (".json",)) if arguments.output else None
    peers = [name.strip() for name in arguments.against.split(",") if name.strip()]
    if unknown := [name for name in peers if name not in PEERS]:
        raise InputError(f"--against {unknown[0]}: expected some of {', '.join(PEERS)}")
    if not arguments.seconds > 0:
        raise InputError(f"--seconds {arguments.seconds}: expected more than 0")
    if arguments.batch is not None and not arguments.suite:
        raise InputError("--batch goes with --suite only")
    if arguments.shape and not arguments.model:
        raise InputError("--shape goes with a model only")
    engines = {name: ENGINES[name] for name in ("convopt", *peers)}
    settings = Settings(arguments.threads or usable_cores(), arguments.precision)
    machine = describe_machine(settings.threads)
    if arguments.model:
        results = [_bench_model(arguments, engines, settings)]
    else:
        cases = (
            ((parse_case(arguments.conv), 1),) if arguments.conv else suite(arguments.suite, arguments.batch)
        )
        results = []
        for index, (case, count) in enumerate(cases):
            progress(case.text, index, len(cases))
            results.append(compare_case(case, count, engines, settings, arguments.seconds))
    made = document(results, engines, settings, machine)
    if output:
        with written_whole(output) as temporary:
            temporary.write_text(json.dumps(made, indent=2, allow_nan=False) + "\n")
    return made


def _bench_model(arguments: argparse.Namespace, engines: Any, settings: Any) -> Any:
    import onnx_ir as ir

    from convopt.bench.compare import compare_model
    from convopt.bench.inputs import bind_inputs
    from convopt.frontends.onnx_file import load

    model = load(arguments.model)
    inputs = bind_inputs(model, parse_shapes(arguments.shape))
    return compare_model(arguments.model, ir.to_proto(model), inputs, engines, settings, arguments.seconds)


def _show(document: Document) -> None:
    from convopt.report.bench import show_bench

    show_bench(document)


ENGINE_FIELDS = {
    "layout": "of input and output: NCHW or NHWC",
    "median_ms": "of the counted calls; null where it took no part",
    "min_ms": "of the counted calls",
    "calls": "how many were counted",
    "gflops": "flop / median_ms; null for models",
    "max_error": "against onnxruntime without optimizations, see above",
    "refused": "why it took no part, else null",
}
FIELDS = {
    "protocol": "the text above",
    "machine.cpu": "model name",
    "machine.flags": "the CPU's flags of vector units",
    "machine.cores": "usable ones",
    "machine.target": "convopt's name of it",
    "machine.peak_gflops": "measured FMA peak on that many threads",
    "machine.peak_refused": "why it could not be measured, else null",
    "threads": "of every engine",
    "precision": "that every engine was allowed inside",
    "versions{}": "of each engine; null where it is not installed",
    "cases[].name": "the file, or the convolution's fields",
    "cases[].count": "how often it occurs in its suite",
    "cases[].flop": "of a convolution; null for models",
    **{f"cases[].end_to_end{{}}.{field}": text for field, text in ENGINE_FIELDS.items()},
    **{f"cases[].native{{}}.{field}": text for field, text in ENGINE_FIELDS.items()},
    "cases[].native": "null for models",
    "cases[].ratio_end_to_end{}": "peer's median / convopt's, for each peer",
    "cases[].ratio_native{}": "the same in native layouts",
    "cases[].ratio_native": "null for models",
    "cases[].ratio_to_best_peer": "the least of the ratios; null without a peer",
    "geomean_ratio_to_best_peer": "over the cases; null without a ratio",
    "least_ratio_to_best_peer": "over the cases; null without a ratio",
}

COMMAND = Command(
    name="bench",
    help="time convopt beside other engines",
    description=PROTOCOL,
    fields=FIELDS,
    add_arguments=_add_arguments,
    run=_run,
    show=_show,
)
