"""`convopt explain --cost`: what selection decides, with the parts of its estimates."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

from convopt.bench import calibration
from convopt.bench.calibration import Calibration
from convopt.cli import explain
from convopt.cli.main import main
from tests.cli.fields import undocumented
from tests.cli.models import conv_relu

CASE_4 = "n=2,c=1920,h=32,w=32,k=640,r=3,s=3,stride=1,pad=1"


def document(capsys: pytest.CaptureFixture[str], *argv: str) -> dict:
    assert main(["explain", "--cost", "--json", *argv]) == 0
    found = json.loads(capsys.readouterr().out)
    assert undocumented(found, explain.COMMAND.fields) == set()
    return found


def test_a_conv_on_a_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, "--conv", CASE_4, "--target", "dcu:k100-ai", "--precision", "fp16")
    (cost,) = found["costs"]
    wanted = {"block_m", "block_n", "block_k", "stages", "split_k", "swizzle", "pad"}
    assert wanted <= cost["chosen"].keys()
    assert cost["chosen"]["split_k"] > 1
    assert cost["seconds"] > cost["roofline_s"]
    parts = cost["parts"]
    longest = max(parts[name] for name in ("compute", "issue", "shared", "l2", "memory"))
    assert parts[cost["bound"]] == longest
    assert cost["seconds"] >= longest + parts["reduction"] + parts["launches"]
    assert [step["number"] for step in cost["rule"]["steps"]] == [1, 2, 3, 4, 5]
    assert cost["rule"]["chosen"]["split_k"] == 1
    explain.COMMAND.show(found)
    shown = capsys.readouterr().out
    assert "split 3" in shown and "rule, step 5" in shown


@pytest.mark.parametrize("groups, family", [(64, "gpu-depthwise"), (1, "implicit_gemm")])
def test_the_family_is_the_one_that_is_compiled(
    groups: int, family: str, capsys: pytest.CaptureFixture[str]
) -> None:
    case = f"n=1,c=64,h=28,w=28,k=64,r=3,s=3,stride=1,pad=1,groups={groups}"
    found = document(capsys, "--conv", case, "--target", "cuda:sm_90", "--precision", "fp16")
    (cost,) = found["costs"]
    assert cost["chosen"]["algorithm"] == family
    assert cost["seconds"] >= cost["parts"][cost["bound"]] > 0


def test_reasons_are_told_whole(capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, "--conv", CASE_4, "--target", "cuda:sm_90", "--precision", "fp16")
    reasons = [reason for step in found["costs"][0]["rule"]["steps"] for reason in step["dropped"]]
    assert reasons and not any(reason.endswith((">", "<")) for reason in reasons)


def test_a_suite_on_a_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, "--suite", "contest", "--target", "cuda:sm_90", "--precision", "fp16")
    assert len(found["costs"]) == 12
    assert all(cost["seconds"] > cost["roofline_s"] for cost in found["costs"])
    explain.COMMAND.show(found)
    assert "parts of the prediction" in capsys.readouterr().out


def test_a_model_on_the_cpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = conv_relu(tmp_path / "m.onnx")
    calibration.save(tmp_path, 1, Calibration(100.0, 10.0, 1.0, 0.0))
    found = document(capsys, str(model), "--threads", "1", "--cache-dir", str(tmp_path))
    (cost,) = found["costs"]
    assert cost["source"] == "estimate" and cost["conv"].startswith("3x3 s1 1x3->4")
    assert {"compute", "memory", "overhead", "tasks", "imbalance"} <= cost["parts"].keys()
    # 2 * 4 * 64 * 27 FLOP at 100 GFLOP/s against 4 * (192 + 108 + 256) bytes at 10 GB/s.
    assert cost["roofline_s"] == pytest.approx(max(13824 / 100e9, 2224 / 10e9))
    explain.COMMAND.show(found)
    assert "3x3 s1 1x3->4" in capsys.readouterr().out


@pytest.mark.parametrize("target", ["cpu", "cuda:sm_90"])
def test_a_node_of_a_model(target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]> g (float[1,3,8,8] x) => (float[1,5,8,8] y)
    <float[4,3,3,3] w, float[5,4,1,1] v> { z = Conv<pads=[1,1,1,1]>(x, w) y = Conv(z, v) }"""
    model = onnx.parser.parse_model(text)
    model.graph.node[0].name, model.graph.node[1].name = "stem", "[red]head/0"
    del model.graph.initializer[:]
    for name, shape in (("w", (4, 3, 3, 3)), ("v", (5, 4, 1, 1))):
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(shape, np.float32), name))
    path = tmp_path / "m.onnx"
    onnx.save(model, path)
    both = document(capsys, str(path), "--target", target)["costs"]
    (one,) = document(capsys, str(path), "--target", target, "--node", "[red]")["costs"]
    assert len(both) == 2 and one in both and "1x4->5" in one["conv"]
    assert main(["explain", str(path), "--cost", "--target", target, "--node", "tail"]) == 2
    assert "has no convolution whose name contains this; it has" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--conv", CASE_4, "--cost", "--all"], "--all: --cost shows convolutions, and all of them"),
        (["--conv", CASE_4, "--cost", "--node", "a"], "--node goes with a model"),
        (["--conv", CASE_4, "--cost", "--tune", "9s"], "--tune: --cost shows what is chosen without it"),
        (["--conv", CASE_4], "go with --cost"),
        (["--conv", CASE_4, "--cost", "--target", "gpu"], "is not known"),
        (["--conv", CASE_4, "--cost", "--precision", "fp17"], "expected fp32, fp16, bf16"),
        (["--conv", "n=1", "--cost"], "missing"),
    ],
)
def test_wrong_usage(argv: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", *argv]) == 2
    assert said in capsys.readouterr().err
