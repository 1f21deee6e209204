"""`convopt bench` with the peers alone: documents, tables, engines that are missing, wrong arguments."""

import json
from pathlib import Path

import numpy as np
import pytest

from convopt.bench import engine, engines
from convopt.bench.cases import ConvCase, conv_model
from convopt.bench.engine import Prepared, Settings, Unavailable
from convopt.bench.engines import ENGINES
from convopt.bench.peak import measure_bandwidth, measure_peak
from convopt.cli import bench
from convopt.cli.main import main
from convopt.targets import host_cpu
from tests.cli.fields import undocumented
from tests.cli.models import conv_relu

SMALL = "n=1,c=8,h=10,w=9,k=6,r=3,s=3,stride=1,pad=1,groups=2"


@pytest.fixture
def without_convopt(monkeypatch: pytest.MonkeyPatch) -> None:
    """The peers' half of the bench needs no kernels."""

    def refuse(self, *_):
        raise Unavailable("not in this test")

    monkeypatch.setattr(engines.Convopt, "prepare", refuse)


@pytest.mark.usefixtures("without_convopt")
def test_a_conv_through_the_peers(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    arguments = ["bench", "--conv", SMALL, "--threads", "1", "--seconds", "0.02"]
    arguments += ["--against", "onnxruntime,openvino", "-o", str(tmp_path / "out.json"), "--json"]
    assert main(arguments) == 0
    document = json.loads(capsys.readouterr().out)
    assert undocumented(document, bench.COMMAND.fields) == set()
    assert json.loads((tmp_path / "out.json").read_text()) == document
    (run,) = document["runs"]
    (case,) = run["cases"]
    assert (case["name"], case["count"]) == (SMALL, 1)
    assert case["flop"] == 2 * 10 * 9 * 6 * (8 // 2) * 9
    for kind in ("end_to_end", "native"):
        for name in ("onnxruntime", "openvino"):
            result = case[kind][name]
            assert 0 < result["min_ms"] <= result["median_ms"]
            assert result["max_error"] < 1e-5
            assert result["gflops"] == pytest.approx(case["flop"] / result["median_ms"] / 1e6)
        assert case[kind]["convopt"]["refused"] == "not in this test"
    assert case["native"]["onnxruntime"]["layout"] == "NCHW"
    assert case["ratio_to_best_peer"] is None
    assert run["peak_gflops"] > 0


@pytest.mark.usefixtures("without_convopt")
def test_a_missing_peer_is_named_and_the_run_goes_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        engine.importlib.util, "find_spec", lambda name: None if name == "torch" else object()
    )
    assert main(["bench", "--conv", SMALL, "--seconds", "0.02", "--against", "torch,onnxruntime"]) == 0
    shown = capsys.readouterr().out
    assert "torch (missing)" in shown
    assert "1x8x10x9 k6 3x3 s1 p1 g2" in shown
    assert f"torch took no part in {SMALL} (native): torch is not installed" in shown


@pytest.mark.usefixtures("without_convopt")
def test_a_model_needs_its_dynamic_dims(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = conv_relu(tmp_path / "in.onnx", ("N", 3, "H", "W"))
    assert main(["bench", str(source), "--seconds", "0.02"]) == 2
    assert "input 'x' has dynamic dims" in capsys.readouterr().err
    assert main(["bench", str(source), "--seconds", "0.02", "--shape", "x:1,3,6,7", "--json"]) == 0
    (case,) = json.loads(capsys.readouterr().out)["runs"][0]["cases"]
    assert case["native"] is None
    assert case["end_to_end"]["onnxruntime"]["max_error"] < 1e-5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--conv", "n=1"], "missing in 'n=1'"),
        (["--conv", SMALL, "--against", "tensorrt"], "--against tensorrt: expected some of onnxruntime"),
        (["--conv", SMALL, "--batch", "2"], "--batch goes with --suite, --network and --module only"),
        ([""], "IN.onnx is empty"),
        (["--conv", SMALL, "--shape", "x:1"], "--shape goes with a model only"),
        (["--conv", SMALL, "--precision", "tf32"], "--precision tf32 goes with --target of an NVIDIA GPU"),
        (["--overhead", "--cache-dir", "."], "--cache-dir: --startup begins with an empty cache"),
        (
            ["--conv", SMALL, "--startup"],
            "--startup goes with IN.onnx, --network, --models and --module only",
        ),
        (["--models", "rnet,anet"], "--models anet: expected some of det, rec"),
        (["--conv", SMALL, "-o", "out.txt"], "ends in .json"),
        (["nowhere.onnx"], "nowhere.onnx: no such file"),
    ],
)
def test_wrong_arguments_exit_with_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_a_wrong_result_of_an_engine_shows_as_its_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def doubled(self, model, inputs, settings):
        right = engines.onnxruntime_call(model, inputs, 1, optimize=False)
        return Prepared(right.call, lambda: [2 * y for y in right.outputs()])

    monkeypatch.setattr(engines.Convopt, "prepare", doubled)
    assert main(["bench", "--conv", SMALL, "--seconds", "0.02", "--json"]) == 0
    (case,) = json.loads(capsys.readouterr().out)["runs"][0]["cases"]
    assert case["native"]["convopt"]["max_error"] == pytest.approx(1.0)
    assert case["ratio_to_best_peer"] == pytest.approx(case["ratio_native"]["onnxruntime"])


@pytest.mark.parametrize("name", ["onnxruntime", "openvino", "torch"])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_each_peer_computes_the_convolution(name: str, layout: str) -> None:
    pytest.importorskip(name)
    case = ConvCase(2, 6, 9, 8, 4, 3, 2, stride=2, pad=1, dilation=1, groups=2)
    x = np.random.default_rng(1).standard_normal((2, 6, 9, 8)).astype(np.float32)
    expected = engines.onnxruntime_call(conv_model(case), {"x": x}, 1, optimize=False).outputs()[0]
    if layout == "NHWC":
        x, expected = np.ascontiguousarray(x.transpose(0, 2, 3, 1)), expected.transpose(0, 2, 3, 1)
    prepared = ENGINES[name].prepare(conv_model(case, layout), {"x": x}, Settings(1, "fp32"))
    prepared.call()
    np.testing.assert_allclose(prepared.outputs()[0], expected, atol=1e-5)


def test_peak_is_above_what_one_scalar_unit_can_do_and_bandwidth_is_positive() -> None:
    peak = measure_peak(host_cpu(), 1)
    assert isinstance(peak, float)
    assert peak > 5  # a scalar multiply-add each cycle at 2.5 GHz
    assert measure_bandwidth(megabytes=16, rounds=2) > 0


def test_peak_says_why_it_can_not_be_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CC", raising=False)
    reason = measure_peak(host_cpu(), 1)
    assert isinstance(reason, str)
    assert reason.startswith("no C compiler")
