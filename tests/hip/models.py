"""A small network with a kernel of every simple kind, and one with a node that nothing compiles."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import numpy_helper, parser

_NETWORK = """<ir_version: 8, opset_import: ["" : 17]>
net (float[1,5,13,11] x) => (float[1,7] y) {
  c = Conv<pads=[1,1,1,1], strides=[2,1]>(x, w, b)
  s = Sigmoid(c)
  d = Mul(c, s)
  p = MaxPool<kernel_shape=[2,2], strides=[2,2]>(d)
  e = Conv(p, v)
  f = Add(e, p)
  q = GlobalAveragePool(f)
  r = Flatten(q)
  y = Softmax<axis=1>(r)
}"""
SHAPES = {"w": (7, 5, 3, 3), "b": (7,), "v": (7, 7, 1, 1)}


def network() -> onnx.ModelProto:
    model = parser.parse_model(_NETWORK)
    rng = np.random.default_rng(0)
    for name, shape in SHAPES.items():
        array = rng.uniform(-1, 1, shape).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    return model


def with_fallback() -> onnx.ModelProto:
    """HardMax has no kernel."""
    model = network()
    model.graph.node[-1].op_type = "Hardmax"
    model.graph.node[-1].name = "last"
    return model


def products() -> onnx.ModelProto:
    """A convolution for im2col, and the product of its rows by its rows: transpositions on the way."""
    model = parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
products (float[1,20,9,8] x) => (float[24,24] y) {
  c = Conv<pads=[1,1,1,1]>(x, w)
  rows = Reshape(c, shape)
  turned = Transpose<perm=[1,0]>(rows)
  y = MatMul(rows, turned)
}""")
    weight = np.random.default_rng(2).uniform(-1, 1, (24, 20, 3, 3)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    model.graph.initializer.append(numpy_helper.from_array(np.array([24, 72]), "shape"))
    return model


def maxima() -> onnx.ModelProto:
    """Every operator that takes the larger of two numbers."""
    return parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
maxima (float[1,5,9,11] x, float[1,5,9,11] y) => (
  float[1,5,9,11] r, float[1,5,9,11] l, float[1,5,9,11] s, float[1,5,1,1] m, float[1,5,9,11] c,
  float[1,5,7,9] p, float[1,5,9,11] k
) <float low = {-0.5}, float high = {0.25}> {
  r = Relu(x)
  l = Max(x, y)
  s = Min(x, y)
  m = GlobalMaxPool(x)
  c = Clip(x, low, high)
  p = MaxPool<kernel_shape=[3,3]>(x)
  k = Softmax<axis=3>(x)
}""")


def sample() -> np.ndarray:
    return np.random.default_rng(1).uniform(-1, 1, (1, 5, 13, 11)).astype(np.float32)
