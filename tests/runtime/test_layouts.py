"""Channels-last inputs and outputs: arrays of logical shape N, C, ... in another order of memory."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import onnx.parser
import onnx_ir as ir
import pytest
from onnx import numpy_helper

import convopt
from convopt.ir.layout import CHANNELS_LAST, ROW_MAJOR, set_boundary
from convopt.runtime.execution import ContextPool
from tests.oracle.conv import conv

pytestmark = pytest.mark.kernels
MODEL = """<ir_version: 10, opset_import: ["": 20]>
g (float[2, 5, 7, 9] x) => (float[2, 6, 7, 9] y) { c = Conv<pads = [1, 1, 1, 1]>(x, w)  y = Relu(c) }"""
RNG = np.random.default_rng(0)
X, W = (RNG.standard_normal(shape).astype(np.float32) for shape in ((2, 5, 7, 9), (6, 5, 3, 3)))


def model(inputs: str, outputs: str) -> ir.Model:
    proto = onnx.parser.parse_model(MODEL)
    proto.graph.initializer.append(numpy_helper.from_array(W, "w"))
    made = ir.from_proto(proto)
    set_boundary(made.graph, [inputs], [outputs])
    return made


@pytest.fixture(scope="module")
def expected() -> np.ndarray:
    return np.maximum(conv(X.astype(np.float64), W.astype(np.float64), pads=[1, 1, 1, 1]), 0)


@pytest.mark.parametrize("inputs, outputs", [*product((ROW_MAJOR, CHANNELS_LAST), repeat=2)])
def test_equal_in_every_order_of_memory(
    inputs: str, outputs: str, expected: np.ndarray, tmp_path: Path
) -> None:
    module = convopt.optimize(model(inputs, outputs), threads=1, verify="raise")
    module.save(tmp_path / "m.convopt")
    for one in (module, convopt.load(tmp_path / "m.convopt")):
        y = one(X)
        assert y.shape == expected.shape
        assert (np.moveaxis(y, 1, -1).flags.c_contiguous) == (outputs == CHANNELS_LAST)
        np.testing.assert_allclose(y, expected, atol=1e-5)
        last = np.moveaxis(np.ascontiguousarray(np.moveaxis(X, 1, -1)), -1, 1)
        assert np.array_equal(one(last), y)


def test_layouts_that_fit_are_not_copied() -> None:
    """Only the copy into the convolution's zero border is left of a channels-last boundary."""
    steps = convopt.optimize(model(CHANNELS_LAST, CHANNELS_LAST), threads=1).programs[0].program.steps
    both = convopt.optimize(model(ROW_MAJOR, ROW_MAJOR), threads=1).programs[0].program.steps
    assert [step.label for step in steps].count("copy") == 1 < [step.label for step in both].count("copy")


def test_a_program_runs_over_given_memory(expected: np.ndarray) -> None:
    module = convopt.optimize(model(CHANNELS_LAST, ROW_MAJOR), threads=2)
    x, y = np.ascontiguousarray(np.moveaxis(X, 1, -1)), np.empty(expected.shape, np.float32)
    ContextPool(2).run_at(module.programs[0], [x.ctypes.data], [y.ctypes.data])
    np.testing.assert_allclose(y, expected, atol=1e-5)
