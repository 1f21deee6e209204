"""A Program survives JSON; anything else is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from convopt.runtime.program import IslandStep, KernelStep, Placement, Program, TensorSpec
from convopt.runtime.program_json import from_json, to_json
from tests.runtime.snippets import at, floats

PROGRAM = Program(
    inputs=(floats("x", 1, 3), TensorSpec("i", "int64", ())),
    outputs=(TensorSpec("y", "float16", (2, -1)),),
    arena_bytes=4096,
    live_bytes=4000,
    steps=(
        KernelStep(
            "k",
            (at("arena", 0, 64), at("weights"), at("input", 1)),
            12,
            256,
            True,
            ("conv1", "relu1"),
            "conv",
        ),
        IslandStep(
            0, ((floats("p", 3), at("arena")),), ((floats("q", 0), at("output", 0, 8)),), ("nms",), "NMS"
        ),
    ),
    placement=(
        Placement("conv1", "Conv", "compiled", "Direct(6)"),
        Placement("nms", "NMS", "fallback", "no"),
    ),
    meta={"precision": "fp32", "cpu_flags": ["avx2"]},
)


def test_roundtrip() -> None:
    assert from_json(json.loads(json.dumps(to_json(PROGRAM)))) == PROGRAM


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (("arena_bytes",), -1, "expected a size, got -1"),
        (("arena_bytes",), 4.0, "expected an integer, got 4.0"),
        (("arena_bytes",), True, "expected an integer, got True"),
        (("steps", 0, "args", 0, 0), "stack", "'stack' is no space of memory"),
        (("steps", 0, "args", 0, 2), -8, "expected a size, got -8"),
        (("steps", 0, "args", 0), ["arena", 0], "not enough values"),
        (("steps", 0, "symbol"), None, "expected a text, got None"),
        (("steps", 1, "inputs"), 3, "not a program"),
        (("inputs", 0, 2), ["n"], "expected an integer, got 'n'"),
        (("placement", 0, "where"), "lost", "'lost' is no placement"),
        (("meta",), 3, "not a program"),
    ],
)
def test_what_is_no_program_is_refused(path: tuple[str | int, ...], value: Any, words: str) -> None:
    data: Any = json.loads(json.dumps(to_json(PROGRAM)))
    owner = data
    for key in path[:-1]:
        owner = owner[key]
    owner[path[-1]] = value
    with pytest.raises(ValueError, match=words):
        from_json(data)


@pytest.mark.parametrize("data", [None, [], 3, "program", {}])
def test_other_values_are_refused(data: Any) -> None:
    with pytest.raises(ValueError, match="not a program"):
        from_json(data)
