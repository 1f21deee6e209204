"""`convopt kernels`: a family's kernels compiled once, of which the sizes pick one at run time."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import Any

from convopt.cli.command import Command, Document, ReportProgress, core_count, folder, positive
from convopt.errors import InputError

ACTIONS = {
    "build": "compile what the rule keeps for any sizes: build LIB.kernels",
    "list": "its kernels",
    "select": "the five steps for --m, --n, --k",
}


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=ACTIONS, help="; ".join(f"{k}: {v}" for k, v in ACTIONS.items()))
    parser.add_argument("library", metavar="LIB.kernels")
    for name, meaning in (
        ("m", "rows, or output pixels"),
        ("n", "columns, or output channels"),
        ("k", "depth"),
    ):
        parser.add_argument(f"--{name}", type=positive, help=f"select: {meaning}")
    parser.add_argument("--threads", type=core_count, help="select: cores that will run it (default: all)")
    parser.add_argument(
        "--cache-dir", type=folder, metavar="DIR", help="of compiled kernels (default: as for optimize)"
    )


def _run(arguments: argparse.Namespace, progress: ReportProgress) -> Document:
    from convopt.codegen.cache import KernelCache
    from convopt.kernels import library
    from convopt.targets.cpu import usable_cores

    path, action = Path(arguments.library), arguments.action
    sizes = (arguments.m, arguments.n, arguments.k)
    if (action == "select") != (None not in sizes) or (action != "select" and any(sizes)):
        raise InputError("--m, --n and --k go with select, all three of them")
    document: Document = {"command": "kernels", "action": action, "library": str(path)}
    if action == "build":
        if not path.parent.is_dir():
            raise InputError(f"{path}: there is no folder {path.parent}")
        cache = KernelCache(arguments.cache_dir)
        count = library.build(path, cache, lambda done, total: progress("compile kernels", done, total))
        return {**document, "instances": count, "bytes": path.stat().st_size}
    loaded = library.GemmLibrary(path, arguments.threads or usable_cores())
    if action == "list":
        kernels = [
            {
                "symbol": symbol,
                "family": config.name,
                "config": asdict(config),
                "tile": [config.pixels, config.tile(loaded.target)],
            }
            for config, symbol in loaded.symbols.items()
        ]
        return {
            **document,
            "target": loaded.target_name,
            "bytes": path.stat().st_size,
            "kernels": kernels,
        }
    selection = loaded.select(*sizes)
    steps = [
        {
            "number": step.number,
            "title": step.title,
            "kept": [instance.text for instance in step.kept],
            "dropped": {instance.text: reason for instance, reason in step.dropped.items()},
        }
        for step in selection.steps
    ]
    chosen = selection.chosen
    return {**document, "chosen": chosen.text, "config": asdict(chosen.config), "steps": steps}


def _show(document: Document) -> None:
    from convopt.report.tables import Column, print_line, print_table

    if document["action"] == "build":
        print_line(f"{document['instances']} kernels, {_size(document)}: {document['library']}")
    elif document["action"] == "list":
        rows = [
            (
                kernel["family"],
                "x".join(map(str, kernel["tile"])),
                str(kernel["config"]["row_chunk"]),
                _config(kernel["config"]),
            )
            for kernel in document["kernels"]
        ]
        columns = [Column("family"), Column("tile", True), Column("tiles per task", True)]
        title = f"{document['library']}: {len(rows)} kernels for {document['target']}, {_size(document)}"
        print_table(title, [*columns, Column("configuration")], rows)
    else:
        for step in document["steps"]:
            dropped = "; ".join(f"{name}: {reason}" for name, reason in step["dropped"].items())
            print_line(f"step {step['number']}, {step['title']}: {len(step['kept'])} kept")
            if dropped:
                print_line(f"    dropped {dropped}")
        print_line(f"chosen: {document['chosen']}, {_config(document['config'])}")


def _size(document: Document) -> str:
    return f"{document['bytes'] / (1 << 20):.1f} MiB"


def _config(config: dict[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in config.items())


COMMAND = Command(
    name="kernels",
    description="""\
Matrix products y[m, n] = a[m, k] @ b[k, n] whose sizes come at run time. `build` compiles every configuration
that the tile selection rule keeps whatever the sizes (its first two steps) into one library; `select` takes
the other three steps with the sizes in hand. convopt.kernels.library.GemmLibrary runs products without
compiling.""",
    fields={
        "action": "which one",
        "library": "the file",
        "instances": "how many kernels were compiled into it (build)",
        "bytes": "its size (build, list)",
        "target": "what it was compiled for (list)",
        "kernels[].symbol": "the function's name (list)",
        "kernels[].family": "of kernels (list)",
        "kernels[].tile[]": "rows and columns of y that are held in registers (list)",
        "kernels[].config{}": "its configuration (list)",
        "chosen": "the kernel that computes these sizes (select)",
        "config{}": "its configuration (select)",
        "steps[].number": "1 to 5 (select)",
        "steps[].title": "what the step looks at (select)",
        "steps[].kept[]": "the kernels left (select)",
        "steps[].dropped{}": "kernel: why it was dropped (select)",
    },
    add_arguments=_add_arguments,
    run=_run,
    show=_show,
)
