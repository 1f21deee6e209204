"""Measured plans as the lowering asks for them, and the collection of what it asks for."""

from __future__ import annotations

import contextlib
import logging
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from convopt.errors import ExecutionError, InputError
from convopt.schedules.conv_problem import ConvProblem
from convopt.selection.conv_plan import ConvPlan
from convopt.selection.plans import Records
from convopt.targets import CpuTarget, GpuTarget
from convopt.tuning.identity import task_key
from convopt.tuning.store import Store

logger = logging.getLogger("convopt")

STORE_NAME = "tuning.sqlite3"


class StoredRecords:
    """The records of an open store; a fault of the file costs the records, not the compilation."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def find(self, problem: ConvProblem, target: CpuTarget | GpuTarget, threads: int) -> ConvPlan | None:
        try:
            record = self._store.best(task_key(problem, target, threads))
        except InputError as error:
            logger.warning("%s", error)
            return None
        except ExecutionError:
            return None  # the target is any device of its kind, and here is none: no record is of it
        return None if record is None else record.plan


class Collector:
    """Counts the convolutions that a lowering asks about; finds nothing itself."""

    def __init__(self) -> None:
        self.problems: Counter[ConvProblem] = Counter()

    def find(self, problem: ConvProblem, target: CpuTarget | GpuTarget, threads: int) -> ConvPlan | None:
        self.problems[problem] += 1
        return None


@contextlib.contextmanager
def open_records(folder: Path) -> Iterator[Records | None]:
    """The records of the store in the cache folder, None where nothing was ever tuned.

    A damaged file is set aside; one that can't be used costs a warning and the records.
    """
    path = folder / STORE_NAME
    store = None
    if os.path.exists(path):  # noqa: PTH110 -- Path.exists raises where the folder may not be read
        try:
            store = Store(path)
        except InputError as error:
            try:
                store = Store(path, read_only=True)  # on a read-only disk
            except InputError:
                logger.warning("%s", error)
    if store is None:
        yield None
        return
    with store:
        yield StoredRecords(store)
