"""Models at the edges of what the compiler takes, on an OpenCL device, beside onnxruntime unoptimised.

Dynamic and empty batches, other ranks, types and operators without kernels, several inputs and outputs.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

import convopt
from tests.conformance import support

pytestmark = pytest.mark.opencl
HEAD = '<ir_version: 8, opset_import: ["" : 17]>\n'
Shape = tuple[int, ...]


def _case(
    name: str, text: str, weights: dict[str, Shape], *calls: dict[str, Shape], slow: bool = True
) -> Any:
    return pytest.param(text, weights, calls, id=name, marks=[pytest.mark.slow] if slow else [])


CASES = [
    _case(
        "dynamic batch, empty too",
        "g (float[N,3,9,8] x) => (float[N,5,9,8] y) { y = Conv<pads=[1,1,1,1]>(x,w) }",
        {"w": (5, 3, 3, 3)}, {"x": (2, 3, 9, 8)}, {"x": (1, 3, 9, 8)}, {"x": (0, 3, 9, 8)}, slow=False,
    ),
    _case(
        "groups, dilation, uneven pads",
        "g (float[1,12,13,11] x) => (float[1,8,H,W] y)"
        " { y = Conv<pads=[2,1,3,0],group=4,dilations=[2,3],strides=[2,1]>(x,w) }",
        {"w": (8, 3, 3, 2)}, {"x": (1, 12, 13, 11)},
    ),
    _case(
        "transposed with output_padding",
        "g (float[2,6,5,7] x) => (float[2,8,H,W] y)"
        " { y = ConvTranspose<pads=[1,0,1,2],group=2,strides=[3,2],output_padding=[1,1]>(x,w,b) }",
        {"w": (6, 4, 3, 4), "b": (8,)}, {"x": (2, 6, 5, 7)},
    ),
    _case(
        "1-D", "g (float[3,6,50] x) => (float[3,8,L] y) { y = Conv<pads=[2,2],strides=[2]>(x,w) }",
        {"w": (8, 6, 5)}, {"x": (3, 6, 50)},
    ),
    _case(
        "1-D transposed",
        "g (float[3,6,20] x) => (float[3,8,L] y) { y = ConvTranspose<pads=[2,2],strides=[2]>(x,w) }",
        {"w": (6, 8, 5)}, {"x": (3, 6, 20)},
    ),
    _case(
        "3-D with pools",
        "g (float[1,3,5,9,8] x) => (float[1,4,D,H,W] y) { c = Conv<pads=[1,1,1,1,1,1]>(x,w)"
        " p = MaxPool<kernel_shape=[2,2,2]>(c) y = AveragePool<kernel_shape=[1,3,3],pads=[0,1,1,0,1,1]>(p) }",
        {"w": (4, 3, 3, 3, 3)}, {"x": (1, 3, 5, 9, 8)},
    ),
    _case(
        "several inputs and outputs, one an input",
        "g (float[2,3,6,6] a, float[2,3,6,6] b, float[1] s) => (float[2,3,6,6] u, float[2,4,6,6] v,"
        " float[2,3,6,6] a2) { t = Add(a,b) u = Mul(t,s) v = Conv(u,w) a2 = Identity(a) }",
        {"w": (4, 3, 1, 1)}, {"a": (2, 3, 6, 6), "b": (2, 3, 6, 6), "s": (1,)},
    ),
    _case(
        "an island with integers between kernels",
        "g (float[2,5,6,6] x) => (int64[2,3,6,6] i, float[2,4,6,6] y)"
        " { k = Constant<value = int64[1] {3}>() t, i = TopK<axis=1>(x,k) y = Conv(t,w) }",
        {"w": (4, 3, 1, 1)}, {"x": (2, 5, 6, 6)},
    ),
    _case(
        "a size that the data decide",
        "g (float[2,5,6,6] x) => (int64[4,N] i) { c = Conv(x,w) r = Relu(c) i = NonZero(r) }",
        {"w": (4, 5, 1, 1)}, {"x": (2, 5, 6, 6)},
    ),
    _case("nothing to compute", "g (float[2,5] x) => (float[2,5] y) { y = Identity(x) }", {}, {"x": (2, 5)}),
    _case(
        "a constant output",
        "g (float[2] x) => (float[2] y, float[2] c)"
        " { c = Constant<value = float[2] {1.0, 2.0}>() y = Add(x, c) }",
        {}, {"x": (2,)},
    ),
    _case("a scalar", "g (float x) => (float y) { y = Exp(x) }", {}, {"x": ()}),
    _case(
        "truth values", "g (float[3,4] x, float[3,4] z) => (bool[3,4] y) { y = Greater(x, z) }",
        {}, {"x": (3, 4), "z": (3, 4)},
    ),
    _case(
        "a recurrent layer",
        "g (float[4,2,3] x) => (float[4,1,2,5] y) { y, h, c = LSTM<hidden_size=5>(x,w,r) }",
        {"w": (1, 20, 3), "r": (1, 20, 5)}, {"x": (4, 2, 3)},
    ),
    _case(
        "LayerNormalization", "g (float[2,7,24] x) => (float[2,7,24] y) { y = LayerNormalization(x,s,b) }",
        {"s": (24,), "b": (24,)}, {"x": (2, 7, 24)},
    ),
    _case(
        "a vector times matrices", "g (float[5] a, float[3,5,2] b) => (float[3,2] y) { y = MatMul(a, b) }",
        {}, {"a": (5,), "b": (3, 5, 2)},
    ),
    _case(
        "products broadcast on both sides",
        "g (float[4,1,6,5] a, float[3,5,7] b) => (float[4,3,6,7] y) { m = MatMul(a, b) y = Relu(m) }",
        {}, {"a": (4, 1, 6, 5), "b": (3, 5, 7)},
    ),
    _case(
        "a computed weight",
        "g (float[1,4,8,8] x, float[4,4,3,3] w) => (float[1,4,8,8] y)"
        " { c = Conv<pads=[1,1,1,1]>(x,w) y = Relu(c) }",
        {}, {"x": (1, 4, 8, 8), "w": (4, 4, 3, 3)},
    ),
    _case(
        "a kernel larger than its input",
        "g (float[1,2,3,3] x) => (float[1,2,1,1] y) { y = Conv<pads=[4,4,4,4]>(x,w) }",
        {"w": (2, 2, 11, 11)}, {"x": (1, 2, 3, 3)},
    ),
]  # fmt: skip


@pytest.mark.parametrize(("text", "weights", "calls"), CASES)
def test_equals_onnxruntime(
    text: str, weights: dict[str, Shape], calls: tuple[dict[str, Shape], ...]
) -> None:
    rng = np.random.default_rng(0)
    model = parser.parse_model(HEAD + text)
    for name, shape in weights.items():
        array = rng.normal(size=shape).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    onnx.checker.check_model(model)
    module = convopt.optimize(model, target="opencl")
    for shapes in calls:
        feeds = {name: np.asarray(rng.normal(size=shape), np.float32) for name, shape in shapes.items()}
        found = module.run(feeds)
        for name, expected in support.reference(model, feeds).items():
            assert found[name].dtype == expected.dtype
            if expected.dtype.kind in "biu":
                np.testing.assert_array_equal(found[name], expected)
            else:
                support.assert_within_scale(found[name], expected, 1e-5, name)


@pytest.mark.slow
def test_a_model_in_float16_stays_in_it() -> None:
    """Inputs, weights and outputs are half: no kernel converts them, sums are float32."""
    rng = np.random.default_rng(0)
    text = (
        "g (float16[2,6,9,8] x) => (float16[2,10,9,8] y)"
        " { c = Conv<pads=[1,1,1,1],group=2>(x,w) y = Relu(c) }"
    )
    model = parser.parse_model(HEAD + text)
    weight = rng.normal(size=(10, 3, 3, 3)).astype(np.float16)
    model.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    module = convopt.optimize(model, target="opencl", precision="fp16")
    feeds = {"x": rng.normal(size=(2, 6, 9, 8)).astype(np.float16)}
    (found,) = module.run(feeds).values()
    (expected,) = support.reference(model, feeds).values()
    assert found.dtype == np.float16
    support.assert_within_scale(found, expected, 2e-3)
