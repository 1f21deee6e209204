"""convopt codegen: files and a row per launch."""

import json
from pathlib import Path

import pytest

from convopt.cli import codegen
from convopt.cli.main import main
from tests.cli.fields import undocumented
from tests.cli.models import conv_relu

FLOP = 2 * 4 * 3 * 9 * 8 * 8  # output channels, input channels, taps, pixels


@pytest.mark.parametrize(
    ("target", "endings"),
    [
        ("opencl", {".cl"}),
        pytest.param("cuda:sm_80", {".cu", ".cubin"}, marks=pytest.mark.compilers),
        pytest.param("rocm:gfx942", {".s", ".hsaco"}, marks=pytest.mark.compilers),
    ],
)
def test_kernels_are_written_and_described(
    target: str, endings: set[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    arguments = ["codegen", str(conv_relu(tmp_path / "m.onnx")), "--target", target, "-o", str(out)]
    assert main([*arguments, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert undocumented(document, codegen.COMMAND.fields) == set()
    files = sorted(path.name for path in out.iterdir())
    assert {Path(name).suffix for name in files} == endings
    assert sorted(name for row in document["kernels"] for name in row["files"]) == files
    (conv,) = (row for row in document["kernels"] if row["flop"] == FLOP)
    source = next(name for name in conv["files"] if Path(name).suffix in (".cl", ".cu", ".s"))
    assert conv["symbol"] in (out / source).read_text()
    assert conv["bytes"] == 4 * ((3 + 4) * 8 * 8 + 4 * 3 * 9 + 4)
    if target != "opencl":
        assert conv["spills"] == 0 and conv["registers"] > 0 and 0 < conv["occupancy"] <= 1
    assert main(arguments) == 0
    assert "kernels for" in capsys.readouterr().out


def test_a_cpu_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = str(conv_relu(tmp_path / "m.onnx"))
    assert main(["codegen", model, "-o", str(tmp_path / "out")]) == 2
    assert "--target cpu: kernels are written out for GPUs" in capsys.readouterr().err
