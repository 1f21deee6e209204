"""Kernels, threads and contexts: right results in every circumstance, nothing left behind."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from convopt.errors import ArtifactError, InputError
from convopt.runtime.execution import RUNNING_THREADS
from convopt.runtime.loaded import LoadedProgram
from convopt.runtime.module import CompiledModule
from convopt.runtime.program import KernelStep, Program
from tests.runtime.snippets import at, chain, chain_expected, floats, image

needs_proc = pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="needs /proc")


def threads_alive() -> int:
    """The threads of this process, once their number stays: a joined one is listed a little longer."""
    gc.collect()
    count, steady = -1, 0
    while steady < 5:
        previous, count = count, len(list(Path("/proc/self/task").iterdir()))
        steady = steady + 1 if count == previous else 0
        time.sleep(0.005)
    return count


def sample(rows: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).random((rows, 8), np.float32)


def single(step: KernelStep, inputs: int, size: int) -> LoadedProgram:
    program = Program(
        tuple(floats(f"x{i}", 1) for i in range(inputs)), (floats("y", size),), 64, 0, (step,), meta={}
    )
    return LoadedProgram(program, image())


@pytest.mark.parametrize("threads", [1, 2, 3, 4, 9])
@pytest.mark.parametrize("rows", [1, 2, 7, 64])
def test_results_do_not_depend_on_the_threads(threads: int, rows: int) -> None:
    module = CompiledModule([chain(rows, 3)], threads=threads)
    for seed in range(20):
        x = sample(rows, seed)
        np.testing.assert_allclose(module(x), chain_expected(x, 3), rtol=1e-6)


def test_sixteen_operands_come_in_order() -> None:
    step = KernelStep("k_sixteen", (at("output"), *(at("input", i) for i in range(15))), 1)
    module = CompiledModule([single(step, 15, 1)], threads=1)
    values = np.arange(3.0, 18.0, dtype=np.float32)
    y = module(*(values[i : i + 1] for i in range(15)))
    assert y[0] == sum((i + 1) * (i + 3) for i in range(15))


@pytest.mark.parametrize("scratch", [1, 100, 6 << 20])
def test_each_thread_has_aligned_scratch_memory(scratch: int) -> None:
    step = KernelStep("k_aligned", (at("output"),), 12, scratch=scratch)
    assert CompiledModule([single(step, 0, 12)], threads=3)().tolist() == [1.0] * 12


def test_a_step_without_tasks_does_nothing() -> None:
    step = KernelStep("k_aligned", (at("output"),), 0)
    assert CompiledModule([single(step, 0, 4)], threads=2)().shape == (4,)


@needs_proc
def test_each_module_has_the_threads_asked_for() -> None:
    before = threads_alive()
    x = sample(8)
    two = CompiledModule([chain(8)], threads=2)
    four = CompiledModule([chain(8)], threads=4)
    two(x)
    assert threads_alive() == before + 1
    four(x)
    assert threads_alive() == before + 1 + 3
    two(x)
    four(x)
    assert threads_alive() == before + 1 + 3
    del two, four
    gc.collect()
    assert threads_alive() == before


@needs_proc
def test_the_code_is_unloaded_with_the_last_module() -> None:
    def mapped() -> int:
        return Path("/proc/self/maps").read_text().count("memfd:convopt-kernels")

    gc.collect()
    before = mapped()
    loaded = chain(8)
    module = CompiledModule([loaded], threads=2)
    module(sample(8))
    assert mapped() > before
    del module, loaded
    gc.collect()
    assert mapped() == before


def test_two_images_loaded_one_after_the_other_are_two() -> None:
    """The linker takes a library of a known name for the known library."""
    libraries = [chain(4).library for _ in range(5)]
    assert len({library.symbol("k_scale") for library in libraries}) == 5


def test_calls_from_many_threads() -> None:
    module = CompiledModule([chain(16, 4)], threads=2)
    start = threading.Barrier(8)

    def work(seed: int) -> float:
        start.wait()
        worst = 0.0
        for i in range(50):
            x = sample(16, seed * 100 + i)
            worst = max(worst, float(np.abs(module(x) - chain_expected(x, 4)).max()))
        return worst

    with ThreadPoolExecutor(8) as pool:
        assert max(pool.map(work, range(8))) < 1e-4
    assert RUNNING_THREADS.count.value == 0


@needs_proc
def test_threads_that_leave_a_core_keep_all_others() -> None:
    def allowed() -> list[str]:
        texts = [task.read_text() for task in Path("/proc/self/task").glob("*/status")]
        return [line for text in texts for line in text.splitlines() if line.startswith("Cpus_allowed:")]

    module = CompiledModule([chain(16, 4)], threads=2)
    for seed in range(200):
        module(sample(16, seed))
    assert len(set(allowed())) == 1


@needs_proc
def test_idle_contexts_are_bounded() -> None:
    before = threads_alive()
    module = CompiledModule([chain(16, 4)], threads=3, max_idle=2)
    start = threading.Barrier(6)

    def work(_: int) -> None:
        start.wait()
        for _ in range(20):
            module(sample(16))

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(work, range(6)))
    assert threads_alive() <= before + 2 * 2


def test_outputs_belong_to_the_caller() -> None:
    module = CompiledModule([chain(4)], threads=1)
    first = module(sample(4, 1))
    kept = first.copy()
    second = module(sample(4, 2))
    assert not np.shares_memory(first, second)
    np.testing.assert_array_equal(first, kept)
    second[...] = 0  # writable
    del module
    gc.collect()
    np.testing.assert_array_equal(first, kept)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_can_call_the_module() -> None:
    module = CompiledModule([chain(16, 2)], threads=3)
    x = sample(16)
    expected = module(x)
    child = os.fork()
    if child == 0:
        signal.alarm(20)  # a hang ends the child
        same = all(np.array_equal(module(x), expected) for _ in range(5))
        del module
        gc.collect()
        os._exit(0 if same else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    np.testing.assert_array_equal(module(x), expected)


@pytest.mark.parametrize(
    ("step", "words"),
    [
        (KernelStep("k_missing", (at("output"),), 1), "no function 'k_missing'"),
        (KernelStep("k_empty", (at("arena", 0, 65),), 1), "outside of its space"),
        (KernelStep("k_empty", (at("input", 1),), 1), "outside of its space"),
        (KernelStep("k_empty", (at("output", 0, -4),), 1), "outside of its space"),
        (KernelStep("k_empty", (), 1), "0 operands, expected 1 to 16"),
        (KernelStep("k_empty", (at("output"),) * 17, 1), "17 operands, expected 1 to 16"),
        (KernelStep("k_empty", (at("output"),), -1), "-1 tasks"),
    ],
)
def test_an_impossible_step_is_refused(step: KernelStep, words: str) -> None:
    with pytest.raises(ArtifactError, match=words):
        single(step, 1, 1)


def test_code_that_is_no_library_is_refused() -> None:
    with pytest.raises(ArtifactError, match="can't be loaded on this machine"):
        LoadedProgram(Program((), (), 0, 0, ()), b"no ELF file")


@pytest.mark.parametrize("threads", [0, -1, True, 1.5, "2", 100_000])
def test_impossible_numbers_of_threads_are_refused(threads: Any) -> None:
    with pytest.raises(InputError, match=rf"threads is {threads!r}; expected an integer of 1 to 1024"):
        CompiledModule([chain(4)], threads=threads)


@needs_proc
def test_threads_that_cannot_be_started_are_an_error_and_leave_none() -> None:
    resource = pytest.importorskip("resource")
    loaded = chain(4)
    before = threads_alive()
    limits = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (used + (256 << 20), limits[1]))  # stacks for a few dozen at most
    try:
        with pytest.raises(OSError, match="cannot start 1000 threads"):
            CompiledModule([loaded], threads=1000)(sample(4))
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
    assert threads_alive() == before


@pytest.mark.parametrize("how", [pickle.dumps, copy.copy, copy.deepcopy])
def test_a_module_is_neither_pickled_nor_copied(how: Callable[[object], object]) -> None:
    with pytest.raises(TypeError, match=r"save it to a file and convopt.load that"):
        how(CompiledModule([chain(3)], threads=1))


@needs_proc
def test_no_idle_context_is_kept_where_none_may_be() -> None:
    before = threads_alive()
    module = CompiledModule([chain(8)], threads=2, max_idle=0)
    module(sample(8))
    assert threads_alive() == before


def test_an_input_may_be_named_self() -> None:
    program = Program((floats("self", 1),), (floats("y", 1),), 64, 0, ())
    assert CompiledModule([LoadedProgram(program, image())], threads=1)(
        self=np.ones(1, np.float32)
    ).shape == (1,)
