"""Small random graphs against float64: layouts, views and memory reuse."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from hypothesis import given, settings

from tests.conformance import support
from tests.conformance.graphs import graphs
from tests.oracle.evaluate import evaluate

pytestmark = pytest.mark.kernels

Graph = tuple[onnx.ModelProto, dict[str, np.ndarray]]


def check(graph: Graph) -> None:
    model, inputs = graph
    module = support.compiled(model, inputs, threads=2)
    actual, expected = support.run(module, inputs), evaluate(model, inputs)
    assert list(actual) == list(expected)
    for name, value in expected.items():
        support.assert_within_scale(actual[name], value, 1e-4, f"{name} of\n{onnx.printer.to_text(model)}")
    assert support.fallbacks(module) == []


@settings(max_examples=40)
@given(graphs())
def test_graph(graph: Graph) -> None:
    check(graph)


@pytest.mark.slow
@settings(max_examples=400)
@given(graphs())
def test_many_graphs(graph: Graph) -> None:
    check(graph)
