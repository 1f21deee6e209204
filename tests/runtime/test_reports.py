"""What a module says about itself: summary and profile."""

from __future__ import annotations

import numpy as np

from convopt.runtime.loaded import LoadedProgram
from convopt.runtime.module import CompiledModule
from convopt.runtime.program import Placement, Program
from convopt.runtime.signature import TensorInfo
from tests.runtime.snippets import chain
from tests.runtime.test_islands import X, add_island

PLACEMENT = (
    Placement("c1", "Conv", "compiled", "halo; 3x3 s1 1x16->32 @1x1x28x28 direct"),
    Placement("c2", "Conv", "compiled", "im2col 1 images 9x64; 1x1 s1 1x64->8 @1x1x3x3 direct"),
    Placement(
        "c3", "ConvTranspose", "compiled", "1x1 s1 1x8->8 @1x1x2x2 direct; 1x1 s1 1x8->8 @1x1x2x2 direct"
    ),
    Placement("c4", "Conv", "fallback", "float64 is not compiled"),
    Placement("r", "Reshape", "view", ""),
    Placement("n", "NonMaxSuppression", "fallback", "operator not compiled"),
)


def placed() -> CompiledModule:
    loaded = add_island()
    meta = {"target": "cpu:haswell", "verified": "equal to the model"}
    program = Program(**{**vars(loaded.program), "placement": PLACEMENT, "meta": meta})
    programs = [LoadedProgram(program, loaded.image, loaded.weights, loaded.islands.models)]
    return CompiledModule(programs, threads=2, target="cpu:haswell")


def test_summary() -> None:
    module = placed()
    lines = module.summary().splitlines()
    assert lines[:3] == [
        "compiled for cpu:haswell, fp32, 2 threads",
        "  input x: float32 (3, 8)",
        "  output y: float32 (3, 8)",
    ]
    assert "  convs compiled: 3 of 4 (2 direct, 1 im2col + direct)" in lines
    assert "program for x (3, 8) on cpu:haswell" in lines
    assert "  verified: equal to the model" in lines
    assert "  nodes: 3 compiled, 1 views, 0 folded, 2 fallback" in lines
    assert "  steps: 2 kernels, 1 islands" in lines
    (memory,) = (line for line in lines if line.startswith("  memory: "))
    assert memory.startswith("  memory: arena 0.2 KiB, ")
    assert "weights 0.2 KiB" in memory
    assert lines[-2:] == [
        "  fallback Conv c4: float64 is not compiled",
        "  fallback NonMaxSuppression n: operator not compiled",
    ]
    assert module.placement == PLACEMENT
    assert repr(module) == "<CompiledModule: cpu:haswell, fp32, threads=2, programs=1>"


def test_summary_before_the_first_call() -> None:
    info = [TensorInfo("x", "float32", ("n", None))]
    module = CompiledModule([], threads=1, inputs=info, outputs=info, compile_shapes=lambda _: chain(1))
    assert module.summary().splitlines() == [
        "compiled for cpu, fp32, 1 thread",
        "  input x: float32 (n, ?)",
        "  output x: float32 (n, ?)",
        "nothing compiled yet: the shapes come with the first call",
    ]


def test_profile_has_every_step_in_order() -> None:
    profile = placed().profile(X, runs=3)
    assert [(step.label, step.kind, step.nodes) for step in profile.steps] == [
        ("k_scale", "kernel", ()),
        ("Add", "island", ("sum",)),
        ("k_scale", "kernel", ()),
    ]
    assert profile.runs == 3
    assert all(step.seconds >= 0 for step in profile.steps)
    assert profile.slowest(1)[0].seconds == max(step.seconds for step in profile.steps)
    table = str(profile).splitlines()
    assert len(table) == 1 + 3 + 1
    assert table[2].split()[-2:] == ["Add", "sum"]
    assert table[-1].endswith("whole run, median of 3")


def test_the_steps_add_up_to_the_run() -> None:
    profile = CompiledModule([chain(20000, 1)], threads=1).profile(np.ones((20000, 8), np.float32))
    assert [step.label for step in profile.steps] == ["scale first", "k_add", "k_reverse"]
    assert profile.seconds > 10e-6
    assert abs(sum(step.seconds for step in profile.steps) - profile.seconds) < 0.5 * profile.seconds
