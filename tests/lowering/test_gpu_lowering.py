"""What the lowering chooses on a GPU beyond one kernel a node, run on an OpenCL device as whole models."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import convopt
from convopt.lowering.program import DeviceCall
from convopt.schedules.base import row_major
from convopt.schedules.gpu_conv_direct import GpuDirectConv
from convopt.schedules.gpu_gemm_problem import GemmProblem, gemm_problem
from convopt.schedules.gpu_im2col import GpuIm2col
from convopt.schedules.gpu_implicit_gemm import ImplicitGemm
from convopt.schedules.gpu_transpose import GpuTranspose
from convopt.selection.choose_gpu import choose_transposition, gpu_split
from convopt.selection.plans_gpu import unfolded_seconds
from convopt.selection.unfold import chunks
from convopt.targets import find_target
from tests.schedules.gpu_conv_cases import Case

pytestmark = pytest.mark.opencl
Array = np.ndarray[Any, Any]


def _model(nodes: list[Any], inputs: dict[str, tuple[int, ...]], **constants: Array) -> onnx.ModelProto:
    def info(name: str, shape: tuple[int, ...] | None) -> Any:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)

    arrays = [
        numpy_helper.from_array(a if a.dtype == np.int64 else a.astype(np.float32), name)
        for name, a in constants.items()
    ]
    graph = helper.make_graph(
        nodes, "g", [info(n, s) for n, s in inputs.items()], [info(nodes[-1].output[0], None)], arrays
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _run(model: onnx.ModelProto, feeds: dict[str, Array], **options: Any) -> tuple[Array, list[Any]]:
    """The result, and the schedules of the kernels."""
    calls: list[Any] = []

    def observe(found: Any) -> None:
        calls.extend(one.call for one in found if isinstance(one, DeviceCall))

    module = convopt.optimize(model, target="opencl", observe=observe, **options)
    assert {place.where for place in module.placement} <= {"compiled", "view", "folded"}
    return next(iter(module.run(feeds).values())), calls


def _close(found: Array, expected: Array, tolerance: float = 1e-5) -> None:
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() <= tolerance * np.abs(expected).max()


def test_attention_is_batched_gemms() -> None:
    """q k^T with a scale and a mask, then times v: right operands along and across the reduction."""
    rng = np.random.default_rng(0)
    q, k, v = (
        rng.normal(size=s).astype(np.float32) for s in ((2, 3, 37, 20), (2, 3, 41, 20), (2, 3, 41, 24))
    )
    mask = rng.normal(size=(37, 41))
    node = helper.make_node
    nodes = [
        node("Transpose", ["k"], ["turned"], name="turn", perm=[0, 1, 3, 2]),
        node("MatMul", ["q", "turned"], ["scores"], name="scores"),
        node("Add", ["scores", "mask"], ["masked"], name="mask"),
        node("Softmax", ["masked"], ["weights"], name="softmax", axis=-1),
        node("MatMul", ["weights", "v"], ["y"], name="values"),
    ]
    model = _model(nodes, {"q": q.shape, "k": k.shape, "v": v.shape}, mask=mask)
    found, calls = _run(model, {"q": q, "k": k, "v": v})
    products = [call for call in calls if isinstance(call.problem, GemmProblem)]
    assert [call.problem.groups for call in products] == [6, 6]
    assert all(isinstance(call.schedule, ImplicitGemm) for call in products)
    scores = np.einsum("abmk,abnk->abmn", q.astype(np.float64), k) + mask
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    _close(found, np.einsum("abmn,abnd->abmd", weights, v))


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize(("trans_a", "trans_b"), [(0, 0), (1, 1)])
@pytest.mark.parametrize("constant_c", [False, True])
def test_gemm_of_two_computed_operands(trans_a: int, trans_b: int, constant_c: bool, precision: str) -> None:
    rng = np.random.default_rng(1)
    a, b, c = (rng.normal(size=s).astype(np.float32) for s in ((21, 35), (35, 18), (18,)))
    expected = 0.5 * a.astype(np.float64) @ b + 1.5 * c
    given = {"a": a.T.copy() if trans_a else a, "b": b.T.copy() if trans_b else b, "c": c}
    attributes = {"alpha": 0.5, "beta": 1.5, "transA": trans_a, "transB": trans_b}
    gemm = helper.make_node("Gemm", ["a", "b", "c"], ["y"], name="gemm", **attributes)
    constants = {"c": given.pop("c")} if constant_c else {}
    model = _model([gemm], {n: x.shape for n, x in given.items()}, **constants)
    found, calls = _run(model, given, precision=precision)
    assert any(isinstance(call.problem, GemmProblem) for call in calls)
    _close(found, expected, 1e-5 if precision == "fp32" else 2e-3)


@pytest.mark.parametrize(
    ("cap", "precision", "matrices"),
    [(64 << 20, "fp32", 1), (10_000, "fp32", 3), (2_500, "fp32", 15), (64 << 20, "fp16", 1)],
)
def test_im2col_and_gemm_where_asked_for(cap: int, precision: str, matrices: int) -> None:
    """All images in a matrix, one each, and rows of one: groups, dilation, a stride and uneven pads."""
    rng = np.random.default_rng(2)
    x, w, b = (rng.normal(size=s) for s in ((3, 6, 9, 8), (10, 3, 3, 2), (10,)))
    attributes = {"strides": [2, 1], "dilations": [1, 2], "pads": [2, 1, 1, 3], "group": 2}
    conv = helper.make_node("Conv", ["x", "w", "b"], ["y"], name="conv", **attributes)
    model = _model([conv], {"x": x.shape}, w=w, b=b)
    feeds = {"x": x.astype(np.float32)}
    found, calls = _run(model, feeds, algorithm="im2col", im2col_cap=cap, precision=precision)
    assert sum(isinstance(call.schedule, GpuIm2col) for call in calls) == matrices
    padded = np.pad(x, ((0, 0), (0, 0), (2, 1), (1, 3)))
    expected = np.zeros((3, 10, 5, 10)) + b[:, None, None]
    for r, s in np.ndindex(3, 2):
        window = padded[:, :, r : r + 9 : 2, 2 * s : 2 * s + 10]
        for g in range(2):
            part = np.einsum("nchw,kc->nkhw", window[:, 3 * g : 3 * g + 3], w[5 * g : 5 * g + 5, :, r, s])
            expected[:, 5 * g : 5 * g + 5] += part
    _close(found, expected, 1e-5 if precision == "fp32" else 2e-3)


def _convolved(
    x: Array, w: Array, strides: Array, dilations: Array, begin: Array, end: Array, g: int
) -> Array:
    """(n, c, spatial...) by (k, c/g, spatial...) in float64, from the operator's specification."""
    padded = np.pad(x.astype(np.float64), ((0, 0), (0, 0), *zip(begin, end, strict=True)))
    reach = (np.array(w.shape[2:]) - 1) * dilations
    extents = (np.array(padded.shape[2:]) - 1 - reach) // strides + 1
    k, c = w.shape[0] // g, w.shape[1]
    y = np.zeros((x.shape[0], w.shape[0], *extents))
    for tap in np.ndindex(*w.shape[2:]):
        first = np.array(tap) * dilations
        places = tuple(
            slice(f, f + (e - 1) * s + 1, s) for f, e, s in zip(first, extents, strides, strict=True)
        )
        seen = padded[(slice(None), slice(None), *places)]
        for i in range(g):
            taps = w[(slice(i * k, i * k + k), slice(None), *tap)].astype(np.float64)
            y[:, i * k : i * k + k] += np.einsum("nc...,kc->nk...", seen[:, i * c : i * c + c], taps)
    return y


