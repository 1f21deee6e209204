"""Dynamic shapes: a Program per set of input shapes, compiled once, kept in a bounded cache."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from convopt.errors import CompileError, InputError
from convopt.runtime.execution import ContextPool
from convopt.runtime.loaded import LoadedProgram
from convopt.runtime.module import CompiledModule
from convopt.runtime.signature import TensorInfo
from tests.runtime.snippets import chain, chain_expected


class Compiler:
    def __init__(self, seconds: float = 0.0) -> None:
        self.asked: list[dict[str, tuple[int, ...]]] = []
        self.seconds = seconds
        self.failures = 0

    def __call__(self, shapes: dict[str, tuple[int, ...]]) -> LoadedProgram:
        self.asked.append(shapes)
        time.sleep(self.seconds)
        if self.failures:
            self.failures -= 1
            raise CompileError("the compiler is out of order")
        return chain(shapes["x"][0])


def dynamic(compiler: Compiler | None, **options: object) -> CompiledModule:
    return CompiledModule(
        [],
        threads=2,
        inputs=[TensorInfo("x", "float32", ("rows", 8))],
        outputs=[TensorInfo("y", "float32", ("rows", 8))],
        compile_shapes=compiler,
        **options,  # type: ignore[arg-type]
    )


def call(module: CompiledModule, rows: int) -> None:
    x = np.random.default_rng(rows).random((rows, 8), np.float32)
    np.testing.assert_allclose(module(x), chain_expected(x), rtol=1e-6)


def test_each_shape_is_compiled_once() -> None:
    compiler = Compiler()
    module = dynamic(compiler)
    assert module.inputs[0].shape == ("rows", 8)
    assert module.placement == ()
    for rows in (3, 5, 3, 5, 1):
        call(module, rows)
    assert compiler.asked == [{"x": (3, 8)}, {"x": (5, 8)}, {"x": (1, 8)}]


def test_threads_that_need_the_same_shape_wait_for_one_compilation() -> None:
    compiler = Compiler(seconds=0.1)
    module = dynamic(compiler)
    start = threading.Barrier(6)

    def work(_: int) -> None:
        start.wait()
        call(module, 4)

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(work, range(6)))
    assert len(compiler.asked) == 1


def test_all_who_wait_get_the_failure_and_the_next_call_tries_again() -> None:
    compiler = Compiler(seconds=0.1)
    compiler.failures = 1
    module = dynamic(compiler)
    start = threading.Barrier(4)

    def work(_: int) -> str:
        start.wait()
        try:
            call(module, 4)
        except CompileError as error:
            return str(error)
        return "ran"

    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(work, range(4))) == {"the compiler is out of order"}
    call(module, 4)
    assert len(compiler.asked) == 2


def test_the_least_recently_used_goes_and_its_memory_with_it() -> None:
    compiler = Compiler()
    module = dynamic(compiler, max_programs=2, max_idle=9)
    call(module, 1)
    first = weakref.ref(module.programs[0])
    call(module, 2)
    call(module, 1)
    call(module, 3)  # 2 goes
    assert [loaded.program.inputs[0].shape[0] for loaded in module.programs] == [1, 3]
    assert first() is not None
    call(module, 4)  # 1 goes
    gc.collect()
    assert first() is None
    assert len(compiler.asked) == 4


def test_a_context_in_use_when_its_program_goes_is_not_kept() -> None:
    contexts, loaded = ContextPool(threads=2), chain(1)
    context = contexts._take(loaded)
    contexts.forget(loaded)
    contexts._give(context)
    assert contexts._idle == []


def test_a_wrong_shape_is_refused_before_it_is_compiled() -> None:
    compiler = Compiler()
    with pytest.raises(InputError, match=r"expected shape \(rows, 8\), got \(2, 7\)"):
        dynamic(compiler)(np.zeros((2, 7), np.float32))
    assert compiler.asked == []


def test_without_a_compiler_the_error_names_the_shapes_there_are() -> None:
    module = CompiledModule([chain(2), chain(3)], threads=1, inputs=[TensorInfo("x", "float32", (None, 8))])
    call(module, 2)
    call(module, 3)
    with pytest.raises(
        InputError, match=r"x: \(4, 8\); this module was compiled for x: \(2, 8\); x: \(3, 8\)"
    ):
        module(np.zeros((4, 8), np.float32))
