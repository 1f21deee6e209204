"""Measured plans as the lowering asks for them, and the collection of what it asks for."""

from __future__ import annotations

import contextlib
import logging
import sqlite3
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from convopt.schedules.conv_problem import ConvProblem
from convopt.selection.plans import ConvPlan, Records
from convopt.targets import Target
from convopt.tuning.identity import task_key
from convopt.tuning.store import Store

logger = logging.getLogger("convopt")

STORE_NAME = "tuning.sqlite3"


class StoredRecords:
    """The records of an open store; a fault of the file costs the records, not the compilation."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def find(self, problem: ConvProblem, target: Target, threads: int) -> ConvPlan | None:
        try:
            record = self._store.best(task_key(problem, target, threads))
        except sqlite3.Error as error:
            logger.warning("the tuning store %s can't be read: %s", self._store.path, error)
            return None
        return None if record is None else record.plan


class Collector:
    """Counts the convolutions that a lowering asks about; finds nothing itself."""

    def __init__(self) -> None:
        self.problems: Counter[ConvProblem] = Counter()

    def find(self, problem: ConvProblem, target: Target, threads: int) -> ConvPlan | None:
        self.problems[problem] += 1
        return None


@contextlib.contextmanager
def open_records(folder: Path) -> Iterator[Records | None]:
    """The records of the store in the cache folder, None where nothing was ever tuned."""
    path = folder / STORE_NAME
    if not path.exists():
        yield None
        return
    with Store(path) as store:
        yield StoredRecords(store)
