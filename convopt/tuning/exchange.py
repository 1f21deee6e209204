"""Stores as JSON and back, one store into another, and what of a store is of no use any more."""

from __future__ import annotations

import json
import math
import sqlite3
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from convopt.errors import InputError
from convopt.selection.conv_plan import from_json
from convopt.tuning.identity import TaskKey, code_generators, describe, schedule_version
from convopt.tuning.store import Store, put_record, put_task, put_trial

FORMAT = 1
TASK = ("operator", "problem", "target", "threads", "generator")
TRIAL = ("task", "plan", "version", "seconds", "failure", "at")
RECORD = ("task", "family", "version", "plan", "seconds", "ratio", "baseline", "at")


@dataclass(frozen=True)
class Listed:
    """A record for people. state: "used", or why it is not."""

    task: str
    conv: str
    target: str
    threads: int
    plan: dict[str, Any]
    seconds: float
    ratio: float
    at: float
    state: str


def listed(store: Store) -> list[Listed]:
    """Every record, the newest first."""
    rows = store.rows(
        "SELECT digest, problem, target, threads, generator, plan, version, seconds, ratio, at"
        " FROM records JOIN tasks ON task = digest ORDER BY at DESC"
    )
    return [
        Listed(
            digest, describe(problem), target, threads, json.loads(plan), seconds, ratio, at,
            _state(generator, plan, version),
        )
        for digest, problem, target, threads, generator, plan, version, seconds, ratio, at in rows
    ]  # fmt: skip


def _state(generator: str, plan: str, version: str) -> str:
    """Whether this convopt uses the plan."""
    if generator not in code_generators():
        return "another code generator"
    try:
        family = from_json(json.loads(plan)).schedule.name
    except ValueError:
        return "another version's schedule"
    return "used" if version == schedule_version(family) else "the schedule has changed"


def exported(store: Store) -> dict[str, Any]:
    """All rows as JSON values."""
    names = {"tasks": TASK, "trials": TRIAL, "records": RECORD}
    return {"format": FORMAT} | {
        table: [
            dict(zip(columns, row, strict=True))
            for row in store.rows(f"SELECT {', '.join(columns)} FROM {table} ORDER BY rowid")
        ]
        for table, columns in names.items()
    }


def import_rows(store: Store, document: Any) -> dict[str, int]:
    """Adds the rows of an export; of equal ones the better stays. Returns how many came new or better.

    Raises:
        InputError: it is no export, or one of a newer convopt.
    """
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise InputError(f"expected an export of format {FORMAT}")
    counts = {"trials": 0, "records": 0}
    try:
        keys = [TaskKey(*(row[name] for name in TASK)) for row in document["tasks"]]
        known = {key.digest: key for key in keys}
        trials = [tuple(row[name] for name in TRIAL) for row in document["trials"]]
        records = [tuple(row[name] for name in RECORD) for row in document["records"]]
        for _, plan, _, seconds, _, at in trials:
            _check([plan], [at] if seconds is None else [seconds, at])
        for _, _, _, plan, seconds, ratio, baseline, at in records:
            _check([plan, baseline], [seconds, ratio, at])
        orphans = {row[0] for row in (*trials, *records)} - known.keys()
        if orphans:
            raise ValueError(f"rows of tasks that are not in it: {sorted(orphans)[:3]}")
        with store.writing() as db:
            for key in keys:
                put_task(db, (key.digest, key.kin, *(getattr(key, name) for name in TASK)))
            counts["trials"] = sum(put_trial(db, row) for row in trials)
            counts["records"] = sum(put_record(db, row) for row in records)
    except (KeyError, TypeError, ValueError, sqlite3.IntegrityError, sqlite3.ProgrammingError) as error:
        raise InputError(f"a damaged export: {type(error).__name__}: {error}") from error
    return counts


def _check(plans: Sequence[Any], numbers: Sequence[Any]) -> None:
    """ValueError for what no tuner writes; plans of other versions' schedules may pass."""
    for text in plans:
        plan = json.loads(text)
        if not isinstance(plan, dict) or not isinstance(plan.get("config"), dict):
            raise ValueError(f"no plan: {text}")
        if not isinstance(plan.get("family"), str) or not isinstance(plan.get("expand_col"), int):
            raise ValueError(f"no plan: {text}")
    for number in numbers:
        if isinstance(number, bool) or not isinstance(number, int | float) or not 0 < number < math.inf:
            raise ValueError(f"{number!r} is no positive number")


def merge(store: Store, other: Path) -> dict[str, int]:
    """Adds the rows of another store, which may be in use. InputError: it is no store."""
    with Store(other, read_only=True) as source:
        return import_rows(store, exported(source))


def prune(store: Store, older_than_days: float | None) -> dict[str, int]:
    """Removes what no current schedule can use, and what is older; returns how many rows went."""
    doomed: dict[str, list[tuple[str, str, str]]] = {"trials": [], "records": []}
    limit = None if older_than_days is None else time.time() - 86400 * older_than_days
    with store.writing() as db:
        for table, rows in doomed.items():
            found = db.execute(
                f"SELECT task, plan, {table}.version, generator, at FROM {table} JOIN tasks ON task = digest"
            )
            for task, plan, version, generator, at in found.fetchall():
                if (limit is not None and at < limit) or _state(generator, plan, version) != "used":
                    rows.append((task, plan, version))
            db.executemany(f"DELETE FROM {table} WHERE task = ? AND plan = ? AND version = ?", rows)
        db.execute(
            "DELETE FROM tasks WHERE digest NOT IN (SELECT task FROM trials UNION SELECT task FROM records)"
        )
    return {table: len(rows) for table, rows in doomed.items()}


def faults(store: Store) -> list[str]:
    """What is wrong with the file or its rows, in words."""
    found = []
    db = store.connection
    for (fault,) in db.execute("PRAGMA integrity_check"):
        if fault != "ok":
            found.append(str(fault))
    for table, column in (("tasks", "problem"), ("trials", "plan"), ("records", "plan")):
        for rowid, text in db.execute(f"SELECT rowid, {column} FROM {table}"):
            try:
                json.loads(text)
            except ValueError as error:
                found.append(f"{table} row {rowid}: {column} is no JSON: {error}")
    for table in ("trials", "records"):
        query = f"SELECT count(*) FROM {table} WHERE task NOT IN (SELECT digest FROM tasks)"
        (orphans,) = db.execute(query).fetchone()
        if orphans:
            found.append(f"{orphans} {table} of tasks that are gone")
    return found
