"""One run of tuning: the store, what measures (here or elsewhere), and a tuner for each of it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from convopt.codegen.cache import KernelCache
from convopt.errors import InputError
from convopt.lowering.base import LoweringOptions, Progress
from convopt.schedules.conv_problem import ConvProblem
from convopt.tuning.records import STORE_NAME
from convopt.tuning.runner import LocalRunner, NoDevice, Runner
from convopt.tuning.store import Store
from convopt.tuning.tuner import Board, Outcome, Status, Task, Tuner

logger = logging.getLogger("convopt")


def tune_problems(
    problems: Mapping[ConvProblem, int],
    seconds: float,
    options: LoweringOptions,
    cache: KernelCache,
    progress: Progress | None = None,
    runners: Sequence[Runner] = (),
) -> list[Outcome]:
    """Measures schedules of these convolutions (with how often each occurs) into the cache folder's store.

    runners: where; by default a process on this machine. Several work at once, each on other convolutions;
    one that finds no device any more leaves them to the others.

    Raises:
        InputError: the folder can't be written, or no time was given.
        NoDevice: no runner has a device any more.
    """
    if not seconds > 0:
        raise InputError(f"tuning for {seconds} s: expected more than 0")

    def report(status: Status) -> None:
        if progress is not None:
            stage = f"tune: {status.gain:.2f} times as fast so far; {status.label}"
            progress(stage, min(int(status.elapsed), int(seconds)), int(seconds))

    used = list(runners) or [LocalRunner()]
    path = cache.root / STORE_NAME
    with Store(path) as store:
        tuner = Tuner(store, options, cache, used[0], report)
        board = Board([tuner.state(Task(problem, count)) for problem, count in problems.items()])
        try:
            if len(used) == 1:
                tuner.work(board, seconds)
            else:
                _work_on_all(used, board, seconds, options, cache, report)
        finally:
            board.stopped = True
            for runner in used:
                runner.close()
        return [tuner.outcome(state) for state in board.states]


def _work_on_all(
    runners: Sequence[Runner],
    board: Board,
    seconds: float,
    options: LoweringOptions,
    cache: KernelCache,
    report: Callable[[Status], None],
) -> None:
    """A thread, with its own connection to the store, for each runner. NoDevice: of the last one."""

    def work(runner: Runner) -> NoDevice | None:
        try:
            with Store(cache.root / STORE_NAME) as store:
                Tuner(store, options, cache, runner, report).work(board, seconds)
        except NoDevice as error:
            logger.warning("one of %d devices less: %s", len(runners), error)
            return error
        finally:
            runner.close()  # another one may wait for its device
        return None

    with ThreadPoolExecutor(len(runners)) as pool:
        waiting = [pool.submit(work, runner) for runner in runners]
        try:
            errors = [future.result() for future in waiting]
        finally:
            board.stopped = True  # interrupted: the threads end behind their current visits
    if errors and all(errors):
        raise NoDevice(str(errors[-1]))
