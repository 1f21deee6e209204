"""A progress bar on stderr that appears only when the work takes longer than a second."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any, Self

PATIENCE_SECONDS = 1.0


class Progress:
    """Called as `progress(stage, done, total)`; shows the current stage's bar, on a terminal only.

    Used as a context manager, which clears the bar at the end.
    """

    def __init__(self, shown: bool = True) -> None:
        self._shown = shown and sys.stderr.isatty()
        self._start = time.monotonic()
        self._bar: Any = None
        self._task: Any = None

    def __call__(self, stage: str, done: int, total: int) -> None:
        if not self._shown or (self._bar is None and time.monotonic() - self._start < PATIENCE_SECONDS):
            return
        if self._bar is None:
            self._begin(stage, done, total)
        self._bar.update(self._task, description=stage, completed=done, total=total)

    def _begin(self, stage: str, done: int, total: int) -> None:
        from rich import progress
        from rich.console import Console

        columns = (
            progress.TextColumn("{task.description}", markup=False),
            progress.BarColumn(),
            progress.MofNCompleteColumn(),
            progress.TimeElapsedColumn(),
        )
        self._bar = progress.Progress(*columns, console=Console(stderr=True), transient=True)
        self._task = self._bar.add_task(stage, completed=done, total=total)
        self._bar.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
