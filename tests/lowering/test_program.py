"""Where values live, as whole models: Concats, outputs of every kind, islands, empty batches."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

import convopt
from tests.conformance.support import fallbacks
from tests.lowering.compiled import check_text, labels
from tests.passes.grouping_cases import SUBGRAPHS, UNKNOWN
from tests.passes.support import draw, parse, run_unoptimised

pytestmark = pytest.mark.kernels

CONCATS = {
    "two convs": """g (float[2,4,5,6] x, float[7,4,3,3] w, float[5,4,1,1] v) => (float[2,12,5,6] y) {
        a = Conv <pads = [1, 1, 1, 1]> (x, w)  b = Conv (x, v)  y = Concat <axis = 1> (a, b) }""",
    "one value twice": """g (float[2,4,5,6] x, float[7,4,1,1] w) => (float[2,14,5,6] y) {
        a = Conv (x, w)  c = Concat <axis = 1> (a, a)  y = Relu (c) }""",
    "one value in two": """g (float[2,4,5,6] x, float[7,4,1,1] w, float[3,4,1,1] v)
        => (float[2,10,5,6] y, float[2,10,5,6] z) {
        a = Conv (x, w)  b = Conv (x, v)  c = Concat <axis = 1> (a, b)  y = Relu (c)
        d = Concat <axis = 1> (b, a)  z = Sigmoid (d) }""",
    "nested": """g (float[1,4,5,6] x, float[7,4,1,1] w, float[3,4,1,1] v, float[9,14,3,3] u)
            => (float[1,9,5,6] y) {
        a = Conv (x, w)  b = Conv (x, v)  c = Concat <axis = 1> (a, b)  d = Concat <axis = 1> (x, c)
        y = Conv <pads = [1, 1, 1, 1]> (d, u) }""",
    "nested thrice, used between": """g (float[1,4,5,6] x, float[7,4,1,1] w, float[3,11,3,3] v,
            float[5,14,3,3] u)
        => (float[1,19,5,6] y) {
        a = Conv (x, w)  b = Concat <axis = 1> (a, x)  c = Conv <pads = [1, 1, 1, 1]> (b, v)
        d = Concat <axis = 1> (b, c)  e = Conv <pads = [1, 1, 1, 1]> (d, u)
        f = Concat <axis = 1> (d, e)  y = Relu (f) }""",
    "of the batch": """g (float[2,4,5,6] x, float[7,4,1,1] w, float[7,4,3,3] v) => (float[4,7,5,6] y) {
        a = Conv (x, w)  b = Conv <pads = [1, 1, 1, 1]> (x, v)  c = Concat <axis = 0> (a, b)
            y = Relu (c) }""",
    "of rows, before a padded conv": """g (float[1,4,5,6] x, float[7,4,1,1] w, float[7,4,1,1] v,
            float[3,7,3,3] u)
        => (float[1,3,10,6] y) {
        a = Conv (x, w)  b = Conv (x, v)  c = Concat <axis = 2> (a, b)
            y = Conv <pads = [1, 1, 1, 1]> (c, u) }""",
    "a negative axis": """g (float[1,4,5,6] x, float[7,4,1,1] w) => (float[1,7,5,12] y) {
        a = Conv (x, w)  b = Relu (a)  c = Concat <axis = -1> (a, b)  y = Neg (c) }""",
    "inputs and constants": """g (float[1,2,3] x, float[1,4,3] k) => (float[1,8,3] y) {
        y = Concat <axis = 1> (x, k, x) }""",
    "a constant between": """g (float[1,4,5,6] x, float[7,4,1,1] w, float[1,2,5,6] k) => (float[1,16,5,6] y) {
        a = Conv (x, w)  b = Relu (a)  c = Concat <axis = 1> (a, k, b)  y = Neg (c) }""",
    "views": """g (float[1,4,6] x, float[1,24] x2) => (float[1,8,6] y) <int64[3] s = {1,4,6}> {
        a = Reshape (x2, s)  c = Concat <axis = 1> (x, a)  y = Relu (c) }""",
    "a Split put together again": """g (float[1,4,5,6] x, float[8,4,1,1] w) => (float[1,8,5,6] y)
            <int64[2] n = {3,5}> {
        a = Conv (x, w)  b, c = Split <axis = 1> (a, n)  y = Concat <axis = 1> (c, b) }""",
    "a pool and a resize": """g (float[1,4,6,6] x, float[5,4,1,1] w) => (float[1,14,6,6] y)
        <float[4] s = {1.0, 1.0, 2.0, 2.0}> {
        a = Conv (x, w)  p = MaxPool <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (a)
        q = AveragePool <kernel_shape = [2, 2], strides = [2, 2]> (x)  r = Resize <mode = "nearest",
            coordinate_transformation_mode = "asymmetric", nearest_mode = "floor"> (q, , s)
        y = Concat <axis = 1> (p, a, r) }""",
}


@pytest.mark.parametrize("name", CONCATS)
def test_concat(name: str) -> None:
    check_text(CONCATS[name])


def test_convs_write_straight_into_a_concat() -> None:
    text = """g (float[2,4,5,6] x, float[8,4,1,1] w, float[8,4,1,1] v, float[3,16,1,1] u)
            => (float[2,3,5,6] y) {
        a = Conv (x, w)  b = Conv (x, v)  c = Concat <axis = 1> (a, b)  y = Conv (c, u) }"""
    found = labels(check_text(text))
    assert sum("direct" in label for label in found) == 3
    assert sum("copy" in label for label in found) <= 2, found  # of the model's input and its output


def test_an_output_that_is_a_view_is_computed_in_place() -> None:
    text = """g (float[1,5,6,4] x, float[7,4,1,1] w) => (float[1,5,6,7] y, float[7] z) <int64[1] s = {7}> {
        a = Transpose <perm = [0, 3, 1, 2]> (x)  b = Conv (a, w)  y = Transpose <perm = [0, 2, 3, 1]> (b)
        c = GlobalAveragePool (b)  z = Reshape (c, s) }"""
    assert not [label for label in labels(check_text(text)) if "copy" in label]
    concat = """g (float[1,4,5,6] x, float[2,4,1,1] w) => (float[1,5,6,4] y) {
        a = Conv (x, w)  b = Relu (a)  c = Concat <axis = 1> (a, b)
        y = Transpose <perm = [0, 2, 3, 1]> (c) }"""
    assert sum("copy" in label for label in labels(check_text(concat))) <= 1, "of the input only"


OUTPUTS = {
    "an input": "g (float[2,3] x) => (float[2,3] x, float[2,3] y) { y = Relu (x) }",
    "an input by Identity": "g (float[2,3] x) => (float[2,3] y) { y = Identity (x) }",
    "an input reshaped": "g (float[2,3] x) => (float[6] y) <int64[1] s = {6}> { y = Reshape (x, s) }",
    "a value transposed twice": """g (float[1,4,5,6] x, float[7,4,1,1] w)
            => (float[1,5,6,7] y, float[1,6,7,5] z) {
        a = Conv (x, w)  y = Transpose <perm = [0, 2, 3, 1]> (a)
        z = Transpose <perm = [0, 3, 1, 2]> (a) }""",
    "a concatenation": """g (float[1,4,5,6] x, float[7,4,1,1] w) => (float[1,7,5,6] z, float[1,14,5,6] y) {
        a = Conv (x, w)  z = Relu (a)  y = Concat <axis = 1> (a, z) }""",
    "an input transposed": "g (float[2,3,4] x) => (float[4,3,2] y) { y = Transpose (x) }",
    "a part of an input": """g (float[2,6] x) => (float[2,2] y, float[2,4] z) <int64[2] n = {2,4}> {
        y, z = Split <axis = 1> (x, n) }""",
    "a view and its source": """g (float[2,3] x) => (float[2,3] y, float[3,2] z) <int64[2] s = {3,2}> {
        y = Relu (x)  z = Reshape (y, s) }""",
    "a constant": """g (float[2,3] x, float[4] c) => (float[2,3] y, float[4] z) {
        y = Relu (x)  z = Identity (c) }""",
    "a weight": """g (float[1,4,5,6] x, float[7,4,1,1] w) => (float[1,7,5,6] y, float[7,4,1,1] w) {
        y = Conv (x, w) }""",
    "a slot and the Concat": """g (float[1,4,5,6] x, float[7,4,1,1] w) => (float[1,7,5,6] a,
            float[1,11,5,6] y) {
        a = Conv (x, w)  y = Concat <axis = 1> (a, x) }""",
    "a conv's input with a halo": """g (float[1,4,5,6] x, float[7,4,1,1] w, float[3,7,3,3] v)
        => (float[1,7,5,6] a, float[1,3,5,6] y) { a = Conv (x, w)  y = Conv <pads = [1, 1, 1, 1]> (a, v) }""",
    "copies of a value": """g (float[1,4,5,6] x, float[7,4,1,1] w) => (float[1,7,5,6] a, float[1,7,5,6] y) {
        a = Conv (x, w)  y = Identity (a) }""",
    "a scalar": "g (float[] x) => (float[] y) { y = Relu (x) }",
    "a reshaped conv": """g (float[1,4,5,6] x, float[7,4,1,1] w) => (float[7,30] y) <int64[2] s = {7,30}> {
        a = Conv (x, w)  y = Reshape (a, s) }""",
    "an NHWC conv and its rows": """g (float[1,4,5,6] x, float[7,4,1,1] w) => (float[1,5,6,7] t,
            float[30,7] y)
        <int64[2] s = {30,7}> {
        a = Conv (x, w)  t = Transpose <perm = [0, 2, 3, 1]> (a)  y = Reshape (t, s) }""",
}


@pytest.mark.parametrize("name", OUTPUTS)
def test_outputs(name: str) -> None:
    check_text(OUTPUTS[name])


def test_outputs_are_fresh_memory() -> None:
    model = parse("g (float[2,3] x) => (float[3,2] y) <int64[2] s = {3,2}> { y = Reshape (x, s) }")
    module, x = convopt.optimize(model, threads=1), np.ones((2, 3), np.float32)
    y = module(x)
    y[...] = 5
    assert x.max() == 1
    assert module(x).max() == 1 and y.min() == 5


ISLANDS = {
    "between convs": """g (float[1,4,5,6] x, float[7,4,1,1] w, float[3,7,3,3] v) => (float[1,3,5,6] y) {
        a = Conv (x, w)  b = Asinh (a)  y = Conv <pads = [1, 1, 1, 1]> (b, v) }""",
    "of a slot": """g (float[1,4,5,6] x, float[7,4,1,1] w, float[5,4,1,1] v) => (float[1,7,5,6] y,
            float[1,12,5,6] z) {
        a = Conv (x, w)  b = Conv (x, v)  c = Concat <axis = 1> (a, b)  y = Asinh (a)  z = Neg (c) }""",
    "of a view": """g (float[2,3,4] x) => (float[4,3,2] y) { a = Transpose (x)  y = Asinh (a) }""",
    "of a slice": """g (float[1,4,5,6] x, float[7,4,1,1] w) => (float[1,3,5,6] y, float[1,7,5,6] z)
        <int64[1] from = {2}, int64[1] to = {5}, int64[1] axis = {1}> {
        a = Conv (x, w)  s = Slice (a, from, to, axis)  y = Asinh (s)  z = Neg (a) }""",
    "into a Concat": """g (float[1,4,5,6] x, float[7,4,1,1] w) => (float[1,11,5,6] y) {
        a = Conv (x, w)  b = Asinh (x)  c = Concat <axis = 1> (a, b)  y = Relu (c) }""",
    "and into a view": """g (float[2,3,4] x) => (float[6,4] y) <int64[2] s = {6,4}> {
        a = Asinh (x)  b = Reshape (a, s)  y = Relu (b) }""",
    "the model": "g (float[2,3] x) => (float[2,3] y) { y = Asinh (x) }",
    "two levels": """g (float[2,3] x) => (float[2,3] y) {
        a = Asinh (x)  b = Relu (a)  c = Asinh (b)  d = Asinh (a)  y = Add (c, d) }""",
}


@pytest.mark.parametrize("name", ISLANDS)
def test_islands(name: str) -> None:
    check_text(ISLANDS[name], may_fall_back="Asinh")


@pytest.mark.parametrize("name", [*SUBGRAPHS, *UNKNOWN])
def test_subgraphs_and_unknown_shapes(name: str) -> None:
    model = parse((SUBGRAPHS | UNKNOWN)[name])
    proto = ir.to_proto(model)
    module = convopt.optimize(model, threads=1)
    for seed in (1, 2, 3):
        inputs = draw(proto, {}, seed)
        expected, found = run_unoptimised(proto, inputs), module.run(dict(inputs))
        for output, array in expected.items():
            if array.dtype == object:
                assert found[output].tolist() == array.tolist()
            else:
                np.testing.assert_allclose(found[output], array, rtol=1e-5, atol=1e-5, err_msg=output)


def test_strings_that_are_outputs_as_they_are() -> None:
    """An input, a constant and one value twice: no kernel copies them."""
    text = """g (string[2] x, float[2] x_f) => (string[2] x, string[2] c, string[2] y)
        <string[2] c = {"a", "b"}> {
        y = Identity (x) }"""
    module = convopt.optimize(parse(text), threads=1)
    found = module.run({"x": np.array(["p", "q"], object), "x_f": np.zeros(2, np.float32)})
    assert {name: a.tolist() for name, a in found.items()} == {
        "x": ["p", "q"],
        "c": ["a", "b"],
        "y": ["p", "q"],
    }


def test_only_what_lies_between_unknown_shapes_falls_back() -> None:
    module = convopt.optimize(parse(UNKNOWN["a backbone, then a Gather"]), threads=1)
    assert [p.node for p in module.placement if p.where == "compiled"] == ["a"]
    module = convopt.optimize(parse(UNKNOWN["compiled nodes between"]), threads=1)
    reasons = {p.node: p.detail for p in module.placement}
    assert reasons["r"] == "it lies between nodes that pass values of unknown size"


def test_a_batch_of_none() -> None:
    """Nothing to compute is a fallback or nothing; the shape is right either way."""
    model = parse("""g (float[N,4,5,6] x, float[7,4,3,3] w) => (float[N,7,5,6] y) {
        a = Conv <pads = [1, 1, 1, 1]> (x, w)  y = Relu (a) }""")
    module = convopt.optimize(model, threads=2)
    for batch in (0, 2, 0):
        assert module(np.ones((batch, 4, 5, 6), np.float32)).shape == (batch, 7, 5, 6)


def test_parts_of_nothing() -> None:
    text = """g (float[2,0,3] x, float[2,4,3] x2) => (float[2,4,3] y) { c = Concat <axis = 1> (x, x2)
            y = Relu (c) }"""
    model = parse(text)
    x2 = np.random.default_rng(0).normal(size=(2, 4, 3)).astype(np.float32)
    y = convopt.optimize(model, threads=1)(np.zeros((2, 0, 3), np.float32), x2)
    np.testing.assert_array_equal(y, np.maximum(x2, 0))


def test_nodes_without_names() -> None:
    """Refusals go by name: two nameless nodes must not share one."""
    model = parse(
        "g (float[1,4,5,6] x, float[7,4,1,1] w) => (float[1,7,5,6] y) { a = Asinh (x)  y = Conv (a, w) }"
    )
    for node in model.graph:
        node.name = None
    module = convopt.optimize(model, threads=1)
    assert [line.split("(")[1].split(")")[0] for line in fallbacks(module)] == ["Asinh"]
    assert isinstance(model, ir.Model)


def test_an_output_of_undeclared_rank(tmp_path: Path) -> None:
    """What only a run tells is shown as such, and an artifact keeps it."""
    model = parse(UNKNOWN["a backbone, then a Gather"])
    model.graph.outputs[-1].shape = None
    module = convopt.optimize(model, threads=1)
    module.save(tmp_path / "m.convopt")
    for known in (module, convopt.load(tmp_path / "m.convopt")):
        assert known.outputs[-1].shape is None
        assert f"output {known.outputs[-1].name}: {known.outputs[-1].dtype} (...)" in known.summary()
