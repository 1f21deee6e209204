"""Convolutions and pools over all their attributes, and convolutions in graphs, against float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper

from convopt.errors import ConvoptError
from tests.conformance import support
from tests.conformance.problems import (
    Problem,
    convolutions,
    model_of,
    pools,
    transposed_convolutions,
    values,
)
from tests.oracle.evaluate import evaluate

pytestmark = pytest.mark.kernels


def check(problem: Problem) -> None:
    model, inputs = problem.model(), problem.inputs()
    expected = evaluate(model, inputs)["y"]
    assume(np.isfinite(expected).all())  # all taps of a dilated pool can fall into the pads
    module = support.compiled(model, inputs)
    support.assert_within_scale(support.run(module, inputs)["y"], expected, 1e-5, repr(problem))
    if expected.size:  # of nothing, nothing has to be compiled
        assert support.fallbacks(module) == [], problem


@settings(max_examples=80)
@given(convolutions())
def test_conv(problem: Problem) -> None:
    check(problem)


# Groups, and a phase of the outputs that no tap reaches.
PHASE_WITHOUT_TAPS = Problem(
    "ConvTranspose",
    (1, 2, 1),
    (2, 2, 1),
    None,
    (
        ("kernel_shape", [1]),
        ("strides", [2]),
        ("dilations", [1]),
        ("pads", [0, 0]),
        ("group", 2),
        ("output_padding", [1]),
        ("output_shape", [2]),
    ),
)


@settings(max_examples=50)
@given(transposed_convolutions())
@example(PHASE_WITHOUT_TAPS)
def test_conv_transpose(problem: Problem) -> None:
    check(problem)


@settings(max_examples=50)
@given(pools())
def test_pool(problem: Problem) -> None:
    check(problem)


@pytest.mark.slow
@settings(max_examples=600)
@given(st.one_of(convolutions(), transposed_convolutions(), pools()))
def test_many(problem: Problem) -> None:
    check(problem)


# Each entry appends to a value the nodes of one epilogue, given a fresh prefix for its names.
Epilogue = Callable[[str, str, tuple[int, ...]], tuple[list[Any], list[Any], str]]


def unary(op: str, **attributes: Any) -> Epilogue:
    return lambda x, p, shape: ([helper.make_node(op, [x], [f"{p}y"], **attributes)], [], f"{p}y")


def clip(x: str, p: str, shape: tuple[int, ...]) -> tuple[list[Any], list[Any], str]:
    bounds = [numpy_helper.from_array(np.float32(v), f"{p}{n}") for n, v in (("low", -0.5), ("high", 1.5))]
    return [helper.make_node("Clip", [x, f"{p}low", f"{p}high"], [f"{p}y"])], bounds, f"{p}y"


def silu(x: str, p: str, shape: tuple[int, ...]) -> tuple[list[Any], list[Any], str]:
    nodes = [helper.make_node("Sigmoid", [x], [f"{p}s"]), helper.make_node("Mul", [x, f"{p}s"], [f"{p}y"])]
    return nodes, [], f"{p}y"


def hard_swish(x: str, p: str, shape: tuple[int, ...]) -> tuple[list[Any], list[Any], str]:
    """x * clip(x + 3, 0, 6) / 6, as exporters write it."""
    constants = [
        numpy_helper.from_array(np.float32(v), f"{p}{n}")
        for n, v in (("three", 3.0), ("zero", 0.0), ("six", 6.0))
    ]
    nodes = [
        helper.make_node("Add", [x, f"{p}three"], [f"{p}a"]),
        helper.make_node("Clip", [f"{p}a", f"{p}zero", f"{p}six"], [f"{p}c"]),
        helper.make_node("Mul", [x, f"{p}c"], [f"{p}m"]),
        helper.make_node("Div", [f"{p}m", f"{p}six"], [f"{p}y"]),
    ]
    return nodes, constants, f"{p}y"


def gelu(x: str, p: str, shape: tuple[int, ...]) -> tuple[list[Any], list[Any], str]:
    """0.5 * x * (1 + erf(x / sqrt(2))), as exporters write it."""
    constants = [
        numpy_helper.from_array(np.float32(v), f"{p}{n}")
        for n, v in (("root", 2**0.5), ("one", 1.0), ("half", 0.5))
    ]
    nodes = [
        helper.make_node("Div", [x, f"{p}root"], [f"{p}d"]),
        helper.make_node("Erf", [f"{p}d"], [f"{p}e"]),
        helper.make_node("Add", [f"{p}e", f"{p}one"], [f"{p}a"]),
        helper.make_node("Mul", [x, f"{p}a"], [f"{p}m"]),
        helper.make_node("Mul", [f"{p}m", f"{p}half"], [f"{p}y"]),
    ]
    return nodes, constants, f"{p}y"


def prelu(x: str, p: str, shape: tuple[int, ...]) -> tuple[list[Any], list[Any], str]:
    slope = values((shape[1], *[1] * (len(shape) - 2)), f"{p}slope")
    return (
        [helper.make_node("PRelu", [x, f"{p}k"], [f"{p}y"])],
        [numpy_helper.from_array(slope, f"{p}k")],
        f"{p}y",
    )


def batch_normalization(x: str, p: str, shape: tuple[int, ...]) -> tuple[list[Any], list[Any], str]:
    c = (shape[1],)
    statistics = {"scale": values(c, "scale"), "shift": values(c, "shift"), "mean": values(c, "mean")}
    statistics["var"] = np.abs(values(c, "var")) + 0.5
    names = [f"{p}{name}" for name in statistics]
    tensors = [
        numpy_helper.from_array(v.astype(np.float32), n)
        for n, v in zip(names, statistics.values(), strict=True)
    ]
    return [helper.make_node("BatchNormalization", [x, *names], [f"{p}y"])], tensors, f"{p}y"


def residual(x: str, p: str, shape: tuple[int, ...]) -> tuple[list[Any], list[Any], str]:
    tensor = numpy_helper.from_array(values(shape, f"{p}residual"), f"{p}r")
    return [helper.make_node("Add", [f"{p}r", x], [f"{p}y"])], [tensor], f"{p}y"


EPILOGUES: dict[str, Epilogue] = {
    "relu": unary("Relu"),
    "leaky_relu": unary("LeakyRelu", alpha=0.1),
    "sigmoid": unary("Sigmoid"),
    "tanh": unary("Tanh"),
    "hard_sigmoid": unary("HardSigmoid", alpha=0.25),
    "hard_swish_node": unary("HardSwish"),
    "clip": clip,
    "silu": silu,
    "hard_swish": hard_swish,
    "gelu": gelu,
    "prelu": prelu,
    "batch_normalization": batch_normalization,
    "residual": residual,
}


@settings(max_examples=40)
@given(
    st.one_of(convolutions(), transposed_convolutions()),
    st.lists(st.sampled_from(sorted(EPILOGUES)), min_size=1, max_size=4),
    st.booleans(),
)
def test_epilogue(problem: Problem, names: list[str], keep: bool) -> None:
    """A convolution, then one to four elementwise forms; with `keep` its own result is an output as well."""
    bare, inputs = problem.model(), problem.inputs()
    shape = evaluate(bare, inputs)["y"].shape
    nodes, tensors, value = list(bare.graph.node), list(bare.graph.initializer), "y"
    for i, name in enumerate(names):
        added, constants, value = EPILOGUES[name](value, f"e{i}_", shape)
        nodes += added
        tensors += constants
    outputs = [value, "y"] if keep else [value]
    model = model_of(nodes, {"x": problem.x}, outputs, tensors)
    module = support.compiled(model, inputs)
    actual, expected = support.run(module, inputs), evaluate(model, inputs)
    for name in outputs:
        support.assert_within_scale(actual[name], expected[name], 2e-5, f"{name}: {names} after {problem}")
    if inputs["x"].size:
        assert support.fallbacks(module) == []


@settings(max_examples=20)
@given(
    convolutions(),
    st.lists(st.integers(-1, 2), min_size=6, max_size=6),
    st.sampled_from(("constant", "edge")),
    st.booleans(),
)
def test_pad_before_conv(problem: Problem, amounts: list[int], mode: str, zero: bool) -> None:
    """A Pad of any kind before a convolution: merged or not, the result is that of the two operators."""
    rank = len(problem.x) - 2
    begins, ends = amounts[:rank], amounts[3 : 3 + rank]
    # What a negative Pad takes away, the input has more of.
    sizes = tuple(n - min(b, 0) - min(e, 0) for n, b, e in zip(problem.x[2:], begins, ends, strict=True))
    tensors = [
        numpy_helper.from_array(np.array([0, 0, *begins, 0, 0, *ends], np.int64), "amounts"),
        numpy_helper.from_array(np.float32(0.0 if zero else 1.5), "fill"),
    ]
    pad = helper.make_node("Pad", ["x", "amounts", "fill"], ["padded"], name="pad", mode=mode)
    bare = problem.model()
    node = bare.graph.node[0]
    node.input[0] = "padded"
    shape = (*problem.x[:2], *sizes)
    model = model_of([pad, node], {"x": shape}, ["y"], [*bare.graph.initializer, *tensors])
    inputs = {"x": values(shape, "x")}
    expected = evaluate(model, inputs)["y"]
    support.assert_within_scale(support.outputs_by_name(model, inputs)["y"], expected, 1e-5, repr(problem))


@pytest.mark.parametrize(
    "problem",
    [
        Problem("Conv", (1, 3, 4, 8), (2, 3, 5, 3), None, (("kernel_shape", [5, 3]),)),
        Problem("Conv", (1, 3, 8, 8), (2, 3, 3, 3), None, (("dilations", [4, 1]), ("pads", [0, 1, 0, 1]))),
        Problem("ConvTranspose", (1, 2, 1, 4), (2, 3, 2, 2), None, (("pads", [1, 0, 1, 0]),)),
        Problem("MaxPool", (1, 2, 2, 8), None, None, (("kernel_shape", [3, 3]),)),
        Problem("AveragePool", (1, 2, 2), None, None, (("kernel_shape", [4]), ("pads", [0, 1]))),
    ],
    ids=lambda problem: problem.op,
)
def test_an_empty_output_is_an_error_that_names_the_node(problem: Problem) -> None:
    with pytest.raises(ConvoptError, match="node"):
        support.compiled(problem.model(), problem.inputs())
