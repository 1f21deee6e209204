"""`convopt doctor` and `convopt selftest`: on OpenCL, on the stub of a DCU, and without the device."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from convopt.cli import doctor, selftest
from convopt.cli.main import main
from convopt.errors import CompileError
from convopt.targets import GPU_TARGETS
from tests.cli.fields import undocumented
from tests.hip.conftest import _built, stub  # noqa: F401
from tests.hip.stub_device import Stub

FAMILIES = {
    "direct",
    "implicit GEMM simt",
    "batched GEMM simt",
    "depthwise by 4 channels",
    "pointwise",
    "transposition by vectors",
    "transposition by elements",
    "max pool",
    "average pool",
    "reduction",
    "softmax",
    "resize",
    "im2col",
}


def _document(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


def test_doctor_names_the_missing_thing_of_every_target(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json"]) == 0
    document = _document(capsys)
    assert undocumented(document, doctor.COMMAND.fields) == set()
    assert [t["name"] for t in document["targets"]] == ["cpu", *GPU_TARGETS]
    for target in document["targets"]:
        assert target["can_run"] == (target["missing"] is None)


def test_doctor_without_a_toolkit(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ROCM_PATH", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("convopt.runtime.hipcc.TOOLKITS", ())
    assert main(["doctor", "--target", "dcu:k100-ai"]) == 3
    assert "no hipcc found: name the toolkit's folder by ROCM_PATH" in " ".join(
        capsys.readouterr().out.split()
    )


@pytest.mark.parametrize("family", ["cuda", "rocm", "hip", "dcu"])
def test_doctor_of_a_family_without_a_device(
    family: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CONVOPT_HIP_LIBRARY", str(tmp_path / "none.so"))
    monkeypatch.setenv("CONVOPT_CUDA_DEVICE", "99")
    assert main(["doctor", "--target", family, "--json"]) == 3
    (target,) = _document(capsys)["targets"]
    assert (target["name"], target["can_run"]) == (family, False) and target["missing"]


def test_doctor_of_a_target_that_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--target", "cdua"]) == 2
    words = " ".join(capsys.readouterr().err.split())
    assert "'cdua' is not known; expected cpu, cuda, rocm, hip, dcu" in words and "dcu:k100-ai" in words


@pytest.mark.hip
def test_doctor_on_a_dcu(stub: Stub, capsys: pytest.CaptureFixture[str]) -> None:  # noqa: F811
    assert main(["doctor", "--target", "dcu:k100-ai", "--json"]) == 0
    (target,) = _document(capsys)["targets"]
    assert target["found"] == {
        "compiler": f"{stub.toolkit}/bin/hipcc (HIP version: 5.2.0-stub)",
        "library": str(stub.library),
        "device": "Stub DCU (gfx928)",
    }
    assert main(["doctor", "--target", "dcu", "--json"]) == 0
    assert _document(capsys)["targets"] == [target]
    assert main(["doctor", "--target", "dcu:bw200", "--json"]) == 3
    (target,) = _document(capsys)["targets"]
    assert target["missing"] == "the device here, Stub DCU (gfx928), is no Hygon BW200 (gfx936)"


@pytest.mark.slow
@pytest.mark.opencl
def test_selftest_on_opencl(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    report = tmp_path / "report.txt"
    assert main(["selftest", "--target", "opencl", "--budget", "1s", "-o", str(report), "--json"]) == 0
    document = _document(capsys)
    assert undocumented(document, selftest.COMMAND.fields) == set()
    assert all(check["passed"] for check in document["checks"])
    checked = {check["name"].split(",")[0] for check in document["checks"]}
    assert checked >= FAMILIES
    assert document["facts"][1]["agrees"] and len(document["contest"]) == 6
    assert report.read_text() == selftest.text(document)


@pytest.mark.slow
@pytest.mark.hip
def test_selftest_on_a_dcu(stub: Stub, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:  # noqa: F811
    arguments = [
        "selftest",
        "--target",
        "dcu:k100-ai",
        "--budget",
        "1s",
        "-o",
        str(tmp_path / "r.txt"),
        "--json",
    ]
    assert main(arguments) == 0
    document = _document(capsys)
    agreed = {"agrees": True, "faults": [], "layout": None}
    assert document["units"] == [{"unit": f"mmac.16x16x{k}", **agreed} for k in (16, 8)]
    assert document["facts"][0]["agrees"] and "64 lanes" in document["facts"][0]["text"]
    assert any("implicit GEMM mmac" in check["name"] for check in document["checks"])
    assert any("batched GEMM mmac" in check["name"] for check in document["checks"])
    assert all(check["passed"] for check in document["checks"])


@pytest.mark.gpu
def test_selftest_on_cuda(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Every kernel family and every primitive, on a GPU that is here."""
    arguments = ["selftest", "--target", "cuda", "-o", str(tmp_path / "r.txt"), "--json"]
    assert main(arguments) == 0
    document = _document(capsys)
    assert {check["name"].split(",")[0] for check in document["checks"]} >= FAMILIES
    assert any("implicit GEMM mma" in check["name"] for check in document["checks"])


@pytest.mark.parametrize("family", ["cuda", "rocm", "dcu"])
def test_selftest_of_a_family_without_a_device(
    family: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CONVOPT_HIP_LIBRARY", str(tmp_path / "none.so"))
    monkeypatch.setenv("CONVOPT_CUDA_DEVICE", "99")
    report = tmp_path / "report.txt"
    assert main(["selftest", "--target", family, "-o", str(report)]) == 3
    assert f"{family} can't be tested on this machine: " in " ".join(capsys.readouterr().out.split())
    assert not report.exists()


def test_selftest_without_the_device(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CONVOPT_HIP_LIBRARY", str(tmp_path / "none.so"))
    report = tmp_path / "report.txt"
    assert main(["selftest", "--target", "dcu:k100-ai", "-o", str(report)]) == 3
    assert "dcu:k100-ai can't be tested on this machine: CONVOPT_HIP_LIBRARY" in " ".join(
        capsys.readouterr().out.split()
    )
    assert not report.exists()


@pytest.mark.hip
def test_selftest_without_a_compiler(
    stub: Stub,  # noqa: F811
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("ROCM_PATH", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CONVOPT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("convopt.runtime.hipcc.TOOLKITS", ())
    report = tmp_path / "report.txt"
    assert main(["selftest", "--target", "dcu:k100-ai", "-o", str(report)]) == 3
    assert "no hipcc found" in " ".join(capsys.readouterr().out.split())
    assert not report.exists()


def test_selftest_with_a_driver_that_fails(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The device is there: what failed is said, not that it is missing."""

    def fail(kind: str) -> None:
        raise CompileError(f"{kind}: kernel probe: no such instruction")

    monkeypatch.setattr("convopt.bench.bench_device.open_device", fail)
    assert main(["selftest", "--target", "opencl", "-o", str(tmp_path / "r.txt")]) == 2
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("", "convopt: opencl: kernel probe: no such instruction\n")
