"""What kernels can't address is refused, not computed wrongly."""

from __future__ import annotations

import onnx
import pytest

from convopt.frontends.onnx_file import load
from convopt.grouping import lower_graph
from convopt.lowering.base import LoweringOptions
from convopt.lowering.program import Fallbacks, _Builder
from convopt.lowering.storage import Place
from convopt.passes import PassContext
from convopt.schedules.base import TensorView
from convopt.targets import host_cpu


def test_tensors_beyond_32_bit_indices_are_refused() -> None:
    """The kernels' indices are int32; such a group falls back instead of wrapping around."""
    view = TensorView((3, 5), (2**30, 1))
    assert view.reach == 2**31 + 4
    graph = onnx.parser.parse_graph("g (float[3,5] x) => (float[3,5] y) { y = Relu (x) }")
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=9)
    options = LoweringOptions(host_cpu(), 1)
    lowered = lower_graph(load(model), PassContext(), {}, None, options)
    builder = _Builder(lowered.graph, options)
    value = lowered.graph.inputs[0]
    builder.plan.places[value] = Place(view, 0)
    with pytest.raises(Fallbacks, match=r"spans 2\*\*31 elements"):
        builder.lower()
