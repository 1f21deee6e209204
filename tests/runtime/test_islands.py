"""Fallback islands between kernels."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import onnx
import pytest

from convopt.errors import ArtifactError, ExecutionError
from convopt.runtime.loaded import LoadedProgram
from convopt.runtime.module import CompiledModule
from convopt.runtime.program import IslandStep, KernelStep, Program, TensorSpec
from tests.runtime.snippets import at, floats, image

ADD = """<ir_version: 8, opset_import: ["" : 17]>
add (float[3, 8] p, float[3, 8] q) => (float[3, 8] r) { r = Add (p, q) }"""
NONZERO = """<ir_version: 8, opset_import: ["" : 17]>
find (float[3, 8] p) => (int64[2, n] places) { places = NonZero (p) }"""
EXTENTS = """<ir_version: 8, opset_import: ["" : 17]>
count (int64[2, n] places) => (int64[2] extents) { extents = Shape (places) }"""
X = np.arange(24, dtype=np.float32).reshape(3, 8) - 5


def model(text: str) -> bytes:
    return onnx.parser.parse_model(text).SerializeToString()


def add_island() -> LoadedProgram:
    """y = 2 * (2 x + w), the sum by onnxruntime: from arena and weights to the arena."""
    shape, size = (3, 8), 96
    island = IslandStep(
        0,
        ((floats("p", *shape), at("arena")), (floats("q", *shape), at("weights", 0, 64))),
        ((floats("r", *shape), at("arena", 0, 128)),),
        nodes=("sum",),
        label="Add",
    )
    steps = (
        KernelStep("k_scale", (at("arena"), at("input")), 3),
        island,
        KernelStep("k_scale", (at("output"), at("arena", 0, 128)), 3),
    )
    weights = np.concatenate([np.zeros(16), np.arange(24)]).astype(np.float32)
    program = Program((floats("x", *shape),), (floats("y", *shape),), 128 + size, 0, steps)
    return LoadedProgram(program, image(), weights, (model(ADD),))


EXPECTED = 2 * (2 * X + np.arange(24, dtype=np.float32).reshape(3, 8))


@pytest.mark.parametrize("threads", [1, 2])
def test_an_island_between_kernels(threads: int) -> None:
    module = CompiledModule([add_island()], threads=threads)
    for _ in range(3):
        np.testing.assert_array_equal(module(X), EXPECTED)


def test_one_session_for_all_contexts() -> None:
    loaded = add_island()
    module = CompiledModule([loaded], threads=1)
    with ThreadPoolExecutor(4) as pool:
        for y in pool.map(module, [X] * 40):
            np.testing.assert_array_equal(y, EXPECTED)
    assert len(loaded.islands._sessions) == 1


def test_a_result_whose_size_depends_on_the_data() -> None:
    """NonZero's output has no place in the arena; a later island reads it as it came."""
    places = TensorSpec("places", "int64", (2, -1))
    steps = (
        IslandStep(0, ((floats("p", 3, 8), at("input")),), ((places, at("output", 0)),), label="NonZero"),
        IslandStep(
            1,
            ((places, at("output", 0)),),
            ((TensorSpec("extents", "int64", (2,)), at("output", 1)),),
            label="Shape",
        ),
    )
    program = Program((floats("x", 3, 8),), (places, TensorSpec("extents", "int64", (2,))), 0, 0, steps)
    module = CompiledModule(
        [LoadedProgram(program, image(), b"", (model(NONZERO), model(EXTENTS)))], threads=1
    )
    assert module.outputs[0].shape == (2, None)
    for x in (X, np.zeros_like(X), X - 1):
        found, extents = module(x)
        np.testing.assert_array_equal(found, np.nonzero(x))
        assert extents.tolist() == [2, np.count_nonzero(x)]


def test_a_scalar_and_an_empty_tensor() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]>
    f (float s, float[0, 2] e) => (float t, float[0, 2] g) { t = Neg (s)  g = Neg (e) }"""
    inputs = (TensorSpec("s", "float32", ()), TensorSpec("e", "float32", (0, 2)))
    outputs = (TensorSpec("t", "float32", ()), TensorSpec("g", "float32", (0, 2)))
    island = IslandStep(
        0,
        tuple((spec, at("input", i)) for i, spec in enumerate(inputs)),
        tuple((spec, at("output", i)) for i, spec in enumerate(outputs)),
    )
    module = CompiledModule(
        [LoadedProgram(Program(inputs, outputs, 0, 0, (island,)), image(), b"", (model(text),))], threads=1
    )
    t, g = module(np.float32(3), np.zeros((0, 2), np.float32))
    assert t.shape == () and t == -3
    assert g.shape == (0, 2)


@pytest.mark.parametrize("declared", [TensorSpec("r", "float32", (3, 4)), TensorSpec("r", "int32", (3, 8))])
def test_a_result_that_is_not_what_the_model_declares(declared: TensorSpec) -> None:
    feeds = tuple((floats(name, 3, 8), at("input")) for name in "pq")
    island = IslandStep(0, feeds, ((declared, at("output")),), nodes=("sum",), label="Add")
    program = Program((floats("x", 3, 8),), (declared,), 0, 0, (island,))
    module = CompiledModule([LoadedProgram(program, image(), b"", (model(ADD),))], threads=1)
    with pytest.raises(
        ExecutionError, match=r"Add \(sum\): 'r' came as float32 \(3, 8\); expected .*value_info"
    ):
        module(X)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_makes_its_own_session() -> None:
    loaded = add_island()
    module = CompiledModule([loaded], threads=2)
    module(X)
    session = loaded.islands.get(0, 2)
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        right = np.array_equal(module(X), EXPECTED)
        os._exit(0 if right and loaded.islands.get(0, 2) is not session else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize(
    ("island", "words"),
    [
        (IslandStep(1, (), ()), "no model 1"),
        (IslandStep(0, ((floats("p", 3, 8), at("arena", 0, 4)),), ()), "'p' reaches beyond"),
        (IslandStep(0, (), ((TensorSpec("r", "int64", (-1,)), at("arena")),)), "'r' has no fixed size"),
    ],
)
def test_an_impossible_island_is_refused(island: IslandStep, words: str) -> None:
    with pytest.raises(ArtifactError, match=words):
        LoadedProgram(Program((), (), 96, 0, (island,)), image(), b"", (model(ADD),))
