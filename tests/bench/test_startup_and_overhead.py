"""`convopt bench` on whole networks, real models, fresh processes and empty kernels."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import pytest

from convopt.bench import engines, networks, overhead, real_models, startup
from convopt.bench.real_models import PackagedModel
from convopt.bench.startup import StartupError, measure_startup
from convopt.cli import bench
from convopt.cli.main import main
from tests.cli.fields import undocumented
from tests.cli.models import conv_relu

QUICK = ["--seconds", "0.02"]


@pytest.fixture
def without_convopt(monkeypatch: pytest.MonkeyPatch) -> None:
    """The peers' half of the bench needs no kernels."""

    def refuse(self, *_):
        raise engines.Unavailable("not in this test")

    monkeypatch.setattr(engines.Convopt, "prepare", refuse)


def _document(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> dict:
    assert main(["bench", *arguments, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert undocumented(document, bench.COMMAND.fields) == set()
    return document


@pytest.mark.usefixtures("without_convopt")
def test_networks_at_each_number_of_threads(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    small = partial(networks.mobilenet_v2, size=32)
    monkeypatch.setattr(networks, "NETWORKS", {"unet": small, "mobilenet_v2": small})
    document = _document(["--network", "all", "--threads", "2,1", *QUICK], capsys)
    assert [run["threads"] for run in document["runs"]] == [2, 1]
    for run in document["runs"]:
        assert [case["name"] for case in run["cases"]] == ["unet", "mobilenet_v2"]
        assert all(case["end_to_end"]["onnxruntime"]["max_error"] < 1e-4 for case in run["cases"])
    assert main(["bench", "--network", "mobilenet_v2", "--batch", "2", "--threads", "1,2", *QUICK]) == 0
    shown = capsys.readouterr().out
    assert "1 thread, fp32" in shown
    assert "2 threads, fp32" in shown


@pytest.mark.usefixtures("without_convopt")
def test_real_models_at_their_shapes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = conv_relu(tmp_path / "in.onnx", ("N", 3, "H", "W"))
    tiny = PackagedModel("p", "1", "in.onnx", "", ({"x": (2, 3, 5, 6)}, {}), "nothing")
    monkeypatch.setitem(real_models.MODELS, "tiny", tiny)
    monkeypatch.setattr(real_models, "fetch", lambda name: path)
    (run,) = _document(["--models", "tiny", "--threads", "1", *QUICK], capsys)["runs"]
    (case,) = run["cases"]
    assert case["name"] == "tiny"
    assert case["end_to_end"]["onnxruntime"]["max_error"] < 1e-5


@pytest.mark.slow
@pytest.mark.kernels
def test_a_model_starts_in_three_ways(tmp_path: Path) -> None:
    model = onnx.load(conv_relu(tmp_path / "in.onnx", ("N", 3, 8, 8)))
    states = measure_startup("m", model, {"x": np.ones((2, 3, 8, 8), np.float32)}, 1, warm_starts=1)
    assert list(states) == ["cold", "warm", "artifact"]
    for one in states.values():
        parts = (one.import_s, one.ready_s, one.first_result_s)
        assert min(parts) > 0
        assert one.total_s == pytest.approx(sum(parts))
    # Loading compiles nothing and imports no compiler.
    assert states["artifact"].ready_s < states["cold"].ready_s
    assert states["artifact"].import_s < states["cold"].import_s


def test_a_start_that_fails_is_told_in_one_line(tmp_path: Path) -> None:
    model = onnx.load(conv_relu(tmp_path / "in.onnx"))
    with pytest.raises(StartupError, match=r"^m: the cold start failed: .*'z'"):
        measure_startup("m", model, {"z": np.ones(1, np.float32)}, 1)


def test_startup_as_a_document_and_a_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(conv_relu(tmp_path / "in.onnx"))
    tasks = []

    def start(name, state, task):
        tasks.append((state, task["threads"], task["artifact"], task["save"] is not None))
        return [1.0, 2.0, 0.5 * len(tasks)]

    monkeypatch.setattr(startup, "_start", start)
    (found,) = _document([path, "--startup", "--threads", "2"], capsys)["startup"]
    assert tasks == [
        ("cold", 2, False, True),
        *[("warm", 2, False, False)] * 3,
        *[("artifact", 2, True, False)] * 3,
    ]
    assert (found["name"], found["threads"]) == (path, 2)
    # The starts' last parts are 0.5; 1.0, 1.5, 2.0; 2.5, 3.0, 3.5.
    expected = {"cold": (0.5, 3.5, 1), "warm": (1.5, 4.5, 3), "artifact": (3.0, 6.0, 3)}
    for state, (first_result, total, processes) in expected.items():
        assert found["states"][state] == {
            "import_s": 1.0,
            "ready_s": 2.0,
            "first_result_s": first_result,
            "total_s": total,
            "processes": processes,
        }
    assert main(["bench", path, "--startup"]) == 0
    assert "artifact" in capsys.readouterr().out


def test_overhead_of_calls(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    few = partial(overhead.measure_overhead, kernels=(1, 5), calls=20)
    monkeypatch.setattr(overhead, "measure_overhead", few)
    found = _document(["--overhead"], capsys)["overhead"]
    assert [one["threads"] for one in found] == [1, 2]
    for one in found:
        first, last = one["points"]
        assert (first["kernels"], last["kernels"]) == (1, 5)
        assert 0 < first["min_us"] <= first["median_us"]
        assert one["kernel_us"] == pytest.approx((last["median_us"] - first["median_us"]) / 4)
        assert one["call_us"] + one["kernel_us"] == pytest.approx(first["median_us"])
    assert main(["bench", "--overhead", "--threads", "1"]) == 0
    assert "1 thread: " in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.kernels
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch uses its own old parts
def test_modules_behind_torch_compile(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """convopt as a backend beside eager, both within rounding of float64; a start in a fresh process."""
    torch_nets = pytest.importorskip("convopt.bench.torch_nets")
    monkeypatch.setitem(torch_nets.SMALL, "small_unet", (lambda: torch_nets.UNet((4, 6), 2), 18))
    document = _document(["--module", "small_unet", "--against", "torch", "--threads", "1", *QUICK], capsys)
    engines = document["runs"][0]["cases"][0]["end_to_end"]
    assert set(engines) == {"convopt", "torch"}
    assert all(0 < engine["max_error"] < 1e-5 for engine in engines.values())
    states = startup.measure_module_startup("small_vit", 1, 1, warm_starts=1)
    assert set(states) == {"cold", "warm"}
    assert all(0 < state.first_result_s < state.total_s for state in states.values())


def test_peers_of_modules_are_torchs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--module", "small_vit", "--against", "openvino"]) == 2
    assert "--against openvino: expected some of torch, inductor" in capsys.readouterr().err