# x, weight, strides, dilations, begin and end pads, groups: tails everywhere; a weight that is a matrix as it
# is; one and three spatial dims; channels of one group that no vector divides.
_COMPUTED = {
    "grouped": ((2, 6, 9, 11), (10, 3, 3, 2), (2, 1), (1, 2), (2, 1), (1, 3), 2),
    "pointwise": ((3, 20, 7, 5), (27, 20, 1, 1), (1, 1), (1, 1), (0, 0), (0, 0), 1),
    "line": ((2, 5, 19), (12, 5, 4), (3,), (1,), (1,), (2,), 1),
    "cube": ((1, 8, 4, 5, 6), (9, 8, 2, 3, 3), (1, 1, 1), (1, 1, 1), (0, 1, 1), (1, 1, 1), 1),
    "one channel": ((1, 4, 8, 8), (4, 1, 3, 3), (1, 1), (1, 1), (1, 1), (1, 1), 4),
}


@pytest.mark.parametrize(
    ("case", "precision", "algorithm"),
    [
        *((case, "fp32", "auto") for case in _COMPUTED),
        ("grouped", "fp32", "direct"),
        ("grouped", "fp16", "auto"),
    ],
)
def test_a_convolution_whose_weight_the_model_computes(case: str, precision: str, algorithm: str) -> None:
    """The weight is a product of two inputs, the bias an input, and an activation and a residual follow."""
    rng = np.random.default_rng(4)
    shape, kernel, strides, dilations, begin, end, group = _COMPUTED[case]
    x, w, scale, b = (
        rng.normal(size=s).astype(np.float32)
        for s in (shape, kernel, (kernel[0], *(1,) * (len(kernel) - 1)), (kernel[0],))
    )
    attributes = {"strides": strides, "dilations": dilations, "pads": (*begin, *end), "group": group}
    nodes = [
        helper.make_node("Mul", ["w", "scale"], ["weight"], name="weight"),
        helper.make_node("Conv", ["x", "weight", "b"], ["conv"], name="conv", **attributes),
        helper.make_node("Sigmoid", ["conv"], ["gate"], name="gate"),
        helper.make_node("Mul", ["conv", "gate"], ["y"], name="swish"),
    ]
    feeds = {"x": x, "w": w, "scale": scale, "b": b}
    model = _model(nodes, {name: array.shape for name, array in feeds.items()})
    found, calls = _run(model, feeds, precision=precision, algorithm=algorithm)
    kinds = {type(call.schedule) for call in calls}
    assert (GpuDirectConv if algorithm == "direct" else ImplicitGemm) in kinds
    sums = _convolved(x, w * scale, np.array(strides), np.array(dilations), begin, end, group)
    sums += b.astype(np.float64).reshape(-1, *(1,) * (len(shape) - 2))
    _close(found, sums / (1 + np.exp(-sums)), 1e-5 if precision == "fp32" else 2e-3)


