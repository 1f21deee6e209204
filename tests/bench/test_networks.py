"""The networks: the papers' convolutions and parameters, activations of order 1, right when compiled."""

from __future__ import annotations

from collections import Counter
from math import prod

import numpy as np
import onnx
import pytest

import convopt
from convopt.bench.cases import ConvCase
from convopt.bench.compare import max_error
from convopt.bench.engines import onnxruntime_call
from convopt.bench.graph_builder import GraphBuilder
from convopt.bench.networks import NETWORKS
from convopt.bench.suites import suite
from convopt.errors import InputError

# The two with the most weights take as long as all others together.
MOST_SLOW = [
    pytest.param(name, marks=pytest.mark.slow) if name in ("vgg16", "unet") else name for name in NETWORKS
]
SMALL = {"resnet50": 33, "mobilenet_v2": 33, "vgg16": 32, "unet": 32, "inception": 75}


@pytest.fixture
def hollow(monkeypatch: pytest.MonkeyPatch) -> tuple[Counter[ConvCase], Counter[str]]:
    """Networks get no weights; their convolutions are counted instead, and their constants' elements."""
    cases: Counter[ConvCase] = Counter()
    elements: Counter[str] = Counter()
    conv = GraphBuilder.conv

    def counted(self, x, channels, kernel, stride=1, pad=None, groups=1, bias=False):
        if isinstance(kernel, int) and pad is None:  # what a ConvCase can say, with the suites' padding
            pads = kernel // 2
            cases[
                ConvCase(1, x.channels, x.height, x.width, channels, kernel, kernel, stride, pads, 1, groups)
            ] += 1
        return conv(self, x, channels, kernel, stride, pad, groups, bias)

    def constant(self, role, array):
        elements[role] += np.size(array)
        return role

    def weight(self, shape, fan_in, x):
        elements["weight"] += prod(shape)
        return "weight"

    monkeypatch.setattr(GraphBuilder, "conv", counted)
    monkeypatch.setattr(GraphBuilder, "_constant", constant)
    monkeypatch.setattr(GraphBuilder, "_weight", weight)
    return cases, elements


@pytest.mark.parametrize("name", ["resnet50", "mobilenet_v2", "vgg16", "unet"])
def test_a_network_has_the_convolutions_of_its_suite(name: str, hollow) -> None:
    cases, _ = hollow
    NETWORKS[name]()
    assert cases == Counter(dict(suite(name)))


@pytest.mark.parametrize(
    ("name", "count"),
    [
        # As torchvision documents its models; Inception-v3 less the auxiliary classifier's 3 326 696.
        ("resnet50", 25_557_032),
        ("mobilenet_v2", 3_504_872),
        ("vgg16", 138_357_544),
        ("inception", 27_161_264 - 3_326_696),
    ],
)
def test_a_network_has_the_published_number_of_parameters(name: str, count: int, hollow) -> None:
    _, elements = hollow
    NETWORKS[name]()
    assert elements["weight"] + elements["bias"] + elements["scale"] == count


@pytest.mark.parametrize("name", MOST_SLOW)
def test_a_network_is_valid_and_its_activations_are_of_order_1(name: str) -> None:
    model = NETWORKS[name](batch=2, size=SMALL[name])
    onnx.checker.check_model(model, full_check=True)
    (output,) = model.graph.output
    for node in model.graph.node:
        if node.output[0] != output.name:
            model.graph.output.append(onnx.helper.make_empty_tensor_value_info(node.output[0]))
    values = onnxruntime_call(model, {"x": _input(name, 2)}, 1, optimize=False).outputs()
    assert values[0].shape == tuple(d.dim_value for d in output.type.tensor_type.shape.dim)
    sizes = [float(np.sqrt(np.mean(np.square(value)))) for value in values]
    assert 0.01 < min(sizes) < max(sizes) < 4


def test_a_network_is_the_same_each_time() -> None:
    first, second = (NETWORKS["mobilenet_v2"](size=32).SerializeToString() for _ in range(2))
    assert first == second


@pytest.mark.parametrize(("name", "size"), [("vgg16", 31), ("inception", 74)])
def test_too_small_an_input_is_refused(name: str, size: int) -> None:
    with pytest.raises(InputError, match=f"{name}: the input of size {size} is too small: MaxPool|Conv"):
        NETWORKS[name](size=size)


@pytest.mark.slow
@pytest.mark.kernels
@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_compiled_is_equal_to_onnxruntime(name: str) -> None:
    model, inputs = NETWORKS[name](size=SMALL[name]), {"x": _input(name, 1)}
    module = convopt.optimize(model, threads=2)
    expected = onnxruntime_call(model, inputs, 2, optimize=False).outputs()
    assert max_error(list(module.run(inputs).values()), expected) < 1e-4
    assert not [place for place in module.placement if place.where == "fallback"]
    assert "BatchNormalization" not in {p.op for p in module.placement if p.where == "compiled"}
    assert module.programs[-1].program.arena_to_live <= 1.3


def _input(name: str, batch: int) -> np.ndarray:
    shape = (batch, 3, SMALL[name], SMALL[name])
    return np.random.default_rng(1).standard_normal(shape, np.float32)
