"""Older models through the whole pipeline: what they compute stays, whatever opset they come with."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from convopt.errors import ModelError
from convopt.passes import GRAPH_PASSES, PassContext, run_passes
from convopt.passes.upgrade_opset import WORKING_OPSET
from tests.passes.support import assert_same, parse, run_unoptimised

_SHAPES = {
    "softmax middle axis": (11, "g (float[2,3,4,5] x) => (float y) { y = Softmax <axis = 2> (x) }"),
    "softmax axis 0": (9, "g (float[2,3,4] x) => (float y) { y = Softmax <axis = 0> (x) }"),
    "softmax negative axis": (11, "g (float[2,3,4] x) => (float y) { y = Softmax <axis = -2> (x) }"),
    "softmax of unknown rank": (
        9,
        "g (float[2,3,4] x) => (float y) { a = Relu (x)  y = Softmax <axis = 1> (a) }",
    ),
    "logsoftmax": (11, "g (float[2,3,4] x) => (float y) { y = LogSoftmax (x) }"),
    "hardmax": (11, "g (float[2,3,4] x) => (float y) { y = Hardmax (x) }"),
    "clip one bound": (8, "g (float[2,3] x) => (float y) { y = Clip <max = 0.5> (x) }"),
    "clip no bound": (7, "g (float[2,3] x) => (float y) { y = Clip (x) }"),
    "clip of a type that is not stated": (
        9,
        "g (float16[2,3] x) => (float16 y) { a = Relu (x)  y = Clip <min = 0.1, max = 0.5> (a) }",
    ),
    "clip in a branch": (
        9,
        """g (bool x, float16[2,3] x2) => (float16[2,3] y) { y = If (x) <
            then_branch = t () => (float16[2,3] a) { r = Relu (x2)  a = Clip <min = 0.1> (r) },
            else_branch = e () => (float16[2,3] b) { b = Neg (x2) }
        > }""",
    ),
    "pad of a type that is not stated": (
        9,
        "g (float16[2,3] x) => (float16 y) { a = Relu (x)  y = Pad <pads = [0,0,0,1], value = 0.5> (a) }",
    ),
    "names around a branch": (
        13,
        """g (bool x, float[2,3] x2, int64[1] x3) => (float[3] y) { s_axes = Neg (x3)  y = If (x) <
            then_branch = t () => (float[3] s) { a = Cast <to = 1> (s_axes)  b = Add (x2, a)
                s = ReduceMean <axes = [0], keepdims = 0> (b) },
            else_branch = e () => (float[3] q) { q = ReduceMax <axes = [0], keepdims = 0> (x2) }
        > }""",
    ),
    "upsample by attribute": (
        8,
        "g (float[1,2,3,4] x) => (float y) { y = Upsample <scales = [1.0,1.0,2.0,3.0]> (x) }",
    ),
    "upsample linear": (
        8,
        """g (float[1,2,3,4] x) => (float y) {
            y = Upsample <mode = "linear", scales = [1.0,1.0,1.5,2.0]> (x) }""",
    ),
    "resize 10": (
        10,
        """g (float[1,2,6,4] x) => (float y) <float[4] s = {1.0,1.0,0.6,1.7}> { y = Resize (x, s) }""",
    ),
    "resize 10 shrinks": (
        10,
        """g (float[1,2,6,5] x) => (float y) <float[4] s = {1.0,1.0,0.6,0.7}> { y = Resize (x, s) }""",
    ),
    "resize 10 of computed scales": (
        10,
        """g (float[1,2,6,4] x) => (float y) <float[2] s = {1.0,1.0}, float[2] t = {0.6,0.5}> {
            u = Concat <axis = 0> (s, t)  y = Resize (x, u) }""",
    ),
    "resize 10 linear": (
        10,
        """g (float[1,2,6,4] x) => (float y) <float[4] s = {1.0,1.0,0.6,1.7}> {
            y = Resize <mode = "linear"> (x, s) }""",
    ),
    "upsample by input": (
        9,
        """g (float[1,2,6,4] x) => (float y) <float[4] s = {1.0,1.0,1.0,2.0}> { y = Upsample (x, s) }""",
    ),
    "pad reflect": (
        10,
        'g (float[1,2,5,5] x) => (float y) { y = Pad <mode = "reflect", pads = [0,0,1,2,0,0,2,1]> (x) }',
    ),
    "slice no axes": (9, "g (float[5,5] x) => (float y) { y = Slice <starts = [1,0], ends = [-1,3]> (x) }"),
    "split uneven": (
        11,
        "g (float[2,7] x) => (float y, float z) { y, z = Split <axis = 1, split = [3,4]> (x) }",
    ),
    "split even": (11, "g (float[2,8] x) => (float y, float z) { y, z = Split <axis = 1> (x) }"),
    "topk": (9, "g (float[2,8] x) => (float y, int64 z) { y, z = TopK <k = 3> (x) }"),
    "reduce all": (13, "g (float[2,3,4] x) => (float y) { y = ReduceMax <keepdims = 0> (x) }"),
    "reduce sum": (11, "g (float[2,3,4] x) => (float y) { y = ReduceSum <axes = [-1], keepdims = 0> (x) }"),
    "scatter": (
        9,
        """g (float[3,3] x, float[1,2] u) => (float y) <int64[1,2] i = {1,2}> { y = Scatter (x, i, u) }""",
    ),
    "dropout": (9, "g (float[2,3] x) => (float y) { a = Dropout <ratio = 0.3> (x)  y = Relu (a) }"),
    "batchnorm 8": (
        8,
        """g (float[1,4,3,3] x, float[4] s, float[4] t, float[4] m, float[4] v) => (float y) {
            y = BatchNormalization <spatial = 1, momentum = 0.8> (x, s, t, m, v) }""",
    ),
    "if": (
        10,
        """g (bool x, float[1,3,2] x2) => (float[3,2] y) { y = If (x) <
            then_branch = t () => (float[3,2] a) { a = Squeeze <axes = [0]> (x2) },
            else_branch = e () => (float[3,2] b) { c = Squeeze <axes = [0]> (x2)  b = Neg (c) }
        > }""",
    ),
}


@pytest.mark.parametrize(("opset", "text"), _SHAPES.values(), ids=_SHAPES.keys())
def test_same_result(opset: int, text: str) -> None:
    model = parse(text, opset)
    before = ir.to_proto(model)
    for value in before.graph.output:
        value.type.tensor_type.ClearField("shape")
    run_passes(model, GRAPH_PASSES, PassContext())
    assert model.opset_imports[""] == WORKING_OPSET
    assert_same(before, ir.to_proto(model))
    for value in model.graph.outputs:
        assert value.shape is not None and value.shape.is_static()


def test_newer_opsets_stay() -> None:
    model = parse("g (float[2,3] x) => (float[2,3] y) { y = Relu (x) }", opset=21)
    run_passes(model, GRAPH_PASSES, PassContext())
    assert model.opset_imports[""] == 21


def test_broadcast_before_opset_7() -> None:
    """Add-6 with `axis`: the second operand's dims start there. No later runtime takes it, so by hand."""
    text = """g (float[2,3,4,5] x, float[3,4] w) => (float[2,3,4,5] y) {
        y = Add <broadcast = 1, axis = 1> (x, w) }"""
    today = """g (float[2,3,4,5] x, float[3,4] w) => (float[2,3,4,5] y) <int64[1] a = {2}> {
        u = Unsqueeze (w, a)  y = Add (x, u) }"""
    model = parse(text, opset=6)
    run_passes(model, GRAPH_PASSES, PassContext())
    assert_same(ir.to_proto(parse(today)), ir.to_proto(model))


