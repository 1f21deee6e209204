"""Compiling in subprocesses: what fails is said in words, and nothing else is lost."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest

from convopt.codegen.cache import KernelCache
from convopt.codegen.workers import KernelSource, compile_kernels
from convopt.schedules.base import row_major
from convopt.schedules.gemm_pack import PackMatrix, PackProblem
from convopt.targets import host_cpu
from tests.codegen.strange_schedules import Aborts, Counts, Exits, Prints, Raises, Sleeps, WantsTorch

pytestmark = pytest.mark.kernels


def source(schedule: Any, rows: int = 3) -> KernelSource:
    return KernelSource(schedule, PackProblem(row_major((1, rows, 20)), 8), host_cpu())


GOOD = [source(PackMatrix(), rows) for rows in (3, 4, 5, 6)]


def is_object(code: bytes) -> bool:
    return code.startswith(b"\x7fELF")


def assert_good(objects: dict[str, bytes]) -> None:
    assert all(is_object(objects[s.key]) for s in GOOD)


@pytest.mark.parametrize(
    ("schedule", "words"),
    [
        (Raises(), "ValueError: no such tile"),
        (WantsTorch(), "ModuleNotFoundError: import of torch halted; None in sys.modules"),
        (Aborts(), "the kernel compiler crashed (signal 6)"),
        (Exits(), "the kernel compiler crashed (exit 3)"),
    ],
    ids=["raises", "wants torch", "aborts", "exits"],
)
def test_a_failure_is_said_and_the_others_are_compiled(schedule: Any, words: str, tmp_path: Path) -> None:
    bad = [source(schedule, rows) for rows in (3, 4)]
    mixed = [bad[0], GOOD[0], GOOD[1], bad[1], GOOD[2], GOOD[3]]
    result = compile_kernels(mixed, KernelCache(tmp_path))
    assert result.failures == {b.key: words for b in bad}
    assert result.compiled == len(GOOD)
    assert_good(result.objects)
    again = compile_kernels(mixed, KernelCache(tmp_path))
    assert again.failures == result.failures and again.compiled == 0  # failures are not kept


def test_a_compiler_that_takes_too_long(tmp_path: Path) -> None:
    slow = source(Sleeps())
    compile_kernels(GOOD[:2], KernelCache(tmp_path))  # processes are up: the timeout is not their start's
    result = compile_kernels([slow, *GOOD], KernelCache(tmp_path), timeout=8.0)
    assert result.failures == {slow.key: "the kernel compiler took longer than 8 s"}
    assert_good(result.objects)


def test_what_is_printed_does_not_get_between_the_answers(tmp_path: Path) -> None:
    result = compile_kernels([source(Prints()), *GOOD], KernelCache(tmp_path))
    assert not result.failures
    assert_good(result.objects)


def test_equal_kernels_are_compiled_once(tmp_path: Path) -> None:
    path = tmp_path / "count"
    wanted = [source(Counts(path=str(path))) for _ in range(5)]
    result = compile_kernels(wanted, KernelCache(tmp_path))
    assert (result.compiled, len(result.objects)) == (1, 1)
    compile_kernels(wanted, KernelCache(tmp_path))
    assert path.read_bytes() == b"."


def test_progress_counts_what_is_missing(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    cache = KernelCache(tmp_path)
    compile_kernels(GOOD[:1], cache)
    compile_kernels(GOOD, cache, lambda done, total: seen.append((done, total)))
    assert seen == [(0, 3), (1, 3), (2, 3), (3, 3)]
    compile_kernels(GOOD, cache, lambda done, total: seen.append((done, total)))
    assert len(seen) == 4  # nothing was left to do the second time


def test_several_threads_at_once(tmp_path: Path) -> None:
    results: list[Any] = []
    threads = [
        threading.Thread(
            target=lambda i=i: results.append(compile_kernels(GOOD, KernelCache(tmp_path / str(i))))
        )
        for i in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 3
    for result in results:
        assert not result.failures
        assert_good(result.objects)


@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
def test_a_forked_child_compiles_by_its_own_workers(tmp_path: Path) -> None:
    """The child of a process with idle workers must neither take them nor hang."""
    compile_kernels(GOOD, KernelCache(tmp_path / "parent"))
    child = os.fork()
    if child == 0:
        code = 1
        try:
            result = compile_kernels(GOOD, KernelCache(tmp_path / "child"))
            code = 0 if result.compiled == len(GOOD) and not result.failures else 2
        finally:
            os._exit(code)
    parent = compile_kernels([source(PackMatrix(), 9)], KernelCache(tmp_path / "parent"))
    assert parent.compiled == 1
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
