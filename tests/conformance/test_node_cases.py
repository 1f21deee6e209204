"""The onnx package's node tests and converted models, through the public interface.

The node tests feed everything as graph inputs, weights and axes too. Every case runs in that form, and where
an operator takes parameters it runs once more with those as initializers, which is the form that real models
have and kernels are made for.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from convopt.errors import ConvoptError
from tests import onnx_cases
from tests.conformance import support
from tests.onnx_cases import Case

pytestmark = pytest.mark.kernels

# Not comparable: random masks, and data that take a fractional length for length_resized.
EXCLUDED = {
    "test_training_dropout",
    "test_training_dropout_default",
    "test_training_dropout_default_mask",
    "test_training_dropout_mask",
    "test_resize_downsample_scales_linear_align_corners",
    "test_resize_downsample_scales_cubic_align_corners",
}

# Operators whose inputs from the second on are parameters: weights, statistics, shapes, axes, amounts.
PARAMETRIC = {
    *("Conv", "ConvTranspose", "Gemm", "MatMul", "BatchNormalization", "Clip", "PRelu"),
    *(
        "Expand",
        "Gather",
        "Pad",
        "Reshape",
        "Resize",
        "Slice",
        "Split",
        "Squeeze",
        "Tile",
        "Unsqueeze",
        "Upsample",
    ),
    *("ReduceL1", "ReduceL2", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum"),
    *("ReduceSumSquare", "ReduceLogSum", "ReduceLogSumExp"),
}

# float32 nodes of these operators have a kernel whatever their attributes, parameters being constants.
ALWAYS_COMPILED = {
    *("Conv", "ConvTranspose", "AveragePool", "GlobalAveragePool", "GlobalMaxPool", "Gemm", "MatMul"),
    *(
        "Add",
        "Sub",
        "Mul",
        "Div",
        "Relu",
        "LeakyRelu",
        "PRelu",
        "Clip",
        "Sigmoid",
        "Tanh",
        "HardSigmoid",
        "HardSwish",
    ),
    *("Exp", "Sqrt", "Erf", "Neg", "Abs", "Concat", "Slice", "Transpose", "DepthToSpace"),
    *("Softmax", "ReduceMean"),
}


def with_constants(case: Case) -> Case:
    """The same case with every input but the first as an initializer."""
    first, *parameters = case.inputs
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    kept = [value for value in model.graph.input if value.name == first]
    del model.graph.input[:]
    model.graph.input.extend(kept)
    model.graph.initializer.extend(numpy_helper.from_array(case.inputs[name], name) for name in parameters)
    inputs = {first: case.inputs[first]}
    return Case(f"{case.name}-constants", model, inputs, case.outputs, case.rtol, case.atol)


def variants(*modules: str) -> list[Case]:
    """The cases of these modules, those of parametric operators in both forms."""
    cases = []
    for case in onnx_cases.node_cases(*modules):
        if case.name in EXCLUDED:
            continue
        cases.append(case)
        if len(case.model.graph.node) == 1 and case.operators <= PARAMETRIC and len(case.inputs) > 1:
            cases.append(with_constants(case))
    return cases


def check(case: Case) -> None:
    """Expected outputs, and a kernel where one is promised."""
    try:
        module = support.compiled(case.model, case.inputs)
        outputs = support.run(module, case.inputs)
    except ConvoptError as error:
        if not runs_in_onnxruntime(case):
            pytest.skip(f"neither compiled nor implemented in onnxruntime: {error}")
        raise
    for (name, actual), expected in zip(outputs.items(), case.outputs, strict=True):
        assert actual.dtype == expected.dtype, name
        support.assert_close(actual, expected, case.rtol, max(case.atol, 1e-5), name)
    if promised(case):
        assert support.fallbacks(module) == []


def promised(case: Case) -> bool:
    """Whether the one node of the case has a kernel for sure; for an empty tensor it needs none."""
    single = len(case.model.graph.node) == 1 and len(case.outputs) == 1
    empty = any(value.size == 0 for value in (*case.inputs.values(), *case.outputs))
    return usual(case) and single and not empty and case.operators <= ALWAYS_COMPILED


def runs_in_onnxruntime(case: Case) -> bool:
    try:
        support.reference(case.model, case.inputs)
    except Exception:  # onnxruntime raises a type per cause, none of them public
        return False
    return True


def parameters(*modules: str, everything: bool = False) -> list[Any]:
    """The variants as pytest's parameters. Unless `everything`, those that only onnxruntime runs, because a
    parameter is no constant or a type is not float32, are left to `make test-slow`."""
    return [
        pytest.param(case, id=case.name, marks=[] if everything or usual(case) else [pytest.mark.slow])
        for case in variants(*modules)
    ]


def usual(case: Case) -> bool:
    floats = all(value.dtype == np.float32 for value in (*case.inputs.values(), *case.outputs))
    return floats and (case.operators.isdisjoint(PARAMETRIC) or len(case.inputs) == 1)


@pytest.mark.parametrize("case", parameters(*onnx_cases.CONVOLUTION, everything=True))
def test_convolution(case: Case) -> None:
    check(case)


@pytest.mark.parametrize("case", parameters(*onnx_cases.POOLING, everything=True))
def test_pooling(case: Case) -> None:
    check(case)


@pytest.mark.parametrize("case", parameters(*onnx_cases.LINEAR, *onnx_cases.REDUCTION))
def test_linear(case: Case) -> None:
    check(case)


@pytest.mark.parametrize("case", parameters(*onnx_cases.MOVEMENT, *onnx_cases.RESAMPLING))
def test_movement(case: Case) -> None:
    check(case)


@pytest.mark.parametrize("case", parameters(*onnx_cases.ELEMENTWISE))
def test_elementwise(case: Case) -> None:
    check(case)


@pytest.mark.parametrize("case", onnx_cases.converted_cases(), ids=lambda case: case.name)
def test_converted(case: Case) -> None:
    check(case)


def test_the_converted_convolutions_are_there() -> None:
    convolutions = [
        case for case in onnx_cases.converted_cases() if case.operators & {"Conv", "ConvTranspose"}
    ]
    assert len(convolutions) == 28
