"""The public interface: what it takes, what it gives, and who owns the memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir
import pytest

import convopt
from convopt.errors import InputError
from tests.conformance import support
from tests.conformance.problems import values
from tests.conformance.small import assert_right, image, one_output, small
from tests.oracle.evaluate import evaluate

pytestmark = pytest.mark.kernels


@pytest.mark.parametrize(
    "form",
    [
        lambda model, path: path,
        lambda model, path: str(path),
        lambda model, path: path.read_bytes(),
        lambda model, path: model,
        lambda model, path: onnx_ir.from_proto(model),
    ],
    ids=["path", "text", "bytes", "proto", "ir"],
)
def test_every_form_of_a_model(form: Callable[[onnx.ModelProto, Path], Any], tmp_path: Path) -> None:
    path = tmp_path / "small.onnx"
    onnx.save(small(), path)
    before = small().SerializeToString(deterministic=True)
    given = form(small(), path)
    optimized = convopt.optimize(given, shapes={"x": (1, 3, 6, 7)}, threads=1)
    assert_right(optimized(image()), image())
    if isinstance(given, onnx.ModelProto):
        assert given.SerializeToString(deterministic=True) == before, "the caller's model was changed"


def test_several_outputs_are_a_tuple_and_a_dict_by_name(module: Any) -> None:
    results = module(image())
    assert isinstance(results, tuple)
    assert_right(results, image())
    named = module.run({"x": image()})
    assert list(named) == ["y", "z"]
    for by_place, by_name in zip(results, named.values(), strict=True):
        np.testing.assert_array_equal(by_place, by_name)


def test_one_output_is_an_array() -> None:
    y = convopt.optimize(one_output("y = Relu(x)"), threads=1)(values((2, 3), "x"))
    np.testing.assert_array_equal(y, np.maximum(values((2, 3), "x"), 0))


def test_the_boundary_is_described(module: Any) -> None:
    assert [info.name for info in module.inputs] == ["x"]
    assert [info.name for info in module.outputs] == ["y", "z"]
    assert module.inputs[0].shape[1] == 3


def test_outputs_survive_the_next_call_and_belong_to_the_caller(module: Any) -> None:
    first = module(image())
    kept = [value.copy() for value in first]
    second = module(2 * image())
    for value, copy, other in zip(first, kept, second, strict=True):
        np.testing.assert_array_equal(value, copy)
        assert not np.shares_memory(value, other)
        assert value.flags.writeable
        value[...] = 0
    assert_right(module(image()), image())


def test_inputs_are_not_written_to() -> None:
    """Even where every operator could work in place."""
    x = values((2, 3), "x")
    before = x.copy()
    y = convopt.optimize(one_output("a = Identity(x) y = Relu(a)"), threads=1)(x)
    np.testing.assert_array_equal(x, before)
    assert not np.shares_memory(x, y)


@pytest.mark.parametrize(
    ("body", "signature"),
    [
        ("y = Identity(x)", "(float[2, 3] x) => (float[2, 3] y)"),
        ("y = Flatten<axis=0>(x)", "(float[2, 3] x) => (float[1, 6] y)"),
        ("y = Transpose<perm=[1, 0]>(x)", "(float[2, 3] x) => (float[3, 2] y)"),
        ("y = Relu(x) z = Identity(y)", "(float[2, 3] x) => (float[2, 3] y, float[2, 3] z)"),
        ("y = Relu(x) z = Relu(x)", "(float[2, 3] x) => (float[2, 3] y, float[2, 3] z)"),
        ("y = Constant<value = float[2] {1, 2}>()", "(float[2, 3] x) => (float[2] y)"),
        ("y = Slice(x, s, e)", "(float[2, 3] x) => (float[1, 3] y) <int64[1] s = {1}, int64[1] e = {2}>"),
        ("y = Relu(x)", "(float[2, 3] x) => (float[2, 3] x, float[2, 3] y)"),
    ],
    ids=["identity", "view", "transpose", "alias", "twice", "constant", "slice", "input"],
)
def test_outputs_that_need_no_kernel(body: str, signature: str, tmp_path: Path) -> None:
    model = one_output(body, signature)
    x = values((2, 3), "x")
    optimized = convopt.optimize(model, threads=1, verify="raise")
    expected = evaluate(model, {"x": x})
    optimized.save(tmp_path / "m.convopt")
    assert list(convopt.load(tmp_path / "m.convopt").run({"x": x})) == list(expected)
    results = optimized.run({"x": x})
    for name, value in expected.items():
        support.assert_within_scale(results[name], value, 1e-6, name)
        assert not np.shares_memory(results[name], x)
    arrays = list(results.values())
    assert not any(np.shares_memory(a, b) for i, a in enumerate(arrays) for b in arrays[:i])


@pytest.mark.parametrize(
    "arrange",
    [
        lambda x: np.asfortranarray(x),
        lambda x: x[::-1].copy()[::-1],
        lambda x: np.repeat(x, 2, axis=3)[..., ::2],
        lambda x: np.broadcast_to(x[:1], x.shape),
        lambda x: _unaligned(x),
        lambda x: _read_only(x),
    ],
    ids=["fortran", "reversed", "strided", "broadcast", "unaligned", "read-only"],
)
def test_any_memory_of_a_caller(module: Any, arrange: Callable[[np.ndarray], np.ndarray]) -> None:
    x = arrange(image(2))
    assert_right(module(x), x)


def _unaligned(x: np.ndarray) -> np.ndarray:
    """The same values one byte off any alignment."""
    buffer = np.empty(x.nbytes + 1, np.uint8)
    array = buffer[1:].view(np.float32).reshape(x.shape)
    array[...] = x
    return array


def _read_only(x: np.ndarray) -> np.ndarray:
    x.flags.writeable = False
    return x


def test_dlpack_is_accepted(module: Any) -> None:
    class Tensor:
        """Another framework's tensor: nothing but the protocol."""

        def __init__(self, array: np.ndarray) -> None:
            self.array = array

        def __dlpack__(self, **options: Any) -> Any:
            return self.array.__dlpack__(**options)

        def __dlpack_device__(self) -> Any:
            return self.array.__dlpack_device__()

    assert_right(module(Tensor(image())), image())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shapes": {"x": "abc"}}, "expected integers by input name"),
        ({"shapes": [1, 3, 6, 7]}, "expected integers by input name"),
        ({"verify": "maybe"}, "verify is 'maybe'; expected True, False, 'raise' or arrays"),
    ],
)
def test_wrong_options_say_what_was_expected(options: dict[str, Any], message: str) -> None:
    model = one_output("y = Relu(x)")
    with pytest.raises(InputError, match=message):
        convopt.optimize(model, threads=1, **options)
