"""What was measured, in one SQLite file that any number of processes read and write at once.

    tasks     the keys: operator, problem, target, threads, code generator
    trials    every candidate's time, or why it has none; a run that is killed resumes behind the last one
    records   per task, schedule family and version: the plan that beat the untuned one, timed in turn with it

Write-ahead logging lets readers go on while one writes; a writer waits for the other's transaction, which is
a few rows. A file that is no database (any more) is set aside under another name, with a warning.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import sqlite3
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from convopt.errors import InputError
from convopt.selection.conv_plan import ConvPlan, from_json, to_json
from convopt.tuning.identity import TaskKey, schedule_version

logger = logging.getLogger("convopt")

SCHEMA_VERSION = 1
BUSY_SECONDS = 30.0
_SCHEMA = """
CREATE TABLE IF NOT EXISTS tasks (
    digest TEXT PRIMARY KEY, kin TEXT NOT NULL, operator TEXT NOT NULL, problem TEXT NOT NULL,
    target TEXT NOT NULL, threads INTEGER NOT NULL, generator TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS tasks_kin ON tasks (kin);
CREATE TABLE IF NOT EXISTS trials (
    task TEXT NOT NULL REFERENCES tasks, plan TEXT NOT NULL, version TEXT NOT NULL,
    seconds REAL, failure TEXT, at REAL NOT NULL, PRIMARY KEY (task, plan, version));
CREATE TABLE IF NOT EXISTS records (
    task TEXT NOT NULL REFERENCES tasks, family TEXT NOT NULL, version TEXT NOT NULL, plan TEXT NOT NULL,
    seconds REAL NOT NULL, ratio REAL NOT NULL, baseline TEXT NOT NULL, at REAL NOT NULL,
    PRIMARY KEY (task, family, version));
"""


@dataclass(frozen=True)
class Record:
    """A plan that was faster than the untuned one.

    seconds: its median. ratio: its time / the untuned plan's, both timed in turn in one process; below 1.
    """

    plan: ConvPlan
    version: str
    seconds: float
    ratio: float
    baseline: ConvPlan
    at: float  # seconds since 1970

    @property
    def current(self) -> bool:
        """Whether the schedule is still the one that was measured."""
        return self.version == schedule_version(self.plan.schedule.name)


@dataclass(frozen=True)
class Trial:
    """One candidate's quick measurement; `failure` says why there are no seconds."""

    plan: ConvPlan
    seconds: float | None
    failure: str | None = None


def plan_text(plan: ConvPlan) -> str:
    return json.dumps(to_json(plan), sort_keys=True, separators=(",", ":"))


class Store:
    """An open store. Connections belong to the thread that opened them.

    read_only: nothing is written, a damaged file is left where it is, and the disk may be read-only.

    Raises:
        InputError: the folder can't be written, the disk is full, or a newer convopt made the file. With
            read_only: there is no such file, or it is no store.
    """

    def __init__(self, path: Path, read_only: bool = False) -> None:
        self.path = path
        if read_only:
            self.connection = _connect_to_read(path)
            return
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self.connection = self._open()
        except (OSError, sqlite3.OperationalError) as error:
            raise InputError(f"the tuning store {path} can't be used: {error}") from error

    def _open(self) -> sqlite3.Connection:
        try:
            return _connect(self.path)
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.OperationalError):
                raise  # locked, read-only, no space: the file itself may be sound
        # One process sets the file aside; one that comes later finds a sound one and leaves it alone.
        with self.path.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            try:
                return _connect(self.path)
            except sqlite3.DatabaseError as error:
                aside = self._set_aside()
                logger.warning(
                    "the tuning store %s is damaged (%s): set aside as %s, starting empty",
                    self.path, error, aside.name,
                )  # fmt: skip
            return _connect(self.path)

    def _set_aside(self) -> Path:
        aside = self.path.with_name(f"{self.path.name}.damaged-{time.time_ns()}")
        self.path.replace(aside)
        for ending in ("-wal", "-shm"):
            self.path.with_name(self.path.name + ending).unlink(missing_ok=True)
        return aside

    def close(self) -> None:
        self.connection.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *unused: object) -> None:
        self.close()

    @contextlib.contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """A transaction that begins by taking the write lock: what it reads stays true until it ends."""
        try:
            self.connection.execute("BEGIN IMMEDIATE")
            try:
                yield self.connection
                self.connection.execute("COMMIT")
            except BaseException:
                if self.connection.in_transaction:  # not after a full disk, which SQLite rolls back itself
                    self.connection.execute("ROLLBACK")
                raise
        except (sqlite3.OperationalError, sqlite3.InternalError) as error:
            raise InputError(f"the tuning store {self.path} can't be written: {error}") from error

    def rows(self, query: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """What a query finds. InputError: the file is damaged, or locked for too long."""
        try:
            return self.connection.execute(query, values).fetchall()
        except sqlite3.Error as error:
            raise InputError(f"the tuning store {self.path} can't be read: {error}") from error

    def add_task(self, key: TaskKey) -> None:
        with self.writing() as db:
            _insert_task(db, key)

    def add_trial(self, key: TaskKey, trial: Trial) -> None:
        """Keeps the faster of equal candidates' times."""
        version = schedule_version(trial.plan.schedule.name)
        row = (key.digest, plan_text(trial.plan), version, trial.seconds, trial.failure, time.time())
        with self.writing() as db:
            _insert_task(db, key)
            put_trial(db, row)

    def add_record(
        self, key: TaskKey, plan: ConvPlan, seconds: float, ratio: float, baseline: ConvPlan
    ) -> bool:
        """Keeps the plan unless the family has one with a better ratio; returns whether it was kept."""
        family = plan.schedule.name
        row = (
            key.digest, family, schedule_version(family), plan_text(plan), seconds, ratio,
            plan_text(baseline), time.time(),
        )  # fmt: skip
        with self.writing() as db:
            _insert_task(db, key)
            return put_record(db, row)

    def drop_record(self, key: TaskKey, plan: ConvPlan) -> None:
        with self.writing() as db:
            db.execute("DELETE FROM records WHERE task = ? AND plan = ?", (key.digest, plan_text(plan)))

    def best(self, key: TaskKey) -> Record | None:
        """The record of the best ratio whose schedule is still the one that was measured."""
        current = [record for record in self.records(key) if record.current]
        return min(current, key=lambda record: record.ratio, default=None)

    def records(self, key: TaskKey) -> list[Record]:
        rows = self.rows(
            "SELECT plan, version, seconds, ratio, baseline, at FROM records WHERE task = ?", (key.digest,)
        )
        return [record for row in rows for record in _read_record(row)]

    def trials(self, key: TaskKey) -> list[Trial]:
        """Of schedules that are still the same, the fastest first, failures at the end."""
        rows = self.rows(
            "SELECT plan, version, seconds, failure FROM trials WHERE task = ?"
            " ORDER BY seconds IS NULL, seconds",
            (key.digest,),
        )
        found = []
        for text, version, seconds, failure in rows:
            plan = _read_plan(text)
            if plan is not None and version == schedule_version(plan.schedule.name):
                found.append(Trial(plan, seconds, failure))
        return found

    def kin(self, key: TaskKey) -> list[ConvPlan]:
        """The plans recorded for other batch sizes or numbers of threads, the best ratio first."""
        rows = self.rows(
            "SELECT DISTINCT plan FROM records JOIN tasks ON task = digest"
            " WHERE kin = ? AND digest != ? ORDER BY ratio",
            (key.kin, key.digest),
        )
        return [plan for (text,) in rows if (plan := _read_plan(text)) is not None]


def _connect(path: Path) -> sqlite3.Connection:
    """Opens or makes the file. DatabaseError: it is no database."""
    connection = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")  # a power cut may lose the last rows, no more
        (found,) = connection.execute("PRAGMA user_version").fetchone()
        if found > SCHEMA_VERSION:
            raise InputError(f"the tuning store {path} is of a newer convopt (format {found}): use that one")
        if found < SCHEMA_VERSION:
            connection.executescript(f"{_SCHEMA} PRAGMA user_version = {SCHEMA_VERSION};")
        (fault,) = connection.execute("PRAGMA quick_check(1)").fetchone()
        if fault != "ok":
            raise sqlite3.DatabaseError(fault)
    except BaseException:
        connection.close()
        raise
    return connection


def _connect_to_read(path: Path) -> sqlite3.Connection:
    """Beside those who write; or, where even a lock can't be written, the file as it lies there."""
    if not path.is_file():
        raise InputError(f"there is no store {path}")
    faults = []
    for mode in ("mode=ro", "immutable=1"):
        connection = sqlite3.connect(
            f"file:{quote(str(path))}?{mode}", uri=True, timeout=BUSY_SECONDS, isolation_level=None
        )
        try:
            (found,) = connection.execute("PRAGMA user_version").fetchone()
            connection.execute("SELECT count(*) FROM records").fetchone()
            if found == SCHEMA_VERSION:
                return connection
            faults.append(f"format {found}, this convopt reads {SCHEMA_VERSION}")
        except sqlite3.Error as error:
            faults.append(str(error))
        connection.close()
    raise InputError(f"{path} is no tuning store that can be read: {faults[-1]}")


def _insert_task(db: sqlite3.Connection, key: TaskKey) -> None:
    put_task(
        db,
        (key.digest, key.kin, key.operator, key.problem, key.target, key.threads, key.generator),
    )


def put_task(db: sqlite3.Connection, row: tuple[object, ...]) -> None:
    """row: as the columns of `tasks`."""
    db.execute("INSERT OR IGNORE INTO tasks VALUES (?, ?, ?, ?, ?, ?, ?)", row)


def put_trial(db: sqlite3.Connection, row: tuple[object, ...]) -> bool:
    """row: as the columns of `trials`; of two equal candidates the faster time stays."""
    return bool(
        db.execute(
            "INSERT INTO trials VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET"
            " seconds = excluded.seconds, failure = excluded.failure, at = excluded.at"
            " WHERE trials.seconds IS NULL OR excluded.seconds < trials.seconds",
            row,
        ).rowcount
    )


def put_record(db: sqlite3.Connection, row: tuple[object, ...]) -> bool:
    """row: as the columns of `records`; of two of a family the better ratio stays."""
    return bool(
        db.execute(
            "INSERT INTO records VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET"
            " plan = excluded.plan, seconds = excluded.seconds, ratio = excluded.ratio,"
            " baseline = excluded.baseline, at = excluded.at WHERE excluded.ratio < records.ratio",
            row,
        ).rowcount
    )


def _read_plan(text: str) -> ConvPlan | None:
    """None for a plan of another version's schedules: fields have changed, or the family is gone."""
    try:
        return from_json(json.loads(text))
    except ValueError:
        return None


def _read_record(row: tuple[str, str, float, float, str, float]) -> list[Record]:
    plan, baseline = _read_plan(row[0]), _read_plan(row[4])
    if plan is None or baseline is None:
        return []
    return [Record(plan, row[1], row[2], row[3], baseline, row[5])]