@pytest.mark.parametrize("computed", ["w", "b"])
def test_only_the_weight_or_only_the_bias_is_computed(computed: str) -> None:
    """A weight that is an input needs its elements turned; a constant one is packed as ever."""
    rng = np.random.default_rng(5)
    arrays = {
        n: rng.normal(size=s).astype(np.float32)
        for n, s in {"x": (1, 5, 6, 7), "w": (6, 5, 3, 3), "b": (6,)}.items()
    }
    conv = helper.make_node("Conv", ["x", "w", "b"], ["y"], name="conv", pads=[1, 0, 0, 1])
    feeds = {name: arrays[name] for name in ("x", computed)}
    constants = {name: arrays[name] for name in "wb" if name != computed}
    found, calls = _run(_model([conv], {n: a.shape for n, a in feeds.items()}, **constants), feeds)
    assert any(isinstance(call.problem, GemmProblem) for call in calls) == (computed == "w")
    one = np.ones(2, int)
    expected = _convolved(arrays["x"], arrays["w"], one, one, (1, 0), (0, 1), 1)
    _close(found, expected + arrays["b"].reshape(-1, 1, 1))


def test_transpositions_at_the_edges_go_through_registers() -> None:
    rng = np.random.default_rng(3)
    x, w = rng.normal(size=(2, 20, 9, 8)), rng.normal(size=(36, 20, 1, 1))
    conv = helper.make_node("Conv", ["x", "w"], ["y"], name="conv")
    found, calls = _run(_model([conv], {"x": x.shape}, w=w), {"x": x.astype(np.float32)})
    assert sum(isinstance(call.schedule, GpuTranspose) for call in calls) == 2
    _close(found, np.einsum("nchw,kc->nkhw", x, w[:, :, 0, 0]))


def test_unfolding_and_copying_are_choices_by_cost() -> None:
    """The estimate counts the matrix; a right operand is turned where the product is large."""
    target = find_target("cuda:sm_90")
    wide = Case(64, 64, (1, 56, 56), (1, 3, 3), (1, 1, 1), (1, 1, 1), (0, 1, 1), (0, 1, 1), x_dtype="float16")
    chunk = chunks(wide.problem, wide.problem.y.shape[1], 1 << 20)[1]
    unfold, _ = gpu_split(wide.problem, chunk)
    assert chunk.row > 0 and unfold.pads == (0, 1 - chunk.row, 1)
    assert unfolded_seconds(wide.problem, target, 1 << 30) > 0

    def product(m: int, n: int, k: int) -> GemmProblem:
        b = row_major((1, k, n), "float16")
        turned = replace(b, shape=(1, n, k), strides=(k * n, 1, n))
        return gemm_problem(row_major((1, m, k), "float16"), turned, row_major((1, m, n), "float16"))

    assert choose_transposition(product(8192, 4096, 4096), target)
    assert not choose_transposition(product(16, 64, 64), target)
