"""Tuning for GPUs, on an OpenCL device: plans measured, records kept, used, and right."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import convopt
from convopt.cli import tune as tune_command
from convopt.cli.main import main
from convopt.codegen.cache import KernelCache
from convopt.compiler import model_problems
from convopt.lowering.base import LoweringOptions
from convopt.schedules.conv_problem import ConvProblem
from convopt.schedules.gpu_implicit_gemm import ImplicitGemm
from convopt.selection.conv_plan import ConvPlan
from convopt.selection.plans import CAP, choose_plan, plan_seconds, ranked, why_not
from convopt.targets import GPU_TARGETS
from convopt.tuning.candidate import compile_candidates
from convopt.tuning.identity import task_key
from convopt.tuning.runner import TOLERANCES, LocalRunner, Probe
from convopt.tuning.search import neighbours
from convopt.tuning.store import Store
from convopt.tuning.tuner import Task, Tuner
from tests.cli.fields import undocumented
from tests.oracle.conv import conv as oracle_conv
from tests.oracle.conv import conv_transpose as oracle_conv_transpose
from tests.tuning.problems import conv, halves

OPENCL = GPU_TARGETS["opencl"]
OPTIONS = LoweringOptions(OPENCL, 1)
Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(0)
X = RNG.standard_normal((2, 20, 9, 11), np.float32)
CONV = RNG.standard_normal((24, 20, 3, 3), np.float32)
TRANSPOSED = RNG.standard_normal((20, 12, 3, 3), np.float32)
MATRIX, PRODUCT = RNG.standard_normal((13, 36), np.float32), RNG.standard_normal((36, 40), np.float32)


def model(op: str, x: Array, weight: Array, **attributes: Any) -> onnx.ModelProto:
    node = helper.make_node(op, ["x", "w"], ["y"], **attributes)
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("x", x.shape), ("y", None))
    ]
    graph = helper.make_graph([node], "g", ends[:1], ends[1:], [numpy_helper.from_array(weight, "w")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


MODELS = {
    "Conv": (
        model("Conv", X, CONV, pads=[1] * 4),
        X,
        oracle_conv(X.astype(float), CONV.astype(float), pads=[1] * 4),
    ),
    "ConvTranspose": (
        model("ConvTranspose", X, TRANSPOSED, strides=[2, 2]),
        X,
        oracle_conv_transpose(X.astype(float), TRANSPOSED.astype(float), strides=[2, 2]),
    ),
    "Gemm": (model("Gemm", MATRIX, PRODUCT), MATRIX, MATRIX.astype(float) @ PRODUCT.astype(float)),
}


def kernels(module: convopt.CompiledModule) -> list[tuple[str, Any]]:
    return [(step.label, step.launch) for step in module.programs[0].program.steps]


def close(found: Array, expected: Array, tolerance: float) -> None:
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() <= tolerance * np.abs(expected).max()


@pytest.mark.opencl
@pytest.mark.slow
@pytest.mark.parametrize(("op", "precision"), [("Conv", "fp32"), ("ConvTranspose", "fp16"), ("Gemm", "fp16")])
def test_records_decide_for_every_problem_of_a_model(op: str, precision: str, tmp_path: Path) -> None:
    """A plan that nobody would choose, said to be the best: it is compiled, and computes the same."""
    source, x, expected = MODELS[op]
    problems, _ = model_problems(source, None, 1, target=OPENCL, precision=precision)
    assert len(problems) >= (4 if op == "ConvTranspose" else 1)  # its phases
    with Store(tmp_path / "tuning.sqlite3") as store:
        for problem in problems:
            baseline = choose_plan(problem, OPENCL, 1)
            odd = next(p for p, _ in ranked(problem, OPENCL, 1)[30:] if p.expand_col == (problem.taps > 1))
            store.add_record(task_key(problem, OPENCL, 1), odd, 1e-3, 0.5, baseline)
    arguments = {"target": "opencl", "precision": precision, "cache_dir": tmp_path}
    untuned = convopt.optimize(source, deterministic=True, **arguments)  # nothing measured is used
    tuned = convopt.optimize(source, **arguments)
    assert kernels(tuned) != kernels(untuned)
    assert any("im2col" in label for label, _ in kernels(tuned)) == (op != "Gemm")
    for module in (tuned, untuned):
        close(module(x), expected, 1e-5 if precision == "fp32" else 5e-3)


@pytest.mark.opencl
@pytest.mark.slow
def test_records_of_another_chip_or_type_are_not_used(tmp_path: Path) -> None:
    source, _, _ = MODELS["Conv"]
    ((problem, _),) = model_problems(source, None, 1, target=OPENCL)[0].items()
    key, best = task_key(problem, OPENCL, 1), choose_plan(problem, OPENCL, 1)
    odd = ranked(problem, OPENCL, 1)[30][0]
    assert key.threads == 0 and key == task_key(problem, OPENCL, 2)
    half = replace(problem, y=replace(problem.y, dtype="float16"))
    keys = {task_key(half, OPENCL, 1), *(task_key(problem, t, 1) for t in GPU_TARGETS.values())} - {key}
    assert len({one.digest for one in (key, *keys)}) == len(GPU_TARGETS) + 1
    with Store(tmp_path / "tuning.sqlite3") as store:
        for other in (
            *keys,
            replace(key, target=f"{key.target} of another name"),
            replace(key, generator="old"),
        ):
            store.add_record(other, odd, 1e-3, 0.5, best)
    plain = convopt.optimize(source, target="opencl", cache_dir=tmp_path / "none")
    assert kernels(convopt.optimize(source, target="opencl", cache_dir=tmp_path)) == kernels(plain)


def test_what_lies_around_a_plan() -> None:
    """Its stages, parts of the reduction, orders of blocks, epilogue and pads; not what the model can't price
    as it counts more shared memory than the schedule does.
    """
    problem = conv(n=1, c=32, size=14, k=32)
    tile = ImplicitGemm(128, 32, 16, 4, 8, split_k=4, pad=(0, 4, 4), down=(1, 8))
    near = neighbours(ConvPlan(tile), problem, OPENCL, 1, CAP)
    changed = {
        name for plan in near for name, value in asdict(plan.schedule).items() if value != asdict(tile)[name]
    }
    assert changed == {"stages", "split_k", "swizzle", "epilogue", "pad", "down"}
    seconds = [plan_seconds(plan, problem, OPENCL, 1) for plan in near]
    assert seconds == sorted(seconds)
    deeper = ConvPlan(replace(tile, stages=3))
    assert why_not(deeper, problem, OPENCL) is None and deeper not in near
    with pytest.raises(ValueError, match="does not fit opencl"):
        plan_seconds(deeper, problem, OPENCL, 1)


def compiled(problem: ConvProblem, plans: list[ConvPlan], folder: Path) -> list[Path]:
    found, failures = compile_candidates(
        problem, plans, OPTIONS, KernelCache(folder), folder, deadline=time.monotonic() + 200
    )
    assert failures == {}
    return [candidate.path for candidate in found]


@pytest.mark.opencl
@pytest.mark.slow
def test_plans_of_every_kind_agree_and_a_killed_process_costs_one(tmp_path: Path) -> None:
    """Tiles, parts of the reduction, im2col with a last matrix that is smaller, one thread per output."""
    problem = halves(conv(n=3, c=40, size=7, k=24))
    order = [plan for plan, _ in ranked(problem, OPENCL, 1)]
    plans = [
        choose_plan(problem, OPENCL, 1),
        next(p for p in order if p.expand_col == 2),
        next(p for p in order if getattr(p.schedule, "split_k", 1) > 1),
        next(p for p in order if p.schedule.name == "gpu-direct" and not p.expand_col),
    ]
    first, *others = compiled(problem, plans, tmp_path)
    runner = LocalRunner()
    try:
        assert runner.prepare([first, *others], 60) == {}  # the driver has nothing to compile before
        for path in others:
            found = runner.probe(path, first, TOLERANCES["float16"] / 10, 60)
            assert found.failure is None and found.seconds is not None and 0 < found.seconds < 1
        assert "wrong result" in str(runner.probe(others[0], first, -1.0, 60).failure)
        assert runner._process is not None
        os.kill(runner._process.pid, signal.SIGKILL)
        said = str(runner.probe(others[0], first, 1e-3, 60).failure)
        assert "gone" in said or "crashed" in said
        turns = runner.race([first, others[0]], 0.02, 60)
        assert len(turns) == 2 and all(min(times) > 0 for times in turns)
    finally:
        runner.close()


@pytest.mark.opencl
@pytest.mark.slow
def test_tune_on_a_device_makes_records_that_are_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The records' plan beats or ties the untuned one; run in turn, as the command does."""
    source, x, expected = MODELS["Conv"]
    onnx.save(source, tmp_path / "m.onnx")
    argv = ["tune", str(tmp_path / "m.onnx"), "--target", "opencl", "--budget", "25s"]
    start = time.monotonic()
    assert main([*argv, "--cache-dir", str(tmp_path), "--json"]) == 0
    assert time.monotonic() - start < 25 + 5 + 5  # it imports and prices before the budget begins
    document = json.loads(capsys.readouterr().out)
    assert undocumented(document, tune_command.COMMAND.fields) == set()
    tune_command.COMMAND.show(document)
    (one,) = document["convs"]
    assert document["target"] == "opencl" and one["measured"] >= 2 and one["speedup"] >= 1
    module = convopt.optimize(source, target="opencl", cache_dir=tmp_path)
    close(module(x), expected, 1e-5)
    again = convopt.optimize(source, target="opencl", cache_dir=tmp_path, tune=2.0)  # goes on
    close(again(x), expected, 1e-5)
    if one["tuned"] != one["untuned"]:
        untuned = convopt.optimize(source, target="opencl", cache_dir=tmp_path / "none")
        assert kernels(module) != kernels(untuned)


