"""Folding in numpy against onnxruntime, where the two could part: signs, steps, clamping, empties."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from convopt.ir.evaluate import evaluate
from convopt.passes import PassContext, run_passes
from convopt.passes.fold_constants import FoldConstants
from tests.passes.support import parse, run_unoptimised

_INTS = "<int64[5] a = {7,-7,7,-7,0}, int64[5] b = {2,2,-2,-2,3}>"
_MATRIX = "int64[3,4] m = {1,2,3,4,5,6,7,8,9,10,11,12}"
_FLOATS = "<float[5] f = {1.5,-1.5,0.49,-2.5,1000000.75}, float[5] h = {0.0,2.0,-0.0,3.5,1.0}>"


@pytest.mark.parametrize(
    ("node", "constants"),
    [
        ("y = Div (a, b)", _INTS),
        ("y = Mul (a, b)", _INTS),
        ("y = Sub (a, b)", _INTS),
        ("y = Neg (a)", _INTS),
        ("y = Abs (a)", _INTS),
        ("y = Equal (a, b)", _INTS),
        ("y = Less (a, b)", _INTS),
        ("y = Div (f, h)", _FLOATS),
        ("y = Sqrt (h)", _FLOATS),
        ("y = Floor (f)", _FLOATS),
        ("y = Ceil (f)", _FLOATS),
        ("y = Cast <to = 7> (f)", _FLOATS),
        ("y = Cast <to = 6> (f)", _FLOATS),
        ("y = Cast <to = 9> (h)", _FLOATS),
        ("y = Cast <to = 10> (f)", _FLOATS),
        ("y = Cast <to = 1> (a)", _INTS),
        ("y = Concat <axis = -1> (a, b)", _INTS),
        ("y = Gather <axis = 1> (m, i)", f"<{_MATRIX}, int64[1,2] i = {{-1,0}}>"),
        ("y = Gather (a, i)", f"{_INTS[:-1]}, int64 i = {{-2}}>"),
        (
            "y = Slice (m, s, e, x, t)",
            f"<{_MATRIX}, int64[1] s={{-1}}, int64[1] e={{-99}}, int64[1] x={{1}}, int64[1] t={{-2}}>",
        ),
        (
            "y = Slice (m, s, e, x, t)",
            f"<{_MATRIX}, int64[1] s={{3}}, int64[1] e={{-4}}, int64[1] x={{1}}, int64[1] t={{-1}}>",
        ),
        (
            "y = Slice (m, s, e, x, t)",
            f"<{_MATRIX}, int64[1] s={{99}}, int64[1] e={{-3}}, int64[1] x={{-1}}, int64[1] t={{-1}}>",
        ),
        ("y = Slice (m, s, e)", f"<{_MATRIX}, int64[2] s={{1,-3}}, int64[2] e={{9223372036854775807,-1}}>"),
        ("y = Slice (m, s, e)", f"<{_MATRIX}, int64[1] s={{2}}, int64[1] e={{1}}>"),
        ("y = Squeeze (u, x)", "<int64[1,2,1] u = {1,2}, int64[1] x = {-1}>"),
        ("y = Squeeze (u)", "<int64[1,2,1] u = {1,2}>"),
        ("y = Unsqueeze (a, x)", f"{_INTS[:-1]}, int64[2] x = {{-1,0}}>"),
        ("y = Reshape (m, s)", f"<{_MATRIX}, int64[3] s = {{0,-1,2}}>"),
        ("y = Transpose (m)", f"<{_MATRIX}>"),
        ("y = Range (s, e, d)", "<int64 s = {5}, int64 e = {-4}, int64 d = {-3}>"),
        ("y = Range (s, e, d)", "<int64 s = {5}, int64 e = {1}, int64 d = {2}>"),
        ("y = Range (s, e, d)", "<float s = {0.1}, float e = {1.0}, float d = {0.3}>"),
        ("y = Expand (u, s)", "<int64[1,2,1] u = {1,2}, int64[2] s = {1,3}>"),
        ("y = ConstantOfShape <value = int64[1] {7}> (s)", "<int64[2] s = {2,0}>"),
        ("y = ConstantOfShape (s)", "<int64[2] s = {2,3}>"),
        ("y = Where (c, a, b)", f"{_INTS[:-1]}, bool[5] c = {{1,0,0,1,1}}>"),
        ("y = Not (c)", "<bool[3] c = {1,0,1}>"),
        ("y = Tile (a, r)", f"{_INTS[:-1]}, int64[1] r = {{2}}>"),
    ],
)
def test_like_onnxruntime(node: str, constants: str) -> None:
    model = parse(f"g (bool xx) => (float y, bool yy) {constants} {{ {node}  yy = Not (xx) }}")
    one = model.graph[0]
    proto = ir.to_proto(model)
    del proto.graph.output[0]
    proto.graph.output.append(onnx.ValueInfoProto(name="y"))
    expected = run_unoptimised(proto, {"xx": np.array(True)})["y"]
    inputs = [None if v is None or v.const_value is None else v.const_value.numpy() for v in one.inputs]
    (found,) = evaluate(one, inputs, model.opset_imports)
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    np.testing.assert_array_equal(found, expected)


def test_a_large_result_is_not_folded() -> None:
    """An Expand of one number can fill the memory; beyond the cap it stays a node, and says so."""
    text = """g (float[1] x) => (float y) <float one = {1.0}, int64[2] s = {1000,1000}> {
        e = Expand (one, s)  y = Add (x, e) }"""
    model = parse(text)
    report = run_passes(model, [FoldConstants(cap=1000)], PassContext())[0]
    assert report.changed == 0
    assert [n.text for n in report.notes] == ["Expand 'e' not folded: 4000000 bytes"]
    assert run_passes(parse(text), [FoldConstants()], PassContext())[0].changed == 1


def test_random_is_not_folded() -> None:
    text = """g (float[4] x) => (float y) {
        r = RandomNormal <shape = [4]> ()  y = Add (x, r) }"""
    assert run_passes(parse(text), [FoldConstants()], PassContext())[0].changed == 0


def test_unbound_dims_keep_their_names() -> None:
    """The batch's comes from the input, the extent behind a window from the output's declaration."""
    model = parse("g (float[N,4,H] x, float[2,4,3] w) => (float[M,9,P] y) { y = Conv (x, w) }")
    run_passes(model, [FoldConstants()], PassContext())
    assert model.graph.outputs[0].shape == ir.Shape(("N", 2, "P"))


def test_partly_bound_arithmetic_folds_where_it_can() -> None:
    """Only the channels and the height are known: their Shape-and-Gather goes, the batch's stays."""
    text = """g (float[N,8,4,4] x) => (float y)
        <int64 first = {0}, int64[1] axes = {0}, int64[1] rest = {-1}> {
        h = Shape <start = 2, end = 3> (x)
        b = Shape (x)  n = Gather (b, first)  m = Unsqueeze (n, axes)
        s = Concat <axis = 0> (m, h, rest)
        y = Reshape (x, s)
    }"""
    model = parse(text)
    assert run_passes(model, [FoldConstants()], PassContext())[0].changed == 1
    assert [n.name for n in model.graph] == ["b", "n", "m", "s", "y"]
