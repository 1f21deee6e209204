"""The graph passes on real models: everything static, no shape arithmetic left, equal after every pass."""

from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest

from convopt.bench.real_models import MODELS, fetch
from convopt.bench.sample_inputs import sample_inputs
from convopt.frontends.onnx_file import load
from convopt.passes import GRAPH_PASSES, PassContext, run_passes
from convopt.passes.check import CheckEachPass

ARITHMETIC = {"Shape", "Size", "Gather", "Range", "ConstantOfShape", "Cast", "Constant", "Identity", "Expand"}


@pytest.mark.parametrize("variant", [0, 1])
@pytest.mark.parametrize("name", MODELS)
def test_whole(name: str, variant: int) -> None:
    inputs = sample_inputs(name, variant)
    model = load(fetch(name))
    context = PassContext(shapes={key: array.shape for key, array in inputs.items()})
    check = CheckEachPass(model, context, tolerance=1e-4, inputs=inputs)
    run_passes(model, GRAPH_PASSES, context, check)
    assert not [n.text for n in check.notes if n.refused]
    assert check.notes

    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    for node in model.graph:
        assert node.op_type not in ARITHMETIC, node.name
        assert node.op_type != "BatchNormalization", node.name
        for value in node.outputs:
            assert value.shape is not None and value.shape.is_static(), value.name
            assert value.dtype is not None, value.name

    again = run_passes(model, GRAPH_PASSES, PassContext(shapes=context.shapes))
    assert [(p.name, r) for p, r in zip(GRAPH_PASSES, again, strict=True) if r.changed] == []


@pytest.mark.parametrize("name", MODELS)
def test_unbound(name: str) -> None:
    """Without shapes the passes do what they can and the model stays as general as it was."""
    model = load(fetch(name))
    before = [v.shape for v in model.graph.inputs]
    run_passes(model, GRAPH_PASSES, PassContext())
    assert [v.shape for v in model.graph.inputs] == before
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
