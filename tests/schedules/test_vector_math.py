"""Every elementwise operation against float64, over its whole range and the special values."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from convopt.schedules.base import row_major
from convopt.schedules.primitives.expression import OPS, Expression, ExpressionBuilder, Op, unary
from tests.kernel_harness import run_kernel

pytestmark = pytest.mark.kernels

INF, NAN = math.inf, math.nan
SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, INF, -INF, NAN, 3e38, -3e38, 1e-38, 1e-45, -1e-45]
LANES = 8


@dataclass(frozen=True)
class Probe:
    """Applies an expression to contiguous arrays whose length is a multiple of the lanes."""

    name: ClassVar[str] = "probe"
    lanes: int = LANES

    def why_not(self, problem: Any, target: Any) -> str | None:
        return None

    def tasks(self, problem: Any, target: Any) -> int:
        return problem[1] // self.lanes

    def scratch_bytes(self, problem: Any, target: Any) -> int:
        return 0

    def apply(self, problem: Any, target: Any, symbol: str) -> Any:
        from convopt.schedules.primitives.emit import T, kernel, lanes_at
        from convopt.schedules.primitives.vector_math import emit

        expression, size = problem
        views = [row_major((size,))] * (expression.inputs + len(expression.results))
        with kernel(symbol, views) as body:
            ins, outs = body.buffers[: expression.inputs], body.buffers[expression.inputs :]
            with body.task() as task:
                at = lanes_at(task * self.lanes, self.lanes)
                for buffer, value in zip(
                    outs, emit(expression, [b[at] for b in ins], self.lanes), strict=True
                ):
                    T.buffer_store(buffer, value, [at])
        return body.function


def evaluate(
    expression: Expression, arrays: list[np.ndarray], folder: Path, lanes: int = LANES
) -> np.ndarray:
    size = arrays[0].size
    padded = -(-size // LANES) * LANES
    inputs = [(row_major((padded,)), np.resize(a.astype(np.float32), padded)) for a in arrays]
    (result,) = run_kernel(Probe(lanes), (expression, padded), inputs, [row_major((padded,))], folder)
    return result[:size]


def ulps(got: np.ndarray, want: np.ndarray) -> float:
    """Largest distance in units of the last place of float32 from `want`; same infinities are 0."""
    with np.errstate(all="ignore"):
        rounded = want.astype(np.float32)
        same = (got == rounded) | (np.isnan(got) & np.isnan(rounded))
        unit = np.spacing(np.abs(rounded)).astype(np.float64)
        distance = np.where(same, 0.0, np.abs(got.astype(np.float64) - want) / unit)
    return float(np.nan_to_num(distance, nan=np.inf).max())


def absolute(got: np.ndarray, want: np.ndarray) -> float:
    """Largest |got - want| / max(1, |want|); equal infinities and NaNs are 0."""
    with np.errstate(all="ignore"):
        same = (got == want.astype(np.float32)) | (np.isnan(got) & np.isnan(want))
        error = np.abs(got.astype(np.float64) - want) / np.maximum(1.0, np.abs(want))
    return float(np.nan_to_num(np.where(same, 0.0, error), nan=np.inf).max())


erf = np.vectorize(math.erf, otypes=[np.float64])


def softplus(x: np.ndarray) -> np.ndarray:
    return np.logaddexp(0.0, x)


# op, attributes, float64 reference, measure, allowed
UNARY = [
    ("neg", (), np.negative, ulps, 0),
    ("abs", (), np.abs, ulps, 0),
    ("sign", (), np.sign, ulps, 0),
    ("sqrt", (), np.sqrt, ulps, 0.51),
    ("reciprocal", (), lambda x: 1 / x, ulps, 0.51),
    ("square", (), np.square, ulps, 0.51),
    ("floor", (), np.floor, ulps, 0),
    ("ceil", (), np.ceil, ulps, 0),
    ("round", (), np.rint, ulps, 0),
    ("relu", (), lambda x: np.maximum(x, 0), ulps, 0),
    ("clip", (-0.5, 6.0), lambda x: np.clip(x, -0.5, 6), ulps, 0),
    ("leaky_relu", (0.125,), lambda x: np.where(x < 0, 0.125 * x, x), ulps, 0.51),
    ("elu", (1.5,), lambda x: np.where(x < 0, 1.5 * np.expm1(x), x), absolute, 1e-6),
    ("selu", (1.67, 1.05), lambda x: 1.05 * np.where(x < 0, 1.67 * np.expm1(x), x), absolute, 1e-6),
    ("hard_sigmoid", (0.2, 0.5), lambda x: np.clip(0.2 * x + 0.5, 0, 1), absolute, 1e-7),
    ("hard_swish", (), lambda x: x * np.clip(x / 6 + 0.5, 0, 1), absolute, 1e-6),
    ("exp", (), np.exp, ulps, 2),
    ("log", (), np.log, ulps, 2),
    ("sigmoid", (), lambda x: 1 / (1 + np.exp(-x)), absolute, 3e-7),
    ("tanh", (), np.tanh, absolute, 5e-7),
    ("erf", (), erf, absolute, 5e-7),
    ("gelu", (), lambda x: 0.5 * x * (1 + erf(x / math.sqrt(2))), absolute, 1e-6),
    ("softplus", (), softplus, absolute, 5e-7),
    ("not", (), lambda x: (x == 0).astype(float), ulps, 0),
]


def dense() -> np.ndarray:
    """Ordinary arguments, wide ones, every size down to the subnormals, and the special values."""
    sizes = np.exp2(np.linspace(-149, 127.9, 20000))
    parts = [np.linspace(-20, 20, 40000), np.linspace(-105, 90, 40000), sizes, -sizes, np.array(SPECIAL)]
    return np.concatenate(parts).astype(np.float32)


@pytest.mark.parametrize(
    ("name", "attrs", "reference", "measure", "allowed"), UNARY, ids=lambda v: str(v)[:12]
)
def test_unary(name: str, attrs: Any, reference: Any, measure: Any, allowed: float, tmp_path: Path) -> None:
    x = dense()
    got = evaluate(unary(name, *attrs), [x], tmp_path)
    with np.errstate(all="ignore"):
        want = reference(x.astype(np.float64))
    if name in ("hard_swish", "gelu"):  # -infinity times the 0 that it gates
        got, want = got[x != -INF], want[x != -INF]
    assert measure(got, want) <= allowed


def test_tanh_reaches_one(tmp_path: Path) -> None:
    x = np.array([8, 88.8, 1e38, INF, -8, -88.8, -1e38, -INF], np.float32)
    assert evaluate(unary("tanh"), [x], tmp_path).tolist() == [1.0] * 4 + [-1.0] * 4


BINARY = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "max": np.maximum,
    "min": np.minimum,
    "prelu": lambda x, y: np.where(x < 0, x * y, x),
    "less": np.less,
    "less_equal": np.less_equal,
    "equal": np.equal,
}


@pytest.mark.parametrize("name", BINARY)
@pytest.mark.parametrize("lanes", [1, LANES])
def test_binary(name: str, lanes: int, tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    pairs = np.array([(a, b) for a in SPECIAL for b in SPECIAL], np.float32)
    x, y = np.concatenate([pairs, generator.normal(size=(4096, 2)).astype(np.float32)]).T
    got = evaluate(Expression(2, (Op(name, (0, 1)),), (2,)), [x, y], tmp_path, lanes)
    with np.errstate(all="ignore"):
        want = BINARY[name](x.astype(np.float64), y.astype(np.float64)).astype(np.float64)
    assert ulps(got, want) <= 0.51


def test_pow_has_the_special_cases_of_c(tmp_path: Path) -> None:
    bases = [0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 0.3, -0.3, 17.5, -17.5, INF, -INF, NAN]
    exponents = [0.0, 1.0, 2.0, 3.0, -1.0, -2.0, -3.0, 0.5, -0.5, 2.5, 7.0, 16.0, INF, -INF, NAN]
    x, y = np.array([(a, b) for a in bases for b in exponents], np.float32).T
    got = evaluate(Expression(2, (Op("pow", (0, 1)),), (2,)), [x, y], tmp_path)
    with np.errstate(all="ignore"):
        want = np.power(x.astype(np.float64), y.astype(np.float64))
    finite = np.isfinite(want)
    assert np.array_equal(got[~finite], want[~finite].astype(np.float32), equal_nan=True)
    np.testing.assert_allclose(got[finite], want[finite], rtol=1e-5)
    zero = want == 0
    assert np.array_equal(np.signbit(got[zero]), np.signbit(want[zero]))


def test_where_takes_either_side(tmp_path: Path) -> None:
    condition = np.array([1, 0, 2, 0, 1, 0, 0, 1], np.float32)
    x, y = np.arange(8, dtype=np.float32), np.full(8, NAN, np.float32)
    got = evaluate(Expression(3, (Op("where", (0, 1, 2)),), (3,)), [condition, x, y], tmp_path)
    np.testing.assert_array_equal(got, np.where(condition != 0, x, y))


def test_a_chain_computes_each_value_once(tmp_path: Path) -> None:
    builder = ExpressionBuilder(1)
    shifted = builder.add("clip", builder.add("add", 0, builder.const(3)), attrs=(0.0, 6.0))
    assert builder.add("add", 0, builder.const(3)) == 2
    builder.add("exp", 0)  # needed by nothing
    expression = builder.build(builder.add("div", builder.add("mul", 0, shifted), builder.const(6)))
    assert [op.name for op in expression.ops] == ["const", "add", "clip", "mul", "const", "div"]
    x = np.linspace(-8, 8, 64, dtype=np.float32)
    got = evaluate(expression, [x], tmp_path)
    np.testing.assert_allclose(got, x * np.clip(x.astype(np.float64) + 3, 0, 6) / 6, rtol=1e-6, atol=1e-6)


def test_every_operation_is_covered() -> None:
    covered = {row[0] for row in UNARY} | set(BINARY) | {"pow", "where", "const"}
    assert covered == set(OPS)


def test_a_malformed_expression_is_refused() -> None:
    with pytest.raises(ValueError, match="not an operation"):
        unary("cosh")
    with pytest.raises(ValueError, match="not computed before"):
        Expression(1, (Op("relu", (1,)),), (1,))
