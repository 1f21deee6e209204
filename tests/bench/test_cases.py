"""Benchmark cases: their text, their arithmetic, the networks they come from, the models made of them."""

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from convopt.bench.cases import ConvCase, conv_model, parse_case
from convopt.bench.suites import SUITES, suite
from convopt.errors import InputError


def test_a_case_reads_its_own_text() -> None:
    case = ConvCase(2, 8, 14, 15, 16, 3, 5, stride=2, pad=1, dilation=2, groups=4)
    assert parse_case(case.text) == case
    assert case.text == "n=2,c=8,h=14,w=15,k=16,r=3,s=5,stride=2,pad=1,dilation=2,groups=4"


def test_flop_of_a_contest_case() -> None:
    # 16 x 64 x 64 outputs, 27 channels, 3 x 3 x 128 products each, two operations a product.
    case = parse_case("n=16,c=128,h=64,w=64,k=27,r=3,s=3,stride=1,pad=1")
    assert case.flop == 2 * (16 * 64 * 64) * 27 * (3 * 3 * 128)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("n=1,c=1", "h, k, r, s, w missing"),
        ("n=1,c=1,h=1,w=1,k=1,r=1,s=1,q=2", "unknown field 'q'"),
        ("n=x,c=1,h=1,w=1,k=1,r=1,s=1", "n='x' is not an integer"),
        ("n=1,n=1,c=1,h=1,w=1,k=1,r=1,s=1", "n is given twice"),
        ("n=0,c=1,h=1,w=1,k=1,r=1,s=1", "n=0, expected at least 1"),
        ("n=1,c=3,h=4,w=4,k=4,r=1,s=1,groups=2", "groups=2 does not divide"),
        ("n=1,c=1,h=2,w=2,k=1,r=3,s=3", "the kernel does not fit"),
    ],
)
def test_a_wrong_case_is_refused_in_words(text: str, reason: str) -> None:
    with pytest.raises(InputError, match=reason.replace("(", r"\(")):
        parse_case(text)


@pytest.mark.parametrize(
    ("name", "convs", "giga_mac"),
    [
        # Convolutions' multiply-adds as published or as they follow from the papers' tables, without the
        # classifiers: ResNet-50 v1.5 4.09 G, MobileNetV2 0.30 G, VGG-16 15.35 G.
        ("resnet50", 53, 4.09),
        ("mobilenet_v2", 52, 0.30),
        ("vgg16", 13, 15.35),
        ("unet", 19, 46.0),
        ("contest", 12, 124.6),
    ],
)
def test_suites_hold_the_networks_convolutions(name: str, convs: int, giga_mac: float) -> None:
    cases = suite(name)
    assert sum(count for _, count in cases) == convs
    assert sum(case.flop * count for case, count in cases) / 2e9 == pytest.approx(giga_mac, rel=0.01)


def test_batch_replaces_n_and_all_has_every_case_once() -> None:
    assert {case.n for case, _ in suite("contest", batch=3)} == {3}
    everything = suite("all")
    assert len({case for case, _ in everything}) == len(everything)
    assert sum(count for _, count in everything) == sum(c for name in SUITES for _, c in suite(name))


def test_both_layouts_of_a_case_are_the_same_convolution() -> None:
    case = ConvCase(2, 6, 9, 8, 4, 3, 2, stride=2, pad=1, dilation=1, groups=2)
    nchw, nhwc = conv_model(case, "NCHW"), conv_model(case, "NHWC")
    for model in (nchw, nhwc):
        onnx.checker.check_model(model, full_check=True)
    x = np.random.default_rng(1).standard_normal((2, 6, 9, 8)).astype(np.float32)
    y = _run(nchw, x)
    assert y.shape == (2, 4, *case.output_size)
    np.testing.assert_allclose(_run(nhwc, x.transpose(0, 2, 3, 1)), y.transpose(0, 2, 3, 1), atol=1e-5)


def _run(model: onnx.ModelProto, x: np.ndarray) -> np.ndarray:
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {"x": np.ascontiguousarray(x)})[0]
