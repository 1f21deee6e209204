"""`convopt optimize`: a compiled artifact, or a better ONNX file, out of an ONNX model."""

from __future__ import annotations

import argparse
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from convopt.cli.command import (
    Command,
    Document,
    ReportProgress,
    add_compile_arguments,
    compile_options,
    output_path,
    parse_shapes,
    refuse_compile_options,
    require_program,
    require_static_inputs,
)
from convopt.cli.instruments import Instruments, add_instrument_arguments
from convopt.errors import InputError
from convopt.report.documents import MEMORY_FIELDS, PLACEMENT_FIELDS

if TYPE_CHECKING:
    import onnx_ir as ir

    from convopt.passes.base import Pass, PassReport


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="IN.onnx")
    parser.add_argument(
        "-o",
        "--output",
        required=True,
        metavar="OUT",
        help="OUT.convopt: a compiled artifact; OUT.onnx: an ONNX file in standard operators",
    )
    parser.add_argument(
        "--lowered",
        action="store_true",
        help="with OUT.onnx: the model as it is compiled, each kernel an operator that a function defines;"
        " wants static shapes",
    )
    add_compile_arguments(parser)
    parser.add_argument(
        "--verify",
        nargs="?",
        const="fallback",
        choices=("fallback", "raise"),
        help="with OUT.convopt: compare with onnxruntime on a random input; what differs falls back or fails",
    )
    parser.add_argument(
        "--check",
        choices=("each-pass",),
        help="run a random input through before and after of every pass; names the guilty pass",
    )
    add_instrument_arguments(parser)


def _run(arguments: argparse.Namespace, progress: ReportProgress) -> Document:
    output = output_path(arguments.output, (".convopt", ".onnx"))
    if output.exists() and Path(arguments.model).exists() and output.samefile(arguments.model):
        raise InputError(f"-o {output}: is the model itself; expected another file")
    if arguments.lowered and output.suffix != ".onnx":
        raise InputError(f"--lowered writes an ONNX file; got -o {output}")
    if output.suffix == ".onnx":
        refuse_compile_options(arguments, ("shape", "skip"), f"is about compiled artifacts; got -o {output}")
    if arguments.verify and output.suffix != ".convopt":
        raise InputError(f"--verify is about compiled artifacts; got -o {output}, which is always checked")
    start = time.perf_counter()
    write = _write_artifact if output.suffix == ".convopt" else _write_onnx
    document = {
        "command": "optimize",
        "input": arguments.model,
        "output": str(output),
        **write(arguments, output, progress),
    }
    document["seconds"] = time.perf_counter() - start
    return document


def _write_artifact(arguments: argparse.Namespace, output: Path, progress: ReportProgress) -> Document:
    import convopt
    from convopt.report.documents import memory_document, placement_document

    instruments = Instruments(arguments.print_after, arguments.dump_dir)
    module = convopt.optimize(
        arguments.model,
        **compile_options(arguments),
        verify="raise" if arguments.verify == "raise" else arguments.verify is not None,
        check=arguments.check,
        after=instruments,
        progress=progress,
    )
    require_program(module, arguments.model)
    instruments.finish()
    module.save(str(output))
    program = module.programs[-1].program
    return {
        "format": "convopt",
        **placement_document(module.placement),
        **memory_document(program),
        "verified": program.meta.get("verified"),
    }


