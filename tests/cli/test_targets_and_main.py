"""`convopt targets`, and what main does with every command's result and errors."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import convopt
from convopt.cli import targets
from convopt.cli.main import main
from convopt.targets.cpu import BY_NAME, host_cpu, usable_cores
from tests.cli.fields import undocumented
from tests.cli.models import conv_relu


def test_targets_lists_each_chip_once_and_marks_the_host(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["targets", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert undocumented(document, targets.COMMAND.fields) == set()
    assert len(document["targets"]) == len(BY_NAME)
    assert [t["name"] for t in document["targets"] if t["host"]] == [host_cpu().name]
    assert document["host"] == host_cpu().name
    assert document["cores"] == usable_cores()


def test_tables_name_what_the_document_holds(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["targets"]) == 0
    shown = capsys.readouterr().out
    for name in BY_NAME:
        assert f"cpu:{name}" in shown
    assert "this machine" in shown


def test_quiet_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["targets", "--quiet"]) == 0
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("", "")


@pytest.mark.parametrize("argv", [[], ["nonsense"], ["bench"], ["run"], ["targets", "--nonsense"]])
def test_wrong_usage_exits_with_2(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(argv)
    assert end.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("convopt") and line.endswith("--help)")


@pytest.mark.parametrize("number", ["0", "-1", "nan", "inf", "x"])
@pytest.mark.parametrize(
    "argv", [["analyze", "m", "--peak"], ["analyze", "m", "--bandwidth"], ["bench", "m", "--seconds"]]
)
def test_amounts_are_finite_and_above_0(
    argv: list[str], number: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main([*argv, number])
    assert end.value.code == 2
    assert f"{argv[-1]}: invalid positive number value: '{number}'" in capsys.readouterr().err


@pytest.mark.parametrize(
    "argv",
    [
        ["tune", "m", "--budget", "1s", "--threads", "1025"],
        ["calibrate", "--threads", "1,1025"],
        ["bench", "m", "--threads", "1025"],
        ["explain", "m", "--cost", "--threads", "1025"],
    ],
)
def test_there_is_a_most_of_threads(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(argv)
    assert end.value.code == 2
    assert "threads is 1025; expected an integer of 1 to 1024" in capsys.readouterr().err


def test_too_little_memory_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object) -> None:
        raise MemoryError("5.8 TiB for x")

    starved = replace(targets.COMMAND, run=refuse)
    monkeypatch.setattr("convopt.cli.main.load", lambda name: starved)
    assert main(["targets"]) == 2
    assert capsys.readouterr().err.splitlines() == ["convopt: 5.8 TiB for x"]


def test_what_was_not_foreseen_is_one_line_to_report(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise KeyError("two\nlines")

    monkeypatch.setattr("convopt.cli.main.load", lambda name: replace(targets.COMMAND, run=fail))
    assert main(["targets"]) == 70
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(
        f"convopt: fault of convopt {convopt.__version__}, not of the input: KeyError: 'two"
    )
    assert f"({Path(__file__).name}:" in line and "please report this line" in line
    monkeypatch.setenv("CONVOPT_TRACEBACK", "1")
    assert main(["targets"]) == 70
    assert capsys.readouterr().err.startswith("Traceback (most recent call last)")


def test_a_pipe_that_breaks_inside_is_no_reader_that_went_away(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr("convopt.cli.main.load", lambda name: replace(targets.COMMAND, run=fail))
    assert main(["targets"]) == 2
    assert "Broken pipe" in capsys.readouterr().err


def test_an_interruption_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """While the file is being written, under its temporary name."""
    source = conv_relu(tmp_path / "in.onnx")

    def interrupt(*_: object) -> None:
        assert len(list(tmp_path.iterdir())) == 2
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", interrupt)
    assert main(["optimize", str(source), "-o", str(tmp_path / "out.onnx")]) == 130
    assert capsys.readouterr().err == "convopt: interrupted\n"
    assert list(tmp_path.iterdir()) == [source]


@pytest.mark.parametrize("name", ["", __file__])
def test_a_cache_that_is_no_folder(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("bench m", "optimize m -o x.onnx", "tune m --budget 1s", "cache list", "calibrate"):
        with pytest.raises(SystemExit) as end:
            main([*command.split(), "--cache-dir", name])
        assert end.value.code == 2
        assert "is no folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    "command", ["optimize M -o OUT.convopt", "run M", "explain M", "explain M --cost", "calibrate", "bench M",
                "selftest", "doctor"],
)  # fmt: skip
def test_a_missing_device_exits_with_3(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CONVOPT_CUDA_DEVICE", "99")
    monkeypatch.chdir(tmp_path)
    conv_relu(tmp_path / "M.onnx")
    assert main([*command.replace("M", "M.onnx").split(), "--target", "cuda"]) == 3
    said = capsys.readouterr()
    assert said.out or (said.err.startswith("convopt: ") and len(said.err.splitlines()) == 1)


def test_a_reader_that_goes_away_is_no_error() -> None:
    code = "import sys; from convopt.cli.main import main; sys.exit(main(['targets', '--json']))"
    reading, writing = os.pipe()
    os.close(reading)
    result = subprocess.run([sys.executable, "-c", code], stdout=writing, stderr=subprocess.PIPE, text=True)
    os.close(writing)
    assert (result.returncode, result.stderr) == (0, "")


def test_a_folder_that_can_not_be_written_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = conv_relu(tmp_path / "in.onnx")
    assert main(["optimize", str(source), "-o", "/proc/out.onnx"]) == 2  # root can't write there either
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_an_output_that_is_no_regular_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A rename would put a file in the place of a device or a pipe."""
    pipe = tmp_path / "out.onnx"
    os.mkfifo(pipe)
    assert main(["optimize", "in.onnx", "-o", str(pipe)]) == 2
    assert "is no regular file" in capsys.readouterr().err
