"""One run of tuning on this machine: the store, the measuring process and the tuner together."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from convopt.codegen.cache import KernelCache
from convopt.errors import InputError
from convopt.lowering.base import LoweringOptions
from convopt.schedules.conv_problem import ConvProblem
from convopt.tuning.records import STORE_NAME
from convopt.tuning.runner import LocalRunner
from convopt.tuning.store import Store
from convopt.tuning.tuner import Outcome, Status, Task, Tuner

Progress = Callable[[str, int, int], None]


def tune_problems(
    problems: Mapping[ConvProblem, int],
    seconds: float,
    options: LoweringOptions,
    cache: KernelCache,
    progress: Progress | None = None,
) -> list[Outcome]:
    """Measures schedules of these convolutions (with how often each occurs) into the cache folder's store.

    Raises:
        InputError: the folder can't be written, or no time was given.
    """
    if not seconds > 0:
        raise InputError(f"tuning for {seconds} s: expected more than 0")

    def report(status: Status) -> None:
        if progress is not None:
            stage = f"tune: {status.gain:.2f} times as fast so far; {status.label}"
            progress(stage, min(int(status.elapsed), int(seconds)), int(seconds))

    runner = LocalRunner()
    try:
        with Store(cache.root / STORE_NAME) as store:
            tuner = Tuner(store, options, cache, runner, report)
            return tuner.tune([Task(problem, count) for problem, count in problems.items()], seconds)
    finally:
        runner.close()
