"""Edges: outputs that are inputs, empty tensors, dims of one name, output shapes beyond the windows."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from convopt.errors import ModelError
from convopt.passes import GRAPH_PASSES, PassContext, run_passes
from convopt.passes.bind_shapes import BindShapes
from tests.passes.support import assert_same, parse, run_unoptimised


def test_outputs_that_are_inputs_or_each_other() -> None:
    """An Identity stays where nothing else can carry the output's name."""
    text = """g (float[2] x) => (float[2] a, float[2] b, float[2] c, float[2] d) {
        a = Identity (x)  r = Relu (x)  b = Identity (r)  c = Identity (b)  d = Dropout (r) }"""
    model = parse(text)
    before = ir.to_proto(model)
    run_passes(model, GRAPH_PASSES, PassContext())
    assert [v.name for v in model.graph.outputs] == ["a", "b", "c", "d"]
    assert sorted(n.op_type for n in model.graph).count("Relu") == 1
    assert_same(before, ir.to_proto(model))
    assert not any(report.changed for report in run_passes(model, GRAPH_PASSES, PassContext()))


def test_equal_outputs_are_computed_once() -> None:
    text = "g (float[2] x) => (float[2] a, float[2] b) { a = Relu (x)  b = Relu (x) }"
    model = parse(text)
    before = ir.to_proto(model)
    run_passes(model, GRAPH_PASSES, PassContext())
    assert [n.op_type for n in model.graph].count("Relu") == 1
    assert_same(before, ir.to_proto(model))


def test_cancelled_transposes_that_are_outputs() -> None:
    text = """g (float[2,3] x) => (float[2,3] y, float[3,2] z) {
        z = Transpose <perm = [1, 0]> (x)  y = Transpose <perm = [1, 0]> (z) }"""
    model = parse(text)
    before = ir.to_proto(model)
    run_passes(model, GRAPH_PASSES, PassContext())
    assert_same(before, ir.to_proto(model))


def test_empty_batch() -> None:
    """A 0 in a Reshape's shape copies an extent: views of empty tensors are not merged."""
    text = """g (float[N,2,5,5] x, float[4,2,3,3] w) => (float[N,4,9] y)
        <int64[3] s = {0,4,9}, int64[2] t = {0,36}, int64[3] u = {0,4,9}> {
        c = Conv (x, w)  a = Reshape (c, s)  b = Reshape (a, t)  y = Reshape (b, u) }"""
    model = parse(text)
    before = ir.to_proto(model)
    run_passes(model, GRAPH_PASSES, PassContext(shapes={"x": (0, 2, 5, 5)}))
    assert model.graph.outputs[0].shape == ir.Shape((0, 4, 9))
    found = run_unoptimised(ir.to_proto(model), {"x": np.zeros((0, 2, 5, 5), np.float32)})
    expected = run_unoptimised(before, {"x": np.zeros((0, 2, 5, 5), np.float32)})
    assert found["y"].shape == expected["y"].shape == (0, 4, 9)


def test_views_of_an_empty_tensor_keep_their_meaning() -> None:
    """Without allowzero, the merged Reshape to [7,0] would read its 0 as the input's second extent."""
    text = """g (float[0,4] x) => (float[7,0] y) <int64[2] s = {4,0}, int64[2] t = {7,0}> {
        a = Reshape <allowzero = 1> (x, s)  y = Reshape <allowzero = 1> (a, t) }"""
    model = parse(text)
    before = ir.to_proto(model)
    run_passes(model, GRAPH_PASSES, PassContext())
    assert_same(before, ir.to_proto(model))


def test_dims_of_one_name() -> None:
    text = "g (float[N,2] x, float[N,3] x2) => (float[N,5] y) { y = Concat <axis = 1> (x, x2) }"
    model = parse(text)
    run_passes(model, [BindShapes()], PassContext(shapes={"x": (4, 2)}))
    assert model.graph.inputs[1].shape == ir.Shape((4, 3))


