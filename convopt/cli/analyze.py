"""`convopt analyze`: what each convolution costs, what bounds it, and how it is computed."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from convopt.cli.command import (
    Command,
    Document,
    ReportProgress,
    add_compile_arguments,
    compile_options,
    positive_number,
    require_program,
)
from convopt.errors import InputError

if TYPE_CHECKING:
    from convopt.analysis.roofline import ConvCost, Roof
    from convopt.targets import CpuTarget, GpuTarget


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="IN.onnx")
    add_compile_arguments(parser)
    for name, unit in (("--peak", "GFLOP/S"), ("--bandwidth", "GB/S")):
        parser.add_argument(
            name, type=positive_number, metavar=unit, help="instead of what is measured or declared"
        )


def _run(arguments: argparse.Namespace, progress: ReportProgress) -> Document:
    import convopt
    from convopt.analysis.roofline import Roof, conv_costs
    from convopt.arguments import find_target
    from convopt.frontends.onnx_file import load
    from convopt.ir.precision import Precision
    from convopt.passes import GRAPH_PASSES, PassContext, run_passes, without
    from convopt.targets.cpu import usable_cores

    options = compile_options(arguments)
    threads = arguments.threads or usable_cores()
    model = load(arguments.model)
    run_passes(model, without(GRAPH_PASSES, arguments.skip), PassContext(shapes=options["shapes"] or {}))
    module = convopt.optimize(arguments.model, **options, progress=progress)
    require_program(module, arguments.model)
    costs = conv_costs(model, Precision(arguments.precision, frozenset(arguments.keep_fp32)))
    target = find_target(arguments.target)
    peak, bandwidth = _limits(arguments, target, threads)
    placement = {place.node: place for place in module.placement}
    roof = Roof(peak * 1e9, bandwidth * 1e9)
    return {
        "command": "analyze",
        "model": arguments.model,
        "target": target.name,
        "threads": threads,
        "peak_gflops": peak,
        "bandwidth_gbs": bandwidth,
        "convs": [_conv(cost, roof, placement.get(cost.node)) for cost in costs],
    }


def _limits(
    arguments: argparse.Namespace, target: CpuTarget | GpuTarget, threads: int
) -> tuple[float, float]:
    """(GFLOP/s, GB/s): what is given; else a GPU's as declared for the precision, this CPU's as measured."""
    from convopt.bench.peak import measure_bandwidth, measure_peak
    from convopt.bench.results import declared_limits
    from convopt.targets import CpuTarget

    if isinstance(target, CpuTarget):
        peak = arguments.peak or measure_peak(target, threads)
        if isinstance(peak, str):
            raise InputError(f"the peak can't be measured ({peak}); give it with --peak")
        return peak, arguments.bandwidth or measure_bandwidth()
    declared = declared_limits(target, arguments.precision, threads)
    assert declared.peak_gflops is not None  # a declared one is a number
    return arguments.peak or declared.peak_gflops, arguments.bandwidth or declared.bandwidth_gbs


def _conv(cost: ConvCost, roof: Roof, place: Any) -> dict[str, Any]:
    return {
        "node": cost.node,
        "op": cost.op,
        "kernel": list(cost.kernel),
        "m": cost.m,
        "n": cost.n,
        "k": cost.k,
        "groups": cost.groups,
        "flop": cost.flop,
        "bytes": cost.nbytes,
        "intensity": cost.intensity,
        "bound": cost.bound(roof),
        "floor_us": 1e6 * cost.seconds(roof),
        "where": place.where if place else None,
        "algorithm": place.detail if place else None,
    }


def _show(document: Document) -> None:
    from convopt.report.tables import Column, number, print_line, print_table, scaled

    on_cpu = document["target"].startswith("cpu")
    where = f"{document['threads']} threads" if on_cpu else document["target"]
    print_line(
        f"{document['model']}: {where}, peak {document['peak_gflops']:.0f} GFLOP/s, "
        f"memory {document['bandwidth_gbs']:.1f} GB/s"
    )
    columns = [Column("convolution"), Column("kernel"), *(Column(t, True) for t in ("M", "N", "K", "groups"))]
    columns += [Column(t, True) for t in ("FLOP", "bytes", "FLOP/byte")]
    columns += [Column("bound"), Column("floor us", True), Column("algorithm")]
    rows = [
        (
            conv["node"],
            "x".join(map(str, conv["kernel"])),
            *(str(conv[field]) for field in ("m", "n", "k", "groups")),
            scaled(conv["flop"]),
            scaled(conv["bytes"]),
            number(conv["intensity"], 1),
            conv["bound"],
            number(conv["floor_us"], 1),
            f"{conv['where']}: {conv['algorithm']}"
            if conv["where"] == "fallback"
            else conv["algorithm"] or "",
        )
        for conv in document["convs"]
    ]
    print_table("convolutions", columns, rows)
    total = sum(conv["floor_us"] for conv in document["convs"])
    flop = sum(conv["flop"] for conv in document["convs"])
    print_line(f"{len(rows)} convolutions, {scaled(flop)}FLOP, at least {total / 1e3:.3f} ms")


COMMAND = Command(
    name="analyze",
    description="""\
For each convolution of the optimized model: its GEMM, M x N x K for each group (M output pixels, N output
channels, K kernel positions times input channels; of a transposed one M input pixels, N output channels times
kernel positions, K input channels), its work, its least traffic (input, weight, bias, output once each),
whether compute or memory bounds it on the target, the least time that allows, and the algorithm chosen
(written as in `convopt explain --help`).""",
    fields={
        "model": "the path",
        "target": "what it is analysed for",
        "threads": "that the module uses",
        "peak_gflops": "given, or the FMA peak measured on that many threads; a GPU's is declared",
        "bandwidth_gbs": "given, or a copy through memory measured on one core, reads and writes; a GPU's is"
        " declared",
        "convs[].node": "name",
        "convs[].op": "Conv or ConvTranspose",
        "convs[].kernel[]": "spatial extents",
        "convs[].m": "of the GEMM",
        "convs[].n": "of the GEMM, for each group",
        "convs[].k": "of the GEMM, for each group",
        "convs[].groups": "how many such GEMMs",
        "convs[].flop": "a multiply and an add are two",
        "convs[].bytes": "least traffic, of what the precision stores",
        "convs[].intensity": "flop / bytes",
        "convs[].bound": "compute or memory",
        "convs[].floor_us": "least time in microseconds",
        "convs[].where": "compiled or fallback",
        "convs[].algorithm": "the schedule chosen, or the fallback's reason",
    },
    add_arguments=_add_arguments,
    run=_run,
    show=_show,
)
