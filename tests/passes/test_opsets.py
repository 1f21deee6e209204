"""Older models through the whole pipeline: what they compute stays, whatever opset they come with."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from convopt.passes import GRAPH_PASSES, PassContext, run_passes
from convopt.passes.upgrade_opset import WORKING_OPSET
from tests.passes.support import assert_same, parse

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
