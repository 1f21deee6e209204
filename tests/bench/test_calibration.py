"""What calibration measures is kept per chip and number of threads, and shown by `convopt targets`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from convopt.bench import calibration, device_calibration
from convopt.bench.calibration import Calibration
from convopt.cli import calibrate, targets
from convopt.cli.main import main
from convopt.errors import InputError
from tests.cli.fields import undocumented

ONE = Calibration(100.0, 20.0, 1.5, 1e9)


def test_numbers_of_threads_stand_side_by_side(tmp_path: Path) -> None:
    assert calibration.load(tmp_path) == {}
    calibration.save(tmp_path, 1, ONE)
    calibration.save(tmp_path, 2, Calibration(190.0, 20.0, 1.6, 2e9))
    calibration.save(tmp_path, 2, Calibration(200.0, 20.0, 1.6, 3e9))
    found = calibration.load(tmp_path)
    assert (found[1], found[2].peak_gflops) == (ONE, 200.0)


def test_another_chip_is_not_this_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calibration.save(tmp_path, 1, ONE)
    monkeypatch.setattr(calibration, "chip_name", lambda: "another")
    assert calibration.load(tmp_path) == {}


@pytest.mark.parametrize("text", ["{", "[]", '{"a": 1}'])
def test_a_damaged_file(tmp_path: Path, text: str) -> None:
    (tmp_path / "calibration.json").write_text(text)
    with pytest.raises(InputError, match="damaged"):
        calibration.load(tmp_path)


@pytest.mark.kernels
def test_a_cache_folder_that_is_a_file_holds_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert calibration.load(tmp_path / "file") == {}


def test_calibrate_measures_and_targets_shows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["calibrate", "--threads", "1,2", "--cache-dir", str(tmp_path), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert undocumented(document, calibrate.COMMAND.fields) == set()
    assert [one["threads"] for one in document["measured"]] == [1, 2]
    for one in document["measured"]:
        assert 1 < one["peak_gflops"] < 20_000 and 0.1 < one["bandwidth_gbs"] < 2000
    assert main(["targets", "--cache-dir", str(tmp_path), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert undocumented(shown, targets.COMMAND.fields) == set()
    assert [one["threads"] for one in shown["measured"]] == [1, 2]
    calibrate.COMMAND.show(document)
    targets.COMMAND.show(shown)
    assert "GFLOP/s" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.opencl
def test_an_opencl_device_is_calibrated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With less work than to be measured well, but with the compiler's optimizations, unlike other tests."""
    monkeypatch.delenv("PYOPENCL_BUILD_OPTIONS", raising=False)
    for name, value in (("COPIED", 1 << 20), ("CHAINED", 1 << 16), ("CHAIN", 64), ("LAUNCHES", 20)):
        monkeypatch.setattr(device_calibration, name, value)
    assert main(["calibrate", "--target", "opencl", "--cache-dir", str(tmp_path), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert undocumented(document, calibrate.COMMAND.fields) == set()
    (one,) = document["measured"]
    assert 0.1 < one["peak_gflops"] < 1e6 and 0.1 < one["bandwidth_gbs"] < 1e5 and one["launch_us"] < 1e5
    calibrate.COMMAND.show(document)
    assert "declared" in capsys.readouterr().out
    assert calibration.load(tmp_path) == {}, "a GPU's numbers are not the CPU's"


@pytest.mark.parametrize(
    ("argv", "text", "status"),
    [
        (["--target", "cuda:sm_90"], "cuda", 3),
        (["--target", "opencl", "--threads", "2"], "--threads goes with the CPU only", 2),
        (["--target", "cpu:no-such"], "no-such", 2),
        (["--target", "cpu:neon"], "neon", 2),
    ],
)
def test_what_can_not_be_calibrated_here(
    argv: list[str], text: str, status: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["calibrate", *argv, "--cache-dir", str(tmp_path)]) == status
    assert text in capsys.readouterr().err
