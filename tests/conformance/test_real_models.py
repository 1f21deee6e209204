"""Real models with trained weights, whole: equal to onnxruntime, compiled, in little memory."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import pytest

import convopt
from convopt.bench.real_models import MODELS, fetch
from convopt.bench.sample_inputs import sample_inputs
from tests.conformance import support
from tests.models import KINDS, kernels_required, unbound

pytestmark = pytest.mark.kernels


@pytest.mark.parametrize("variant", [0, 1], ids=["used", "other"])
@pytest.mark.parametrize("name", MODELS)
def test_model(name: str, variant: int) -> None:
    model = onnx.load(fetch(name))
    inputs = sample_inputs(name, variant)
    module = support.compiled(model, inputs, threads=2)
    actual, expected = support.run(module, inputs), support.reference(unbound(model), inputs)
    assert list(actual) == list(expected)
    for output, value in expected.items():
        assert np.isfinite(value).all()
        support.assert_within_scale(actual[output], value, 1e-4, output)

    kinds = {
        where: Counter(KINDS[p.op] for p in module.placement if p.op in KINDS and p.where == where)
        for where in ("compiled", "fallback")
    }
    assert kinds["compiled"] == kernels_required(model)
    assert not kinds["fallback"], support.fallbacks(module)

    program = module.programs[-1].program
    assert program.arena_bytes <= 1.3 * program.live_bytes


def test_one_module_at_both_shapes() -> None:
    """Dims that the file leaves open are bound by each call."""
    module = convopt.optimize(fetch("pnet"), threads=2)
    model = onnx.load(fetch("pnet"))
    for variant in (0, 1, 0):
        inputs = sample_inputs("pnet", variant)
        expected = support.reference(unbound(model), inputs)
        for output, value in support.run(module, inputs).items():
            support.assert_within_scale(value, expected[output], 1e-4, output)
