"""`convopt cache`: what the tuning store holds; export, import, merge, prune, verify."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from convopt.cli.command import Command, Document, ReportProgress, folder, output_path
from convopt.errors import InputError
from convopt.runtime.folders import written_whole

if TYPE_CHECKING:
    from convopt.tuning.store import Store

ACTIONS = {
    "list": "the records",
    "export": "write all rows as JSON: export OUT.json",
    "import": "add the rows of an export: import IN.json",
    "merge": "add the rows of another store: merge OTHER.sqlite3",
    "prune": "remove what the present schedules can't use, and what is older than --days",
    "verify": "check the file and its rows",
}
# What there is to say where nothing has been tuned yet.
EMPTY: dict[str, dict[str, Any]] = {
    "list": {"records": []},
    "verify": {"faults": []},
    "prune": {"rows": {"trials": 0, "records": 0}},
}
WITH_PATH = ("export", "import", "merge")


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=ACTIONS, help="; ".join(f"{k}: {v}" for k, v in ACTIONS.items()))
    parser.add_argument("path", nargs="?", metavar="PATH", help="of export, import and merge")
    parser.add_argument("--days", type=float, metavar="N", help="prune: also what is older")
    parser.add_argument(
        "--cache-dir", type=folder, metavar="DIR", help="whose store (default: as for optimize)"
    )


def _run(arguments: argparse.Namespace, progress: ReportProgress) -> Document:
    from convopt.codegen.cache import KernelCache
    from convopt.tuning.records import STORE_NAME
    from convopt.tuning.store import Store

    del progress
    action = arguments.action
    if (action in WITH_PATH) != (arguments.path is not None):
        raise InputError(f"cache {action}: {'a path is missing' if action in WITH_PATH else 'takes no path'}")
    if arguments.days is not None and (action != "prune" or not arguments.days >= 0):
        raise InputError("--days goes with prune only, and is at least 0")
    path = KernelCache(arguments.cache_dir).root / STORE_NAME
    if not path.exists() and action in EMPTY:
        return {"command": "cache", "action": action, "store": str(path), **EMPTY[action]}
    if not path.exists() and action == "export":
        raise InputError(f"there is no store {path}: `convopt tune` makes one")
    with Store(path, read_only=action in ("list", "export", "verify")) as store:
        found = _act(action, arguments, store)
    return {"command": "cache", "action": action, "store": str(path), **found}


def _act(action: str, arguments: argparse.Namespace, store: Store) -> dict[str, Any]:
    from dataclasses import asdict

    from convopt.tuning import exchange

    if action == "list":
        return {"records": [asdict(record) for record in exchange.listed(store)]}
    if action == "export":
        document = exchange.exported(store)
        with written_whole(output_path(arguments.path, (".json",))) as temporary:
            temporary.write_text(json.dumps(document, indent=1) + "\n")
        return {"rows": {table: len(document[table]) for table in ("trials", "records")}}
    if action == "import":
        try:
            document = json.loads(Path(arguments.path).read_text(encoding="utf-8"))
        except ValueError as error:
            raise InputError(f"{arguments.path}: no JSON: {error}") from error
        return {"rows": exchange.import_rows(store, document)}
    if action == "merge":
        return {"rows": exchange.merge(store, Path(arguments.path))}
    if action == "prune":
        return {"rows": exchange.prune(store, arguments.days)}
    return {"faults": exchange.faults(store)}


def _show(document: Document) -> None:
    from convopt.report.tables import Column, number, print_line, print_table

    print_line(document["store"])
    if "records" in document:
        columns = [Column("conv"), Column("threads", True), Column("ms", True), Column("ratio", True)]
        columns += [Column("plan"), Column("state"), Column("target")]
        rows = [
            (
                r["conv"],
                str(r["threads"]),
                number(1e3 * r["seconds"], 3),
                number(r["ratio"]),
                _plan_text(r["plan"]),
                r["state"],
                r["target"],
            )
            for r in document["records"]
        ]
        print_table("records: time, and time / that of the untuned choice", columns, rows)
        if not rows:
            print_line("no records yet")
    elif "rows" in document:
        verb = {"export": "written", "prune": "removed"}.get(document["action"], "new or better")
        print_line(", ".join(f"{count} {table} {verb}" for table, count in document["rows"].items()))
    else:
        for fault in document["faults"] or ["no faults"]:
            print_line(fault)


def _plan_text(plan: dict[str, Any]) -> str:
    """Also of schedules that this version doesn't have."""
    config = " ".join(f"{name}={value}" for name, value in plan["config"].items())
    unfolded = f"im2col of {plan['expand_col']} images, " if plan["expand_col"] else ""
    return f"{unfolded}{plan['family']} {config}"


COMMAND = Command(
    name="cache",
    description="""\
The store of `convopt tune`: a SQLite file in the cache folder. Records are valid for one convolution
(shapes, layout, epilogue), chip, number of threads, code generator and version of the schedule; others stay
unused.""",
    fields={
        "action": "which one",
        "store": "the file",
        "records[].task": "identity of the convolution with chip, threads and code generator (list)",
        "records[].conv": "the convolution, as summaries name it (list)",
        "records[].target": "the chip: a CPU's instructions, caches and name, a GPU's target and name (list)",
        "records[].threads": "what it was measured with, 0 on a GPU (list)",
        "records[].plan.family": "the schedule's name (list)",
        "records[].plan.config{}": "its fields (list)",
        "records[].plan.config{}[]": "of a field with several numbers (list)",
        "records[].plan.expand_col": "images of an unfolded matrix, 0 without im2col (list)",
        "records[].seconds": "median time (list)",
        "records[].ratio": "its time / that of the untuned choice, measured in turn (list)",
        "records[].at": "when, in seconds since 1970 (list)",
        "records[].state": "used, or why not (list)",
        "rows{}": "trials, records: how many were written, came new or better, or were removed",
        "faults[]": "what is wrong, in words (verify)",
    },
    add_arguments=_add_arguments,
    run=_run,
    show=_show,
    status=lambda document: 1 if document.get("faults") else 0,
)