def test_contradictory_names_bind_nothing_else() -> None:
    """Exporters call dims alike that aren't: what the caller says of an input counts for that alone."""
    text = "g (float[H,H] x, float[H,3] x2) => (float y, float z) { y = Relu (x)  z = Relu (x2) }"
    model = parse(text)
    run_passes(model, [BindShapes()], PassContext(shapes={"x": (4, 5)}))
    assert model.graph.inputs[0].shape == ir.Shape((4, 5))
    assert model.graph.inputs[1].shape == ir.Shape(("H", 3))


def test_output_shape_beyond_the_windows() -> None:
    """ConvTranspose asked for 9 where its windows reach 8: the rest is bias alone, as output padding."""
    text = """g (float[1,2,4,4] x, float[2,3,2,2] w, float[3] b) => (float[1,3,9,9] y) {
        y = ConvTranspose <auto_pad = "VALID", strides = [2, 2], output_shape = [9, 9]> (x, w, b) }"""
    plain = """g (float[1,2,4,4] x, float[2,3,2,2] w, float[3] b) => (float[1,3,8,8] y) {
        y = ConvTranspose <strides = [2, 2]> (x, w, b) }"""
    model = parse(text)
    run_passes(model, GRAPH_PASSES, PassContext())
    feeds = {"x": np.random.default_rng(0).standard_normal((1, 2, 4, 4)).astype(np.float32)}
    found = run_unoptimised(ir.to_proto(model), feeds)["y"]
    bias = model.graph.initializers["b"].const_value
    assert bias is not None
    expected = np.broadcast_to(bias.numpy().reshape(1, 3, 1, 1), (1, 3, 9, 9)).copy()
    expected[:, :, :8, :8] = run_unoptimised(ir.to_proto(parse(plain)), feeds)["y"]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)


def test_an_element_type_that_the_operator_does_not_take() -> None:
    """The onnx package calls this a failed validation, not a failed inference."""
    model = parse("g (float16[2] x) => (float16[2] y) { y = Celu (x) }")
    with pytest.raises(ModelError, match=r"Celu 'y': .*float16"):
        run_passes(model, GRAPH_PASSES, PassContext())


def test_a_group_normalization_of_opset_18_has_a_shape() -> None:
    """That version is deprecated, and the onnx package infers nothing of deprecated operators."""
    text = """g (float[2,4,3] x, float[2] scale, float[2] bias) => (float[] y) {
        n = GroupNormalization <num_groups = 2> (x, scale, bias)  y = Relu (n) }"""
    model = parse(text)
    before = ir.to_proto(model)
    run_passes(model, GRAPH_PASSES, PassContext())
    assert model.graph.outputs[0].shape == ir.Shape((2, 4, 3))
    inputs = {"x": np.random.default_rng(0).standard_normal((2, 4, 3)).astype(np.float32)}
    expected = run_unoptimised(before, inputs)["y"]  # the onnx package's checker refuses it altogether
    np.testing.assert_allclose(run_unoptimised(ir.to_proto(model), inputs)["y"], expected, rtol=1e-6)


def test_constant_strings() -> None:
    """They have no size in bytes, and are not folded."""
    text = """g (float[2] x) => (float[2] y, string[2] z) <string[1] k = {"a"}> {
        z = Concat <axis = 0> (k, k)  y = Neg (x) }"""
    model = parse(text)
    run_passes(model, GRAPH_PASSES, PassContext())
    found = run_unoptimised(ir.to_proto(model), {"x": np.ones(2, np.float32)})
    assert found["z"].tolist() == ["a", "a"]


def test_overridden_shapes_make_declared_ones_void() -> None:
    """Nothing is known of the operator, and what the model declares of its result was for another batch."""
    model = parse("g (float[2,3] x) => (float[2,3] y) <float[2,3] q> { q = local.Twice (x)  y = Relu (q) }")
    run_passes(model, GRAPH_PASSES, PassContext(shapes={"x": (4, 3)}))
    assert [v.shape for v in model.graph.node(0).outputs] == [ir.Shape((None, None))]
    assert model.graph.outputs[0].shape == ir.Shape((None, None))
    kept = parse("g (float[2,3] x) => (float[2,3] y) <float[2,3] q> { q = local.Twice (x)  y = Relu (q) }")
    run_passes(kept, GRAPH_PASSES, PassContext(shapes={"x": (2, 3)}))
    assert kept.graph.outputs[0].shape == ir.Shape((2, 3))
