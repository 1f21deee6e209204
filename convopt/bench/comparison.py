"""Whole comparisons: models and convolutions through all engines, at each number of threads, resumable."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from convopt.bench.bench_device import BenchDevice
from convopt.bench.cases import ConvCase
from convopt.bench.compare import CaseResult, compare_case
from convopt.bench.engine import Settings
from convopt.bench.results import (
    Limits,
    case_document,
    declared_limits,
    document,
    earlier_cases,
    measure_limits,
    run_document,
)
from convopt.bench.suites import Suite
from convopt.bench.whole_models import WholeModel, WholeModule
from convopt.errors import InputError


@dataclass(frozen=True)
class Comparison:
    """What is compared; `seconds` is the time for each engine, case and layout.

    engines: of `convopt.bench.engines` or `device_engines`, for torch modules of `module_engines`.
    on: the GPU that the engines run on, if not the CPU. cache_dir: as of `Settings`.
    """

    engines: dict[str, Any]
    threads: Sequence[int]
    precision: str
    seconds: float
    on: BenchDevice | None = None
    cache_dir: str | None = None

    def run(
        self,
        models: Sequence[WholeModel | WholeModule],
        cases: Suite,
        earlier: dict[str, Any] | None = None,
        progress: Callable[[str, int, int], None] = lambda *_: None,
        after_case: Callable[[dict[str, Any]], None] = lambda _: None,
    ) -> dict[str, Any]:
        """The finished document; `after_case` gets the one so far. Cases that are in `earlier` are kept.

        Raises:
            InputError: `earlier` does not belong to this comparison.
        """
        limits = [self._limits(count) for count in self.threads]
        found: dict[int, list[dict[str, Any]]] = {count: [] for count in self.threads}
        known = {} if earlier is None else earlier_cases(earlier, self._document([]))

        def so_far() -> dict[str, Any]:
            return self._document([run_document(limit, found[limit.threads]) for limit in limits])

        works = [(whole.name, partial(whole.race, self.engines, self.seconds)) for whole in models]
        works += [(case.text, partial(self._case, case, count)) for case, count in cases]
        for done, (name, prepare) in enumerate(works):
            progress(name, done, len(works))
            kept = [known.get((count, name)) for count in self.threads]
            measure = None if all(kept) else prepare()
            for count, old in zip(self.threads, kept, strict=True):
                if old is not None:
                    found[count].append(old)
                elif measure is not None:
                    target = self.on.target.name if self.on else "cpu"
                    settings = Settings(count, self.precision, target, self.cache_dir)
                    found[count].append(case_document(measure(settings)))
                    after_case(so_far())
        return so_far()

    def _case(self, case: ConvCase, count: int) -> Callable[[Settings], CaseResult]:
        return lambda settings: compare_case(case, count, self.engines, settings, self.seconds)

    def _document(self, runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
        return document(runs, self.engines, self.precision, self.seconds, self.on)

    def _limits(self, threads: int) -> Limits:
        if self.on is not None:
            return declared_limits(self.on.target, self.precision, threads)
        return measure_limits(threads)


def read_earlier(path: Path) -> dict[str, Any] | None:
    """The document in the file, None where there is no file.

    Raises:
        InputError: the file holds no comparison.
    """
    if not path.exists():
        return None
    try:
        earlier = json.loads(path.read_text())
        earlier["runs"][0]["cases"]
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise InputError(f"--resume: {path} is no document of convopt bench with cases") from error
    return dict(earlier)