def _write_onnx(arguments: argparse.Namespace, output: Path, progress: ReportProgress) -> Document:
    from convopt.bench.equality import check_equal
    from convopt.frontends.lowered import groups_to_functions
    from convopt.frontends.onnx_file import load, save
    from convopt.grouping import lower_graph
    from convopt.lowering.base import LoweringOptions
    from convopt.passes import GRAPH_PASSES, PassContext, run_passes, without
    from convopt.passes.check import CheckEachPass
    from convopt.targets import host_cpu
    from convopt.targets.cpu import usable_cores

    original = load(arguments.model)
    model = original.clone()
    instruments = Instruments(arguments.print_after, arguments.dump_dir)
    shapes = parse_shapes(arguments.shape)
    context = PassContext(target=host_cpu(), shapes=shapes)
    passes = without(GRAPH_PASSES, arguments.skip)
    check = CheckEachPass(model, context) if arguments.check else None

    def after(index: int, one: Pass, changed: ir.Model, report: PassReport) -> None:
        instruments(index, one, changed, report)
        if check is not None:
            check(index, one, changed, report)
        progress("passes", index + 1, len(passes) + 1)

    run_passes(model, passes, context, after)
    if arguments.lowered:
        require_static_inputs(model, arguments.model)
        options = LoweringOptions(host_cpu(), arguments.threads or usable_cores())
        model = lower_graph(model, context, {}, instruments, options)
    instruments.finish()
    if arguments.lowered:
        groups_to_functions(model)
    progress("comparing with the original", len(passes), len(passes) + 1)
    equality = check_equal(arguments.model, original, model, shapes)
    save(model, output)
    return {
        "format": "lowered" if arguments.lowered else "onnx",
        "nodes_before": _operator_counts(original),
        "nodes_after": _operator_counts(model),
        "passes": [{"name": name, "changed": changed} for name, changed in instruments.ran],
        "max_error": equality.max_error,
        "unchecked": equality.unchecked,
    }


def _operator_counts(model: ir.Model) -> dict[str, int]:
    """operator -> number of nodes, over all graphs, the most frequent first; kernels as `convopt.<Kind>`."""
    from convopt.ir.groups import DOMAIN

    counts = Counter(
        f"{DOMAIN}.{node.op_type.rpartition('_')[0]}" if node.domain == DOMAIN else node.op_type
        for node in model.graph.all_nodes()
    )
    return dict(counts.most_common())


def _show(document: Document) -> None:
    from convopt.report.documents import memory_line, placement_lines
    from convopt.report.tables import Column, print_line, print_table

    if document["format"] == "convopt":
        for line in placement_lines(document):
            print_line(line)
        print_line(memory_line(document))
        if document["verified"]:
            print_line(document["verified"])
    else:
        before, after = document["nodes_before"], document["nodes_after"]
        rows = [(op, str(before.get(op, 0)), str(after.get(op, 0))) for op in {**before, **after}]
        rows.append(("all", str(sum(before.values())), str(sum(after.values()))))
        print_table("nodes", [Column("operator"), Column("before", True), Column("after", True)], rows)
        if document["unchecked"]:
            print_line(f"not compared with the original, which does not run: {document['unchecked']}")
        else:
            print_line(
                f"equal to the original by data: largest error {document['max_error']:.1e} of the scale"
            )
    print_line(f"{document['output']} written in {document['seconds']:.1f} s")


COMMAND = Command(
    name="optimize",
    description="""\
-o OUT.convopt compiles the model for a target and its input shapes: `convopt run` and convopt.load run it.
-o OUT.onnx writes the model in standard operators for any runtime: shapes and constants folded, normalization
folded into convolutions, padding merged and explicit, transposes cancelled; compared with the original on a
random input before it is written. Of the options from --target to --cache-dir it takes --skip only.""",
    fields={
        "input": "the model's path",
        "output": "the file written",
        "format": "convopt, onnx or lowered",
        "seconds": "from start to the file written",
        **{path: f"{text} (OUT.convopt)" for path, text in {**PLACEMENT_FIELDS, **MEMORY_FIELDS}.items()},
        "verified": "what --verify found, null without it (OUT.convopt)",
        "nodes_before{}": "operator: how many nodes (OUT.onnx)",
        "nodes_after{}": "operator: how many nodes (OUT.onnx)",
        "passes[].name": "in the order in which they ran (OUT.onnx)",
        "passes[].changed": "rewrites made by it (OUT.onnx)",
        "max_error": "largest difference from the original, relative to the output's scale (OUT.onnx)",
        "unchecked": "why there was nothing to compare with, else null (OUT.onnx)",
    },
    add_arguments=_add_arguments,
    run=_run,
    show=_show,
)
