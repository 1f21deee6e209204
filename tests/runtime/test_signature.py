"""What may be passed to a module, and the words for what may not."""

from __future__ import annotations

import numpy as np
import pytest

from convopt.errors import InputError
from convopt.runtime.loaded import LoadedProgram
from convopt.runtime.module import CompiledModule
from convopt.runtime.program import KernelStep, Program
from convopt.runtime.signature import TensorInfo, as_array, check_shapes
from tests.runtime.snippets import at, floats, image


@pytest.fixture(scope="module")
def module() -> CompiledModule:
    """y = a + b, z = 2 a, all (3, 8)."""
    steps = (
        KernelStep("k_add", (at("output", 0), at("input", 0), at("input", 1)), 3),
        KernelStep("k_scale", (at("output", 1), at("input", 0)), 3),
    )
    shape = (3, 8)
    program = Program(
        (floats("a", *shape), floats("b", *shape)), (floats("y", *shape), floats("z", *shape)), 0, 0, steps
    )
    return CompiledModule([LoadedProgram(program, image())], threads=2)


A = np.arange(24, dtype=np.float32).reshape(3, 8)
B = np.full((3, 8), 0.5, np.float32)


def check(module: CompiledModule, a: object, b: object) -> None:
    y, z = module(a, b)
    np.testing.assert_array_equal(y, A + B)
    np.testing.assert_array_equal(z, 2 * A)


def test_by_position_by_name_and_by_dict(module: CompiledModule) -> None:
    check(module, A, B)
    assert [out.tolist() for out in module(A, b=B)] == [out.tolist() for out in module(b=B, a=A)]
    result = module.run({"b": B, "a": A})
    assert list(result) == ["y", "z"]
    np.testing.assert_array_equal(result["y"], A + B)


def test_boundary(module: CompiledModule) -> None:
    assert module.inputs[0] == TensorInfo("a", "float32", (3, 8))
    assert [info.name for info in module.outputs] == ["y", "z"]


class OnlyDlpack:
    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __dlpack__(self, **options: object) -> object:
        return self.array.__dlpack__(**options)  # type: ignore[arg-type]

    def __dlpack_device__(self) -> object:
        return self.array.__dlpack_device__()


def test_dlpack(module: CompiledModule) -> None:
    check(module, OnlyDlpack(A), B)


def test_views_that_kernels_could_not_read(module: CompiledModule) -> None:
    transposed = np.asfortranarray(A)
    strided = np.zeros((3, 16), np.float32)[:, ::2]
    strided[...] = B
    check(module, transposed, strided)
    raw = np.zeros(A.nbytes + 1, np.uint8)
    misaligned = raw[1:].view(np.float32).reshape(3, 8)
    misaligned[...] = A
    assert not misaligned.flags.aligned
    assert as_array(module.inputs[0], misaligned).flags.aligned
    assert as_array(module.inputs[0], A) is A  # what kernels can read is not copied
    check(module, misaligned, B)


def test_inputs_may_be_read_only_and_stay_as_they_are(module: CompiledModule) -> None:
    a = A.copy()
    a.flags.writeable = False
    check(module, a, B)
    np.testing.assert_array_equal(a, np.arange(24, dtype=np.float32).reshape(3, 8))


@pytest.mark.parametrize(
    ("positional", "named", "words"),
    [
        ((A,), {}, "missing input 'b'"),
        ((), {}, "missing input 'a', 'b'"),
        ((A, B, B), {}, "3 inputs given, the model has 2: a, b"),
        ((A,), {"a": B}, "'a' is given twice"),
        ((A,), {"c": B}, "no input 'c'; its inputs are a, b"),
        ((A, B.astype(np.float64)), {}, "input 'b': expected dtype float32, got float64"),
        ((A, B.astype(">f4")), {}, "input 'b': expected dtype float32, got >f4"),
        ((A, B.ravel()), {}, r"input 'b': expected rank 2 \(3, 8\), got shape \(24,\)"),
        ((A, B[:2]), {}, r"input 'b': expected shape \(3, 8\), got \(2, 8\): dim 0 is 2"),
        ((A, B.tolist()), {}, "input 'b': expected a numpy array or an object with __dlpack__, got list"),
        (({"a": A, "b": B}, B), {}, r"input 'a': got a dict; run\(\) takes arrays by name"),
        ((A, np.float32(1)), {}, r"input 'b': expected rank 2 \(3, 8\), got shape \(\)"),
        ((A, OnlyDlpack(B.astype(">f4"))), {}, "input 'b': its memory can't be read by DLPack"),
    ],
)
def test_wrong_calls(module: CompiledModule, positional: tuple, named: dict, words: str) -> None:
    with pytest.raises(InputError, match=words):
        module(*positional, **named)


def test_dims_of_one_name_must_agree() -> None:
    infos = [TensorInfo("a", "float32", ("n", None, 4)), TensorInfo("b", "float32", ("n",))]
    check_shapes(infos, [(2, 9, 4), (2,)])
    with pytest.raises(
        InputError, match=r"input 'b': expected shape \(n,\), got \(3,\): dim 'n' is 2 in 'a' and 3"
    ):
        check_shapes(infos, [(2, 9, 4), (3,)])
    with pytest.raises(
        InputError, match=r"input 'a': expected shape \(n, \?, 4\), got \(2, 9, 5\): dim 2 is 5"
    ):
        check_shapes(infos, [(2, 9, 5), (2,)])
