"""Help imports little, so that it answers at once."""

import json
import subprocess
import sys

import pytest

from convopt.cli.main import COMMANDS, load, main

HEAVY = ("tvm", "torch", "onnxruntime", "openvino", "onnx", "onnx_ir", "numpy", "rich", "networkx")

MOST_MODULES = 140  # Python's own included

# Run in a fresh interpreter: prints the modules that the help of one command brought in, as JSON.
PROBE = """
import io, json, sys
from contextlib import redirect_stdout
from convopt.cli.main import main
text = io.StringIO()
try:
    with redirect_stdout(text):
        main(json.loads(sys.argv[1]))
except SystemExit as end:
    assert end.code == 0, end.code
assert text.getvalue().startswith("usage: convopt")
print(json.dumps(list(sys.modules)))
"""

HELPS = [["--help"], *([name, "--help"] for name in COMMANDS)]


@pytest.mark.parametrize("argv", HELPS, ids=" ".join)
def test_help_imports_little_and_nothing_heavy(argv: list[str]) -> None:
    """Imports are what its time goes into; the time itself depends on what else the machine does."""
    command = [sys.executable, "-c", PROBE, json.dumps(argv)]
    modules = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert not set(HEAVY) & set(modules)
    assert len(modules) <= MOST_MODULES


@pytest.mark.parametrize("name", COMMANDS)
def test_help_documents_every_json_field(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = load(name)
    assert command.name == name
    with pytest.raises(SystemExit) as end:
        main([name, "--help"])
    assert end.value.code == 0
    shown = capsys.readouterr().out
    for path, meaning in command.fields.items():
        assert f"  {path}: {meaning}\n" in shown


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    from convopt import __version__

    with pytest.raises(SystemExit) as end:
        main(["--version"])
    assert end.value.code == 0
    assert capsys.readouterr().out == f"convopt {__version__}\n"


def test_the_package_is_a_command_too() -> None:
    command = [sys.executable, "-m", "convopt", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("usage: convopt")