class Preparing:
    """A Runner on a device whose compiler says `answers`, one for each time it is asked; all take as long."""

    def __init__(self, *answers: Callable[[Sequence[Path]], dict[Path, str] | str]) -> None:
        self.answers, self.probed = list(answers), 0

    def reset(self) -> None:
        pass

    def prepare(self, paths: Sequence[Path], timeout: float) -> dict[Path, str] | str:
        assert timeout > 0
        return self.answers.pop(0)(paths)

    def probe(self, path: Path, reference: Path, tolerance: float, timeout: float) -> Probe:
        self.probed += 1
        return Probe(1e-3)

    def close(self) -> None:
        pass


@pytest.mark.kernels
@pytest.mark.slow
def test_a_compiler_that_refuses_and_a_device_that_goes_away(tmp_path: Path) -> None:
    """What is refused is remembered and the rest measured; three visits without any answer are enough."""
    problem, options = halves(conv(n=1, c=16, size=7, k=24)), LoweringOptions(GPU_TARGETS["dcu:k100-ai"], 1)
    gone = ["the device went away"] * 3
    runner = Preparing(lambda paths: {paths[1]: "refused"}, *(lambda _, said=said: said for said in gone))
    with Store(tmp_path / "s.sqlite3") as store:
        tuner = Tuner(store, options, KernelCache(tmp_path), runner, None)
        (outcome,) = tuner.tune([Task(problem)], 200.0)
        trials = store.trials(task_key(problem, options.target, 1))
    assert (outcome.tried, outcome.failed, runner.probed) == (4, 1, 4)
    assert [trial.failure for trial in trials if trial.seconds is None] == ["refused"]
    assert runner.answers == []


@pytest.mark.parametrize(
    ("argv", "said", "status"),
    [
        (["--target", "dcu:k100-ai"], "`convopt tune --tracker HOST:PORT --key KEY` here", 3),
        (["--target", "dcu"], "name the chip (`convopt targets`)", 3),
        (["--target", "tpu"], "target 'tpu' is not known", 2),
        (["--precision", "fp8"], "precision is 'fp8'", 2),
    ],
)
def test_what_can_not_be_tuned_here(
    argv: list[str], said: str, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["tune", "--conv", "n=1,c=8,h=4,w=4,k=8,r=1,s=1", "--budget", "1s"]
    assert main([*command, *argv]) == status
    assert said in capsys.readouterr().err
