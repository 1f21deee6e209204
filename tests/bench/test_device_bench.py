"""`convopt bench --target`: engines on a GPU. PoCL is one; torch runs with its CUDA replaced."""

from __future__ import annotations

import json
import time
from typing import Any

import numpy as np
import pytest

from convopt.bench import device_engines, device_torch
from convopt.bench.cases import ConvCase, conv_model
from convopt.bench.engine import Settings, Unavailable
from convopt.bench.results import declared_limits
from convopt.cli import bench
from convopt.cli.main import main
from convopt.targets import GPU_TARGETS
from tests.cli.fields import undocumented

SMALL = ConvCase(2, 6, 7, 9, 10, 3, 3, 2, 1, groups=2)


def _arguments(*more: str) -> list[str]:
    return ["bench", "--target", "opencl", "--conv", SMALL.text, "--seconds", "0.01", *more]


@pytest.mark.opencl
def test_a_conv_on_a_device(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(_arguments("--against", "direct,torch", "--json")) == 0
    document = json.loads(capsys.readouterr().out)
    assert undocumented(document, bench.COMMAND.fields) == set()
    assert (document["machine"]["target"], document["precision"]) == ("opencl", "fp16")
    assert document["machine"]["device"]
    (run,) = document["runs"]
    (case,) = run["cases"]
    for kind in ("native", "end_to_end"):
        for name in ("convopt", "direct"):
            result = case[kind][name]
            assert 0 < result["min_ms"] <= result["median_ms"] and 0 < result["max_error"] < 2e-3
        assert case[kind]["torch"]["refused"] == "torch has no OpenCL devices"
        assert case[f"ratio_{kind}"].keys() == {"direct"}
    assert case["native"]["convopt"]["layout"] == "NHWC" and case["native"]["direct"]["layout"] == "NCHW"


@pytest.mark.parametrize("target", ["cuda", "rocm", "dcu", "cuda:sm_90", "dcu:k100-ai"])
def test_a_device_that_is_not_here(
    target: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CONVOPT_CUDA_DEVICE", "99")  # also where there is a GPU
    monkeypatch.setenv("CONVOPT_HIP_LIBRARY", "/nowhere/libamdhip64.so")
    assert main(["bench", "--suite", "contest", "--target", target]) == 3
    assert f"{target} can't be measured on this machine: " in capsys.readouterr().out
    assert main(["bench", "--suite", "contest", "--target", target, "--json"]) == 3
    document = json.loads(capsys.readouterr().out)
    assert undocumented(document, bench.COMMAND.fields) == set()
    assert document["target"] == target and document["missing"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (_arguments("--against", "openvino"), "expected some of torch, inductor, miopen, direct"),
        (_arguments("--threads", "1"), "they don't go with --target"),
        (_arguments("--precision", "bf16"), "--precision bf16"),
        (_arguments("--precision", "tf32"), 'precision "tf32": opencl has no matrix unit'),
        (["bench", "--suite", "contest", "--target", "tpu"], "target 'tpu' is not known"),
        (
            ["bench", "--suite", "contest", "--against", "direct"],
            "--against direct: expected some of onnxruntime",
        ),
    ],
)
def test_wrong_arguments_exit_with_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert message in capsys.readouterr().err


class _Event:
    """torch.cuda.Event, by the host's clock."""

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing

    def record(self) -> None:
        self.at = time.perf_counter()

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, end: _Event) -> float:
        return 1e3 * (end.at - self.at)


@pytest.fixture
def cpu_as_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(device_torch, "require_device", lambda target: torch.device("cpu"))
    monkeypatch.setattr(device_torch, "_captured", lambda launch: launch)
    monkeypatch.setattr(torch.cuda, "Event", _Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device=None: None)
    # torch's own test library, once imported, freezes what cudnn is told.
    mutable = torch.backends.flags_frozen.__globals__
    monkeypatch.setitem(mutable, "__allow_nonbracketed_mutation_flag", True)


@pytest.mark.usefixtures("cpu_as_cuda")
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("precision", ["fp16", "fp32"])
@pytest.mark.parametrize(
    ("engine", "target"),
    [(device_torch.DeviceTorch(), "cuda:sm_90"), (device_torch.MIOpen(), "dcu:k100-ai")],
)
def test_torch_on_a_device(engine: Any, target: str, precision: str, layout: Any) -> None:
    from convopt.bench.engines import onnxruntime_call

    settings = Settings(1, precision, target)
    x = np.random.default_rng(0).standard_normal((2, 6, 7, 9), np.float32).astype(settings.dtype)
    y = onnxruntime_call(
        conv_model(SMALL, values=settings.dtype), {"x": x.astype(np.float32)}, 1, optimize=False
    ).outputs()[0]
    if layout == "NHWC":
        x, y = (np.ascontiguousarray(a.transpose(0, 2, 3, 1)) for a in (x, y))
    model = conv_model(SMALL, layout, 0, settings.dtype, settings.dtype)
    prepared = engine.prepare(model, {"x": x}, settings)
    prepared.call()
    (found,) = prepared.outputs()
    assert found.dtype == x.dtype and prepared.timed is not None and prepared.timed() > 0
    assert np.abs(found - y).max() < (1e-5 if precision == "fp32" else 2e-3) * np.abs(y).max()


def test_what_torch_lacks_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(torch.version, "hip", None, raising=False)
    for target, text in (("cuda:sm_90", "built without CUDA"), ("dcu:k100-ai", "built without ROCm")):
        with pytest.raises(Unavailable, match=text):
            device_torch.require_device(target)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(Unavailable, match=r"for CUDA 13\.0 finds no device"):
        device_torch.require_device("cuda:sm_90")
    with pytest.raises(Unavailable, match="MIOpen is for AMD's and Hygon's devices"):
        device_torch.MIOpen().prepare(conv_model(SMALL), {}, Settings(1, "fp16", "cuda:sm_90"))


@pytest.mark.gpu
def test_the_peers_on_cuda(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["bench", "--target", "cuda", "--conv", SMALL.text, "--seconds", "0.01", "--json"]
    assert main([*arguments, "--against", "torch,inductor,direct"]) == 0
    (case,) = json.loads(capsys.readouterr().out)["runs"][0]["cases"]
    for result in (*case["native"].values(), *case["end_to_end"].values()):
        assert result["refused"] is not None or 0 < result["max_error"] < 2e-3
    assert "torch" in case["ratio_native"] and "direct" in case["ratio_native"]


def test_short_calls_are_timed_in_rows() -> None:
    counts: list[int] = []

    def seconds(count: int) -> float:
        counts.append(count)
        return 1e-5 * count

    timed = device_engines.batched(seconds)
    assert timed() == pytest.approx(1e-5)
    assert counts == [1, 1, 100]


@pytest.mark.parametrize(
    ("precision", "per_clock"), [("fp32", 256), ("tf32", 2048), ("fp16", 4096), ("bf16", 4096)]
)
def test_the_declared_peak_is_the_precisions(precision: str, per_clock: int) -> None:
    """FLOP per clock of an H100's multiprocessor: without and on the matrix units."""
    limits = declared_limits(GPU_TARGETS["cuda:sm_90"], precision, 1)
    assert limits.peak_gflops == pytest.approx(132 * 1.83 * per_clock)
    assert limits.bandwidth_gbs == pytest.approx(3350)
