"""`convopt explain`: what each pass did to each convolution, and why it did not do more."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from convopt.bench.suites import SUITES
from convopt.cli.command import (
    Command,
    Document,
    ReportProgress,
    add_compile_arguments,
    compile_options,
    parse_shapes,
    require_program,
    require_static_inputs,
)
from convopt.cli.cost_fields import COST_FIELDS
from convopt.cli.explain_cost import no_such_node, run_cost, show_cost
from convopt.errors import InputError

if TYPE_CHECKING:
    from convopt.passes.base import After, Pass, PassReport
    from convopt.runtime.program import Placement


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("model", nargs="?", metavar="IN.onnx")
    what.add_argument("--conv", metavar="FIELDS", help="with --cost: one convolution, as for `convopt bench`")
    what.add_argument("--suite", choices=(*SUITES, "all"), help="with --cost: a list of convolutions")
    parser.add_argument(
        "--cost",
        action="store_true",
        help="what is chosen for each convolution, and the parts of its predicted time; compiles nothing",
    )
    parser.add_argument(
        "--node", metavar="NAME", help="only the nodes whose name contains this; no others are compiled"
    )
    parser.add_argument("--all", action="store_true", help="all nodes, not convolutions and refusals only")
    add_compile_arguments(parser)


def _run(arguments: argparse.Namespace, progress: ReportProgress) -> Document:
    import convopt

    if arguments.cost:
        return run_cost(arguments)
    if not arguments.model:
        raise InputError("--conv and --suite go with --cost")
    reports: dict[tuple[str, int], PassReport] = {}

    def after(index: int, one: Pass, model: Any, report: PassReport) -> None:
        # Passes run again, with more refusals, where a kernel could not be made: the last word counts.
        reports[one.name, index] = report

    # What is measured first, or what a whole Program takes, is known of whole models only.
    if arguments.node is not None and arguments.tune is None and arguments.workspace_cap is None:
        placed = _place(arguments, after, progress)
    else:
        options = compile_options(arguments)
        module = convopt.optimize(arguments.model, **options, after=after, progress=progress)
        require_program(module, arguments.model)
        placed = module.placement
    notes: dict[str, list[dict[str, Any]]] = {}
    for (name, _), report in reports.items():
        for note in report.notes:
            entry = {"pass": name, "text": note.text, "refused": note.refused}
            notes.setdefault(note.node, []).append(entry)
    placement = {place.node: place for place in placed}
    names = list(dict.fromkeys((*placement, *notes)))
    if arguments.node is not None and not any(arguments.node in name for name in names):
        raise no_such_node(arguments.model, arguments.node, names)
    nodes = [
        {
            "node": name,
            "op": place.op if place else None,
            "where": place.where if place else None,
            "detail": place.detail if place else None,
            "notes": notes.get(name, []),
        }
        for name in names
        for place in (placement.get(name),)
        if (arguments.all or _worth_telling(place, notes.get(name, [])))
        and (arguments.node is None or arguments.node in name)
    ]
    return {
        "command": "explain",
        "model": arguments.model,
        "passes": [{"name": name, "changed": report.changed} for (name, _), report in reports.items()],
        "nodes": nodes,
    }


def _place(arguments: argparse.Namespace, after: After, progress: ReportProgress) -> tuple[Placement, ...]:
    """As `optimize` would place the nodes; of the kernels only the wanted nodes' are compiled."""
    from convopt.arguments import check_choices, folder_of
    from convopt.codegen.cache import KernelCache
    from convopt.compiler import lowering_options
    from convopt.frontends.onnx_file import load
    from convopt.grouping import lower_graph, recorded, settled
    from convopt.lowering.program import place_nodes
    from convopt.passes import GRAPH_PASSES, PassContext, run_passes, without
    from convopt.selection.plans import CAP

    a = arguments
    check_choices(a.precision, False, None, a.skip, a.algorithm)
    passes = without(GRAPH_PASSES, a.skip)
    options = lowering_options(
        a.target, a.precision, a.keep_fp32, a.threads, a.im2col_cap or CAP, a.algorithm
    )
    model, cache = load(a.model), KernelCache(folder_of(a.cache_dir))
    context = PassContext(target=options.target, shapes=parse_shapes(a.shape))
    run_passes(model, passes, context, after)
    require_static_inputs(model, a.model)
    refused: dict[str, str] = {}
    with recorded(options, cache.root, a.deterministic) as chosen:

        def place() -> tuple[Placement, ...]:
            lowered = lower_graph(model, context, refused, after, chosen)
            return place_nodes(lowered, chosen, cache, lambda name: a.node in name, progress)

        return settled(refused, place)


def _worth_telling(place: Placement | None, notes: list[dict[str, Any]]) -> bool:
    """Convolutions, nodes that fell back, nodes that were refused something."""
    from convopt.runtime.summary import CONVOLUTIONS

    if place is not None and (place.op in CONVOLUTIONS or place.where == "fallback"):
        return True
    return any(note["refused"] for note in notes)


def _show(document: Document) -> None:
    from convopt.report.tables import Column, print_line, print_table

    if "costs" in document:
        show_cost(document)
        return
    columns = [Column("pass"), Column("changed", True)]
    print_table("passes", columns, [(one["name"], str(one["changed"])) for one in document["passes"]])
    if not document["nodes"]:
        print_line("nothing to say of them: --all lists every node")
    for node in document["nodes"]:
        print_line(f"{node['op'] or 'gone:'} {node['node']}")
        for note in node["notes"]:
            print_line(f"    {note['pass']}{' refused' if note['refused'] else ''}: {note['text']}")
        if node["where"]:
            print_line(f"    {node['where']}: {node['detail']}")


COMMAND = Command(
    name="explain",
    description="""\
Optimizes the model and says of each convolution what each pass did to it, what it refused to do and why, and
which schedule computes it in the end. Nodes that fell back or were refused something are listed too.

--cost shows instead what is chosen for each convolution and what its predicted time consists of, beside the
choice of the five-step rule; --target names any chip of `convopt targets`, which need not be here.

3x3 s2 1x16->32 @1x1x28x28 direct: kernel, stride, groups x input channels of each -> output channels of each,
@ batch x depth x height x width of the output, schedule.""",
    fields={
        "model": "the path; the convolution or the suite where that was given",
        "target": "what it is chosen for (--cost)",
        "precision": "of inputs, weights and outputs (--cost)",
        **{f"costs[].{path}": f"{text} (--cost)" for path, text in COST_FIELDS.items()},
        "passes[].name": "in the order in which they ran",
        "passes[].changed": "rewrites made by it",
        "nodes[].node": "name",
        "nodes[].op": "operator; null for a node that a pass removed",
        "nodes[].where": "compiled, view, folded or fallback; null for a node that a pass removed",
        "nodes[].detail": "the schedule, or the fallback's reason; null for a node that a pass removed",
        "nodes[].notes[].pass": "who says it",
        "nodes[].notes[].text": "what it did, or why it refused",
        "nodes[].notes[].refused": "whether it is a refusal",
    },
    add_arguments=_add_arguments,
    run=_run,
    show=_show,
)
