"""The evaluator itself, against the onnx package's node data and against identities that need no data."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from tests import onnx_cases
from tests.onnx_cases import Case
from tests.oracle.conv import conv, conv_transpose
from tests.oracle.evaluate import UnsupportedOperator, evaluate, supported
from tests.oracle.pool import average_pool, max_pool
from tests.oracle.windows import EmptyOutput, sliding_windows

# Where the package's data differ from the operator's text, or test what the evaluator refuses.
DEVIATIONS = {
    "test_resize_downsample_scales_linear_align_corners": "fractional length * scale as length_resized",
    "test_resize_downsample_scales_cubic_align_corners": "fractional length * scale as length_resized",
    "test_batchnorm_example_training_mode": "training",
    "test_batchnorm_epsilon_training_mode": "training",
    "test_training_dropout_default": "training",
    "test_training_dropout_default_mask": "training",
    "test_training_dropout": "training",
    "test_training_dropout_mask": "training",
    "test_training_dropout_zero_ratio": "training",
    "test_training_dropout_zero_ratio_mask": "training",
}


def cases() -> list[Case]:
    found = onnx_cases.node_cases(*onnx_cases.COMPILED) + onnx_cases.converted_cases()
    return [case for case in found if supported(case.model) and case.name not in DEVIATIONS]


@pytest.mark.parametrize("case", cases(), ids=lambda case: case.name)
def test_node_data(case: Case) -> None:
    outputs = evaluate(case.model, case.inputs)
    for actual, expected in zip(outputs.values(), case.outputs, strict=True):
        assert actual.shape == expected.shape
        np.testing.assert_allclose(actual, expected.astype(actual.dtype), rtol=1e-3, atol=1e-6)


def test_enough_cases_are_covered() -> None:
    assert len(cases()) > 700


def test_unknown_operator_is_refused() -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[2] x) => (float[2] y) {y = Hardmax(x)}'
    )
    assert not supported(model)
    with pytest.raises(UnsupportedOperator, match="Hardmax"):
        evaluate(model, {"x": np.zeros(2, np.float32)})


def naive_conv(
    x: np.ndarray,
    w: np.ndarray,
    stride: tuple[int, int],
    dilation: tuple[int, int],
    pads: list[int],
    group: int,
) -> np.ndarray:
    """The definition, one product at a time."""
    sizes, kernel = x.shape[2:], w.shape[2:]
    out = [
        (sizes[i] + pads[i] + pads[i + 2] - (kernel[i] - 1) * dilation[i] - 1) // stride[i] + 1
        for i in (0, 1)
    ]
    y = np.zeros((x.shape[0], w.shape[0], *out))
    for n, m, i, j in np.ndindex(*y.shape):
        for c, u, v in np.ndindex(*w.shape[1:]):
            row, column = i * stride[0] + u * dilation[0] - pads[0], j * stride[1] + v * dilation[1] - pads[1]
            if 0 <= row < sizes[0] and 0 <= column < sizes[1]:
                channel = m // (w.shape[0] // group) * w.shape[1] + c
                y[n, m, i, j] += x[n, channel, row, column] * w[m, c, u, v]
    return y


def test_conv_is_its_definition() -> None:
    rng = np.random.default_rng(1)
    x, w = rng.standard_normal((2, 4, 7, 6)), rng.standard_normal((6, 2, 3, 2))
    attributes = {"strides": [2, 1], "dilations": [1, 2], "pads": [0, 2, 1, 1], "group": 2}
    expected = naive_conv(x, w, (2, 1), (1, 2), [0, 2, 1, 1], 2)
    np.testing.assert_allclose(conv(x, w, **attributes), expected, atol=1e-12)


@pytest.mark.parametrize("group", [1, 2])
def test_conv_transpose_is_the_adjoint_of_conv(group: int) -> None:
    """<conv(x), y> = <x, conv_transpose(y)> for the same weight, whatever the attributes."""
    rng = np.random.default_rng(2)
    attributes = {"strides": [2, 3], "dilations": [2, 1], "pads": [1, 0, 2, 1], "group": group}
    x, w = rng.standard_normal((2, 4, 11, 9)), rng.standard_normal((6, 4 // group, 3, 2))
    forward = conv(x, w, **attributes)
    y = rng.standard_normal(forward.shape)
    back = conv_transpose(y, w, output_padding=[(11 + 3 - 5) % 2, (9 + 1 - 2) % 3], **attributes)
    assert back.shape == x.shape
    np.testing.assert_allclose(np.vdot(forward, y), np.vdot(x, back), rtol=1e-12)


@pytest.mark.parametrize(
    ("size", "kernel", "stride", "dilation", "auto_pad", "begin", "end", "output"),
    [
        (7, 3, 2, 1, "SAME_UPPER", 1, 1, 4),
        (8, 3, 2, 1, "SAME_UPPER", 0, 1, 4),
        (8, 3, 2, 1, "SAME_LOWER", 1, 0, 4),
        (16, 3, 1, 2, "SAME_UPPER", 2, 2, 16),
        (8, 2, 1, 1, "SAME_LOWER", 1, 0, 8),
        (5, 1, 3, 1, "SAME_UPPER", 0, 0, 2),  # the stride leaves elements out: a pad is never negative
        (9, 3, 2, 2, "VALID", 0, 0, 3),
    ],
)
def test_auto_pad(
    size: int, kernel: int, stride: int, dilation: int, auto_pad: str, begin: int, end: int, output: int
) -> None:
    (window,) = sliding_windows([size], [kernel], [stride], [dilation], None, auto_pad)
    assert (window.begin, window.end, window.output) == (begin, end, output)


def test_ceil_mode_drops_a_window_that_starts_in_the_right_pad() -> None:
    # ceil((2 + 2 - 2) / 3) + 1 = 2 windows; the second would start at element 3 of begin pad 1 + input 2.
    (window,) = sliding_windows([2], [2], [3], [1], [1, 1], ceil_mode=1)
    assert window.output == 1


def test_average_pool_counts_pads_but_never_the_overhang() -> None:
    x = np.ones((1, 1, 4))
    attributes = {"kernel_shape": [3], "strides": [2], "pads": [1, 0], "ceil_mode": 1}
    np.testing.assert_allclose(average_pool(x, **attributes)[0, 0], [1, 1])
    np.testing.assert_allclose(average_pool(x, **attributes, count_include_pad=1)[0, 0], [2 / 3, 1])
    x = np.ones((1, 1, 5))
    np.testing.assert_allclose(average_pool(x, **attributes, count_include_pad=1)[0, 0], [2 / 3, 1, 1])


def test_max_pool_ignores_pads() -> None:
    y, indices = max_pool(-np.ones((1, 1, 3)), kernel_shape=[2], pads=[1, 1])
    np.testing.assert_array_equal(y, -np.ones((1, 1, 4)))
    np.testing.assert_array_equal(indices[0, 0], [0, 0, 1, 2])


def test_a_kernel_that_does_not_fit_is_an_error() -> None:
    with pytest.raises(EmptyOutput, match="axis 1: kernel extent 5 > padded input 4"):
        conv(np.zeros((1, 1, 5, 4)), np.zeros((1, 1, 1, 5)))
    with pytest.raises(EmptyOutput, match="axis 0"):
        conv_transpose(np.zeros((1, 1, 1)), np.zeros((1, 1, 2)), pads=[1, 1])