_MAX = {17: "w = ReduceMax <axes = [0]> (u)", 18: "k = Constant <value_ints = [0]> ()  w = ReduceMax (u, k)"}
_MIN = {17: "b = ReduceMin <axes = [1]> (x)", 18: "k = Constant <value_ints = [1]> ()  b = ReduceMin (x, k)"}


@pytest.mark.parametrize(("inside", "outside"), [(17, 18), (18, 17), (17, 21), (21, 17), (11, 13), (18, 20)])
def test_functions_of_another_opset(inside: int, outside: int) -> None:
    """A function says itself which opset its body is of, also one that only another function calls."""
    text = f"""<ir_version: 8, opset_import: ["" : {outside}, "local" : 1]>
    g (float[2,3] x) => (float[2,3] y) {{
        a = local.F (x)  {_MIN[min(outside, 18) // 18 + 17]}  y = Add (a, b) }}
    <domain: "local", opset_import: ["" : {outside}, "local" : 1]> F (t) => (v) {{ v = local.G (t) }}
    <domain: "local", opset_import: ["" : {inside}]> G (u) => (w) {{ {_MAX[min(inside, 18) // 18 + 17]} }}"""
    model = ir.from_proto(onnx.parser.parse_model(text))
    run_passes(model, GRAPH_PASSES, PassContext())
    x = np.array([[1, -2, 3], [4, 5, -6]], np.float32)
    expected = x.max(0, keepdims=True) + x.min(1, keepdims=True)  # onnxruntime reads it by the model's opset
    np.testing.assert_array_equal(run_unoptimised(ir.to_proto(model), {"x": x})["y"], expected)


def test_a_function_whose_operator_got_another_form() -> None:
    text = """<ir_version: 8, opset_import: ["" : 20, "local" : 1]>
    g (float[1,1,3,3] x, float[1,2,2,2] p) => (float[1,1,2,2] y) { y = local.F (x, p) }
    <domain: "local", opset_import: ["" : 16]> F (u, v) => (w) { w = GridSample (u, v) }"""
    model = ir.from_proto(onnx.parser.parse_model(text))
    with pytest.raises(ModelError, match=r"GridSample .* in function local.F, of opset 16, has another"):
        run_passes(model, GRAPH_PASSES, PassContext())


def test_axes_of_a_pad_may_be_int32() -> None:
    """The onnx package's inference refuses them, the operator does not."""
    text = """g (float[2,3,4] x) => (float[A,B,C] y) <int64[4] pads = {1, 0, 2, 3}, int32[2] axes = {-1, 1}>
    { y = Pad <mode = "edge"> (x, pads, , axes) }"""
    model = ir.from_proto(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 18]> {text}'))
    run_passes(model, GRAPH_PASSES, PassContext())
    assert model.graph.outputs[0].shape == [2, 6, 7]
