"""Candidates for a DCU: the machine that measures compiles their source before anything is timed."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

import convopt
from convopt.codegen.cache import KernelCache
from convopt.lowering.base import LoweringOptions
from convopt.selection.plans import ranked
from convopt.targets import GPU_TARGETS
from convopt.tuning.candidate import compile_candidates
from convopt.tuning.runner import TOLERANCES, LocalRunner
from convopt.tuning.where import measurable, why_not_here
from tests.hip.stub_device import Stub
from tests.tuning.problems import conv, halves

pytestmark = pytest.mark.hip
DCU = GPU_TARGETS["dcu:k100-ai"]


@pytest.mark.slow
def test_source_is_compiled_before_it_is_timed(
    stub: Stub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the hipcc of the machine that measures, which refuses one of three plans."""
    problem = halves(conv(n=1, c=16, size=7, k=24))
    order = [plan for plan, _ in ranked(problem, DCU, 1)]
    plans = [order[0], next(p for p in order if p.expand_col), order[1]]
    candidates, failures = compile_candidates(
        problem, plans, LoweringOptions(DCU, 1), KernelCache(tmp_path), tmp_path, time.monotonic() + 200
    )
    assert failures == {}
    first, unfolded, refused = (candidate.path for candidate in candidates)
    symbol = convopt.load(refused).programs[0].program.steps[0].symbol
    hipcc = tmp_path / "toolkit" / "bin" / "hipcc"
    hipcc.parent.mkdir(parents=True)
    hipcc.write_text(
        f'#!/bin/sh\nfor one in "$@"; do case $one in *.hip) grep -q {symbol} $one &&'
        f' {{ echo refused; exit 1; }} ;; esac; done\nexec {stub.toolkit}/bin/hipcc "$@"\n'
    )
    hipcc.chmod(0o755)
    monkeypatch.setenv("ROCM_PATH", str(tmp_path / "toolkit"))
    monkeypatch.setenv("CONVOPT_CACHE", str(tmp_path / "cache"))
    runner = LocalRunner()
    try:
        said = runner.prepare([first, unfolded, refused], 300)
        assert isinstance(said, dict) and list(said) == [refused]
        assert f"kernels {symbol}" in said[refused] and "refused" in said[refused]
        hipcc.unlink()  # what is compiled is found by the compiler's path and version
        hipcc.symlink_to(stub.toolkit / "bin" / "hipcc")
        found = runner.probe(unfolded, first, TOLERANCES["float16"] / 10, 60)
        assert found.failure is None and found.seconds is not None and found.seconds > 0
    finally:
        runner.close()


def test_what_a_machine_with_a_dcu_measures(stub: Stub) -> None:
    assert why_not_here(DCU) is None
    assert "dcu:k100-ai gfx928 Hygon K100-AI" in measurable()
    stub.configure(arch="gfx936")
    assert "dcu:bw200 gfx936 Hygon BW200" in measurable()
    assert "Stub DCU (gfx936), is no Hygon K100-AI (gfx928)" in str(why_not_here(DCU))
    stub.configure(devices=0)
    assert not any(text.startswith("dcu:") for text in measurable())
