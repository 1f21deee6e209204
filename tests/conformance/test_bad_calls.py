"""Bad arguments: one error that names the input or option and what was expected."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import convopt
from convopt.errors import CompileError, ConvoptError, InputError
from tests.conformance.small import image, small
from tests.passes.support import parse

pytestmark = pytest.mark.kernels


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda m: m(image().astype(np.float64)), ["x", "float32", "float64"]),
        (lambda m: m(image().astype(np.int32)), ["x", "float32", "int32"]),
        (lambda m: m(image()[0]), ["x", "4", "(3, 6, 7)"]),
        (lambda m: m(image()[:, :2]), ["x", "3", "(1, 2, 6, 7)"]),
        (lambda m: m(image(), image()), ["x", "2", "1"]),
        (lambda m: m(), ["x"]),
        (lambda m: m.run({}), ["x"]),
        (lambda m: m.run({"image": image()}), ["image", "x"]),
        (lambda m: m.run({"x": image(), "image": image()}), ["image", "x"]),
        (lambda m: m(image().tolist()), ["x", "list"]),
    ],
    ids=["dtype", "integer", "rank", "shape", "excess", "none", "missing", "unknown", "also-unknown", "list"],
)
def test_bad_arrays_are_named(module: Any, call: Callable[[Any], Any], words: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        call(module)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("runs", [0, -3, 2.5])
def test_a_profile_needs_a_run(module: Any, runs: Any) -> None:
    with pytest.raises(InputError, match="runs is"):
        module.profile(image(), runs=runs)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"shapes": {"image": (1, 3, 6, 7)}}, ["image", "x"]),
        ({"shapes": {"x": (3, 6, 7)}}, ["x", "4"]),
        ({"shapes": {"x": (1, 2, 6, 7)}}, ["x", "3"]),
        ({"shapes": {"x": (1, 3, -1, 7)}}, ["x", "-1"]),
        ({"shapes": {"x": (1, 3, 1 << 64, 0)}}, ["x", "2^63"]),
        ({"threads": 0}, ["threads", "0"]),
        ({"threads": "2"}, ["threads", "'2'"]),
        ({"threads": 2.5}, ["threads", "2.5"]),
        ({"threads": True}, ["threads", "True"]),
        ({"threads": 10**6}, ["threads", "1000000"]),
        ({"im2col_cap": "3"}, ["im2col_cap", "'3'"]),
        ({"workspace_cap": 0}, ["workspace_cap", "0"]),
        ({"max_programs": 0}, ["max_programs", "0"]),
        ({"skip": "merge-pad"}, ["skip", "merge-pad"]),
        ({"skip": 3}, ["skip", "3"]),
        ({"skip": ["melt-pad"]}, ["melt-pad", "merge-pad"]),
        ({"verify": {"x": [1.0]}}, ["verify", "numpy array"]),
        ({"cache_dir": 3}, ["cache_dir", "3"]),
        ({"cache_dir": __file__}, ["cache_dir", "is a file"]),
        ({"cache_dir": ""}, ["cache_dir", "folder"]),
        ({"cache_dir": "a\0b"}, ["cache_dir", "folder"]),
        ({"shapes": {"x": (1, 3, 6.5, 7)}}, ["shapes", "6.5"]),
        ({"tune": "60s"}, ["tune", "'60s'", "seconds"]),
        ({"tune": float("nan")}, ["tune", "nan"]),
        ({"deterministic": "no"}, ["deterministic", "'no'"]),
        ({"keep_fp32": 3, "precision": "fp16"}, ["keep_fp32", "3"]),
        ({"progress": True}, ["progress", "function"]),
        ({"target": "abacus"}, ["abacus", "cpu"]),
        ({"precision": "fp7"}, ["fp7", "fp32"]),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "names",
)
def test_bad_options_are_named(options: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(ConvoptError) as caught:
        convopt.optimize(small(), **options)
    for word in words:
        assert word in str(caught.value)


def test_what_nothing_computes_is_named() -> None:
    """Neither kernels nor onnxruntime have convolutions of float64."""
    text = """g (double[1,1,2,2] x, double[1,1,1,1] w) => (double[1,1,2,2] stem) { stem = Conv (x, w) }"""
    with pytest.raises(CompileError, match=r"Conv 'stem': Conv of DOUBLE.*expected .*float32 instead of"):
        convopt.optimize(parse(text))
