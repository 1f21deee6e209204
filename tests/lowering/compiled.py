"""Whole models in ONNX text through `convopt.optimize`, compared with the float64 oracle."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

import convopt
from tests.conformance.support import assert_within_scale, fallbacks
from tests.oracle.evaluate import evaluate
from tests.passes.support import draw, parse

# Of the output's largest magnitude: float32 sums of a few hundred products, Winograd's included.
TOLERANCE = 3e-5
HALF_TOLERANCE = 2e-3  # of float16 outputs: what they round to, and what came before


def check_text(text: str, may_fall_back: str = "", opset: int = 18, **options: Any) -> convopt.CompiledModule:
    """Compiles the graph, compares every output, and that nothing fell back but operators of that type.

    Inputs whose names begin with x are inputs, the others random constants.
    """
    return check_model(parse(text, opset), may_fall_back, **options)


def check_model(model: ir.Model, may_fall_back: str = "", **options: Any) -> convopt.CompiledModule:
    proto = ir.to_proto(model)
    inputs = draw(proto, {})
    expected = evaluate(proto, inputs)
    module = convopt.optimize(model, **({"threads": 2} | options))
    found = module.run(dict(inputs))
    assert list(found) == list(expected)
    for name, array in expected.items():
        tolerance = HALF_TOLERANCE if found[name].dtype == np.float16 else TOLERANCE
        assert_within_scale(found[name], array, tolerance, name)
    again = module.run(dict(inputs))  # memory that the first run left behind
    for name, array in found.items():
        np.testing.assert_array_equal(again[name], array, err_msg=name)
    unexpected = [line for line in fallbacks(module) if f"({may_fall_back})" not in line]
    assert not unexpected, unexpected
    return module


def labels(module: convopt.CompiledModule) -> list[str]:
    """What the kernels say they are, in order."""
    return [step.label for step in module.programs[-1].program.steps]
