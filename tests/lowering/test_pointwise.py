"""Pointwise groups against the float64 oracle: every operator, chains, broadcasts, staged shapes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper

import convopt
from convopt.lowering.base import Constant, LoweringContext, LoweringOptions, Refused, Temporary
from convopt.lowering.expressions import ELEMENTWISE, expression_of, why_not_elementwise
from convopt.lowering.pointwise import lower
from convopt.targets import host_cpu
from tests.lowering.group_harness import check_group, grouped, model_of, run_group, single, view_of

pytestmark = pytest.mark.kernels


def numbers(*shape: int, seed: int = 0, low: float = -4, high: float = 4) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).uniform(low, high, shape).astype(np.float32)


X, Y, POSITIVE = numbers(2, 5, 4, 3), numbers(2, 5, 4, 3, seed=1), numbers(2, 5, 4, 3, low=0.1)
INF, NAN = float("inf"), float("nan")
ALPHA = {"alpha": 0.3}
UNARY: dict[str, dict[str, Any]] = {
    "Abs": {}, "Ceil": {}, "Celu": ALPHA, "Elu": ALPHA, "Erf": {}, "Exp": {}, "Floor": {}, "Gelu": {},
    "HardSigmoid": {"alpha": 0.3, "beta": 0.4}, "HardSwish": {}, "LeakyRelu": ALPHA, "Mish": {}, "Neg": {},
    "Reciprocal": {}, "Relu": {}, "Round": {}, "Selu": {}, "Sigmoid": {}, "Sign": {}, "Softplus": {},
    "Softsign": {}, "Tanh": {}, "ThresholdedRelu": ALPHA, "Swish": ALPHA,
}  # fmt: skip
BINARY = ["Add", "Sub", "Mul", "Div", "PRelu", "Max", "Min", "Sum", "Mean"]
COMPARE = ["Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"]
LOGIC = ["And", "Or", "Xor"]
EXPONENTS = [2, 3, 4, -2, 1, -1, 0.5, -0.5, 0, 1.7]


@pytest.mark.parametrize("op", UNARY)
def test_unary(op: str, tmp_path: Path) -> None:
    model = single(op, {"x": X}, opset=24 if op == "Swish" else 22, **UNARY[op])
    check_group(model, "Pointwise", lower, {"x": X}, tmp_path)


@pytest.mark.parametrize("op", ["Sqrt", "Log"])
def test_unary_of_positive_numbers(op: str, tmp_path: Path) -> None:
    check_group(single(op, {"x": POSITIVE}), "Pointwise", lower, {"x": POSITIVE}, tmp_path)


def test_gelu_by_tanh(tmp_path: Path) -> None:
    model = single("Gelu", {"x": X}, opset=20, approximate="tanh")
    check_group(model, "Pointwise", lower, {"x": X}, tmp_path)


@pytest.mark.parametrize("op", BINARY)
@pytest.mark.parametrize("shape", [(2, 5, 4, 3), (5, 1, 1), (1,), (4, 1)], ids=str)
@pytest.mark.parametrize("channels_last", [False, True])
def test_binary(op: str, shape: tuple[int, ...], channels_last: bool, tmp_path: Path) -> None:
    inputs = {"x": X, "y": numbers(*shape, seed=1)}
    options = {"channels_last": channels_last, "gap": 1}
    check_group(single(op, inputs), "Pointwise", lower, inputs, tmp_path, **options)


@pytest.mark.parametrize("op", COMPARE)
def test_comparison(op: str, tmp_path: Path) -> None:
    inputs = {"x": np.round(X), "y": np.round(Y)}
    check_group(single(op, inputs), "Pointwise", lower, inputs, tmp_path)


@pytest.mark.parametrize("op", LOGIC)
def test_logic(op: str, tmp_path: Path) -> None:
    inputs = {"x": X > 0, "y": Y > 0}
    check_group(single(op, inputs), "Pointwise", lower, inputs, tmp_path)


def test_choice_and_negation(tmp_path: Path) -> None:
    inputs = {"c": X > 0, "x": X, "y": numbers(5, 1, 1)}
    nodes = [helper.make_node("Not", ["c"], ["n"]), helper.make_node("Where", ["n", "x", "y"], ["z"])]
    check_group(model_of(nodes, inputs, {}, ["z"]), "Pointwise", lower, inputs, tmp_path)


@pytest.mark.parametrize("exponent", EXPONENTS)
def test_constant_exponent(exponent: float, tmp_path: Path) -> None:
    model = single("Pow", {"x": POSITIVE}, {"e": np.array(exponent, np.float32)})
    check_group(model, "Pointwise", lower, {"x": POSITIVE}, tmp_path)


@pytest.mark.parametrize(
    ("exponent", "want"),
    [(0.5, [0, 0, INF, INF, NAN, NAN, 2]), (-0.5, [INF, INF, 0, 0, NAN, NAN, 0.5])],
)
def test_roots_of_zero_and_infinity_are_those_of_c(exponent: float, want: list[float]) -> None:
    x = np.array([0, -0.0, INF, -INF, -2, NAN, 4], np.float32)
    module = convopt.optimize(single("Pow", {"x": x}, {"e": np.array(exponent, np.float32)}), threads=1)
    np.testing.assert_array_equal(module(x), np.array(want, np.float32))


def test_computed_exponent(tmp_path: Path) -> None:
    inputs = {"x": POSITIVE, "e": Y}
    check_group(single("Pow", inputs), "Pointwise", lower, inputs, tmp_path)


@pytest.mark.parametrize("bounds", [("lo", "hi"), ("lo",), ("_", "hi"), ()], ids=str)
def test_clip_with_constant_bounds(bounds: tuple[str, ...], tmp_path: Path) -> None:
    constants = {"lo": np.array(-1, np.float32), "hi": np.array(2, np.float32)}
    constants = {k: v for k, v in constants.items() if k in bounds}
    model = single("Clip", {"x": X}, constants, order=" ".join(("x", *bounds)))
    check_group(model, "Pointwise", lower, {"x": X}, tmp_path)


def test_clip_with_computed_bounds(tmp_path: Path) -> None:
    inputs = {"x": X, "lo": np.array(-1, np.float32), "hi": np.array(2, np.float32)}
    check_group(single("Clip", inputs), "Pointwise", lower, inputs, tmp_path)


@pytest.mark.parametrize(
    ("source", "to"), [("float32", "float16"), ("float16", "float32"), ("bool", "float32")]
)
def test_cast(source: str, to: str, tmp_path: Path) -> None:
    inputs = {"x": X > 0 if source == "bool" else X.astype(source)}
    model = single("Cast", inputs, to=helper.np_dtype_to_tensor_dtype(np.dtype(to)))
    check_group(model, "Pointwise", lower, inputs, tmp_path, tolerance=1e-3)


def test_cast_to_truth(tmp_path: Path) -> None:
    inputs = {"x": np.array([0.0, -0.0, 0.5, np.nan, -3], np.float32)}
    model = single("Cast", inputs, to=helper.np_dtype_to_tensor_dtype(np.dtype(bool)))
    assert run_group(model, "Pointwise", lower, inputs, tmp_path)["y0"].tolist() == [0, 0, 1, 1, 1]


@pytest.mark.parametrize("channels_last", [False, True])
def test_hard_swish_by_its_parts(channels_last: bool, tmp_path: Path) -> None:
    constants = {k: np.array(v, np.float32) for k, v in {"three": 3, "zero": 0, "six": 6}.items()}
    nodes = [
        helper.make_node("Add", ["x", "three"], ["a"]),
        helper.make_node("Clip", ["a", "zero", "six"], ["b"]),
        helper.make_node("Mul", ["x", "b"], ["c"]),
        helper.make_node("Div", ["c", "six"], ["d"]),
    ]
    model = model_of(nodes, {"x": X}, constants, ["d"])
    check_group(model, "Pointwise", lower, {"x": X}, tmp_path, channels_last=channels_last)


def test_a_small_part_is_computed_once(tmp_path: Path) -> None:
    inputs = {"x": X, "g": numbers(2, 5, 1, 1)}
    nodes = [
        helper.make_node("Sigmoid", ["g"], ["gate"]),
        helper.make_node("Mul", ["x", "gate"], ["y"]),
        helper.make_node("Relu", ["y"], ["z"]),
    ]
    model = model_of(nodes, inputs, {}, ["z", "y"])
    check_group(model, "Pointwise", lower, inputs, tmp_path, channels_last=True)
    group = grouped(model, "Pointwise")
    views = {v: view_of(v, False, 0) for v in (*group.inputs, *group.outputs) if v is not None}
    first, second = lower(group, LoweringContext(views, LoweringOptions(host_cpu(), 1)))
    (gate,) = (o for o in first.operands if isinstance(o, Temporary))
    assert gate.nbytes == 2 * 5 * 4 and gate in second.operands
    assert not any(isinstance(o, Constant) for o in second.operands)


def test_float16_is_computed_in_float32(tmp_path: Path) -> None:
    inputs = {"x": X.astype(np.float16), "y": Y.astype(np.float16)}
    nodes = [helper.make_node("Add", ["x", "y"], ["s"]), helper.make_node("Tanh", ["s"], ["t"])]
    check_group(model_of(nodes, inputs, {}, ["t"]), "Pointwise", lower, inputs, tmp_path, tolerance=5e-4)


def test_every_operator_is_covered() -> None:
    others = {"Sqrt", "Log", "Pow", "Clip", "Cast", "Not", "Where"}
    assert {*UNARY, *BINARY, *COMPARE, *LOGIC, *others} == set(ELEMENTWISE)


def test_refusals_are_in_words() -> None:
    def reason(model: Any) -> str | None:
        return why_not_elementwise(next(iter(ir.from_proto(model).graph)))

    assert reason(single("Add", {"x": np.zeros(3, np.int64), "y": np.zeros(3, np.int64)})) == "Add of INT64"
    assert "not an elementwise operator" in str(reason(single("Cosh", {"x": X})))
    assert reason(single("Relu", {"x": X})) is None
    model = model_of([helper.make_node("Add", ["x", "w"], ["y"])], {"x": X}, {"w": Y}, ["y"])
    graph = ir.from_proto(model).graph
    with pytest.raises(Refused, match="neither an operand nor a number"):
        expression_of(list(graph), list(graph.inputs), list(graph.outputs))


def test_a_value_beside_itself() -> None:
    """NaN does not equal itself, and infinity less itself is NaN: neither may be simplified away."""
    text = """<ir_version: 9, opset_import: ["" : 20]>
    g (float[7] x) => (bool[7] same, float[7] less) { same = Equal (x, x)  less = Sub (x, x) }"""
    module = convopt.optimize(onnx.parser.parse_model(text), verify=False)
    assert {place.where for place in module.placement} == {"compiled"}
    x = np.array([1, np.nan, np.inf, -np.inf, 0, -3e38, 1e-40], np.float32)
    same, less = module(x)
    np.testing.assert_array_equal(same, [True, False, True, True, True, True, True])
    np.testing.assert_array_equal(less, [0, np.nan, np.nan, np.nan, 0, 0, 0])
