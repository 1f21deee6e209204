"""A Program of another chip's schedules through the OpenCL driver: its waves, tiles and units, emulated."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

import convopt
from convopt.runtime.device_program import DeviceProgram
from convopt.targets import find_target
from convopt.targets.gpu import GPU_TARGETS
from tests.device_harness import as_opencl, emulated

pytestmark = pytest.mark.opencl

# Convolutions with tails in pixels, channels and the reduction; groups, a residual, a pool, a product.
_NETWORK = """<ir_version: 8, opset_import: ["" : 17]>
net (float[2,16,13,11] x) => (float[2,10] y) {
  a = Conv<pads=[1,1,1,1]>(x, w1, b1)
  r = Relu(a)
  b = Conv<pads=[1,1,1,1], strides=[2,2]>(r, w2)
  c = Conv(b, w3, b3)
  s = Add(b, c)
  d = Conv<pads=[1,1,1,1], group=40>(s, w4)
  m = Sigmoid(d)
  p = MaxPool<kernel_shape=[2,2], strides=[2,2]>(m)
  q = GlobalAveragePool(p)
  f = Flatten(q)
  g = MatMul(f, w5)
  y = Softmax<axis=1>(g)
}"""
_SHAPES = {
    "w1": (24, 16, 3, 3), "b1": (24,), "w2": (40, 24, 3, 3), "w3": (40, 40, 1, 1), "b3": (40,),
    "w4": (40, 1, 3, 3), "w5": (40, 10),
}  # fmt: skip


def _model() -> onnx.ModelProto:
    model = parser.parse_model(_NETWORK)
    rng = np.random.default_rng(0)
    for name, shape in _SHAPES.items():
        array = rng.uniform(-1, 1, shape) / np.sqrt(np.prod(shape[1:]) or 1)
        model.graph.initializer.append(numpy_helper.from_array(array.astype(np.float32), name))
    return model


def _run(precision: str, unit: str | None) -> np.ndarray:
    """unit: what the kernels must call."""
    module = convopt.optimize(_model(), target="opencl", precision=precision, verify=False)
    (program,) = module.programs
    assert isinstance(program, DeviceProgram)
    assert unit is None or any(unit.encode() in source for source in program.binaries.values())
    for name, source in program.binaries.items():
        program.binaries[name] = emulated(source.decode(), 16).encode()
    x = np.random.default_rng(1).uniform(-1, 1, (2, 16, 13, 11)).astype(np.float32)
    result: np.ndarray = module(x)
    return result


@pytest.mark.parametrize(
    ("precision", "tolerance", "unit"),
    [("fp32", 1e-5, "mmac_16x16x8_float32"), ("fp16", 2e-3, "mmac_16x16x16_float16")],
)
def test_the_same_results_with_the_schedules_of_a_dcu(
    precision: str, tolerance: float, unit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = _run(precision, None)
    retargeted = replace(as_opencl(find_target("dcu:k100-ai")), name="opencl")
    monkeypatch.setitem(GPU_TARGETS, "opencl", retargeted)
    found = _run(precision, f"convopt_{unit}(")
    assert np.abs(found - expected).max() <= tolerance * np.abs(expected).max()
