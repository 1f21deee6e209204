"""The part of `convopt explain` that shows what selection decides and what its estimates consist of."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from convopt.cli.command import Document, compile_options, refuse_compile_options
from convopt.errors import InputError

if TYPE_CHECKING:
    from collections import Counter

    from convopt.schedules.conv_problem import ConvProblem

DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
USED = ("shape", "target", "precision", "threads", "skip", "cache_dir")  # of the options of optimize


def run_cost(arguments: argparse.Namespace) -> Document:
    """The document of `--cost`: each convolution of the model, of the suite, or the one that is given."""
    from convopt.arguments import find_gpu_here
    from convopt.bench import calibration
    from convopt.codegen.cache import KernelCache
    from convopt.selection.explained import cpu_cost, gpu_cost
    from convopt.targets import host_cpu
    from convopt.targets.cpu import usable_cores
    from convopt.tuning.records import open_records

    if arguments.precision not in DTYPES:
        raise InputError(f"--precision {arguments.precision}: expected {', '.join(DTYPES)}")
    refuse_compile_options(arguments, USED, "--cost shows what is chosen without it")
    if arguments.all:
        raise InputError("--all: --cost shows convolutions, and all of them unless --node is given")
    if arguments.node is not None and not arguments.model:
        raise InputError("--node goes with a model: --conv and --suite have no nodes")
    threads = arguments.threads or usable_cores()
    target: Any = host_cpu() if arguments.target == "cpu" else find_gpu_here(arguments.target)
    if arguments.target == "cpu" and arguments.precision != "fp32":
        raise InputError(f"--cost --precision {arguments.precision} goes with a GPU target")
    problems = _problems(arguments, threads, target)
    measured = calibration.load(KernelCache(arguments.cache_dir).root).get(threads)
    roof = (1e9 * measured.peak_gflops, 1e9 * measured.bandwidth_gbs) if measured else None
    costs = []
    with open_records(KernelCache(arguments.cache_dir).root) as records:
        for problem, count in problems.items():
            try:
                if arguments.target == "cpu":
                    found = cpu_cost(problem, target, threads, records, roof)
                else:
                    found = gpu_cost(problem, target)
            except ValueError as error:
                raise InputError(f"{problem.text}: {error}") from error
            costs.append(found | {"count": count})
    return {
        "command": "explain",
        "model": arguments.model or arguments.conv or arguments.suite,
        "target": target.name,
        "precision": arguments.precision,
        "costs": costs,
    }


def no_such_node(model: str, node: str, names: Sequence[str], kind: str = "node") -> InputError:
    """The error for a --node that is part of none of the names."""
    near = difflib.get_close_matches(node, names, 3, 0.3) or names[:3]
    has = f"it has {', '.join(near)} and others" if near else "it has none"
    return InputError(f"--node {node}: {model} has no {kind} whose name contains this; {has}")


def _problems(arguments: argparse.Namespace, threads: int, target: Any) -> Counter[ConvProblem]:
    from collections import Counter

    from convopt.bench.cases import conv_problem, parse_case
    from convopt.bench.suites import suite
    from convopt.compiler import model_problems

    if arguments.model:
        options = compile_options(arguments)
        seen: list[str] = []

        def wanted(name: str) -> bool:
            seen.append(name)
            return arguments.node is None or arguments.node in name

        compiled = {"target": target, "precision": arguments.precision, "wanted": wanted}
        found, _ = model_problems(arguments.model, options["shapes"], threads, options["skip"], **compiled)
        if arguments.node is not None and not found:
            raise no_such_node(arguments.model, arguments.node, list(dict.fromkeys(seen)), "convolution")
        return found
    cases = suite(arguments.suite) if arguments.suite else ((parse_case(arguments.conv), 1),)
    dtype = DTYPES[arguments.precision]
    return Counter({conv_problem(case, dtype): count for case, count in cases})


def show_cost(document: Document) -> None:
    from convopt.report.tables import Column, print_line, print_table

    print_line(f"{document['target']}, {document['precision']}; microseconds, predicted")
    columns = [Column("conv"), Column("x", True), Column("us", True), Column("roofline", True)]
    columns += [
        Column("bound"),
        Column("waves", True),
        Column("chosen"),
        Column("rule us", True),
        Column("rule"),
    ]
    rows = [
        (
            cost["conv"],
            str(cost["count"]),
            _us(cost["seconds"]),
            _us(cost["roofline_s"]),
            cost["bound"],
            f"{cost['parts']['waves']:.2f}" if "waves" in cost["parts"] else "",
            config_text(cost["chosen"]) + (" (measured)" if cost["source"] == "record" else ""),
            _us(cost["rule"]["seconds"]),
            cost["rule"]["refused"] or config_text(cost["rule"]["chosen"]),
        )
        for cost in document["costs"]
    ]
    print_table("what the model and the rule choose", columns, rows)
    names = [n for n in dict.fromkeys(n for c in document["costs"] for n in c["parts"]) if n not in _HIDDEN]
    parts = [
        (cost["conv"], *(_part(name, cost["parts"].get(name)) for name in names))
        for cost in document["costs"]
    ]
    on_cpu = document["target"].startswith("cpu")
    title = f"parts of the prediction{', all on one core' if on_cpu else ''}"
    print_table(title, [Column("conv"), *(Column(n, True) for n in names)], parts)
    if len(document["costs"]) == 1:
        for step in document["costs"][0]["rule"]["steps"]:
            dropped = "; ".join(f"{count}: {reason}" for reason, count in step["dropped"].items())
            print_line(f"rule, step {step['number']}, {step['title']}: {step['kept']} kept")
            if dropped:
                print_line(f"    dropped: {dropped}")


def config_text(chosen: dict[str, Any]) -> str:
    """`128x128x32 split 3 swizzle 4x4 stages 2 mmac`, or a CPU schedule with its fields."""
    if "block_m" in chosen:
        x, y = chosen["swizzle"]
        return (
            f"{chosen['block_m']}x{chosen['block_n']}x{chosen['block_k']} split {chosen['split_k']}"
            f" swizzle {x}x{y} stages {chosen['stages']} {chosen['unit']}"
        )
    fields = {name: v for name, v in chosen.items() if name not in ("algorithm", "expand_col")}
    unfolded = f"im2col of {chosen['expand_col']}, " if chosen.get("expand_col") else ""
    return f"{unfolded}{chosen['algorithm']} " + " ".join(f"{name}={value}" for name, value in fields.items())


_COUNTS = ("blocks", "resident", "rounds", "tasks", "matrices", "bytes_from_memory")
_HIDDEN = ("resident", "bytes_from_memory")  # for --json
_RATIOS = ("waves", "occupancy", "l2_hit", "imbalance")


def _part(name: str, value: float | None) -> str:
    if value is None:
        return ""
    if name in _COUNTS:
        return f"{value:.0f}"
    return f"{value:.2f}" if name in _RATIOS else _us(value)


def _us(seconds: float | None) -> str:
    return "" if seconds is None else f"{1e6 * seconds:.1f}"
