"""`convopt tune` and `convopt cache` from the command line."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from convopt.cli import cache as cache_command
from convopt.cli import tune as tune_command
from convopt.cli.main import main
from convopt.targets import host_cpu
from convopt.tuning.identity import task_key
from convopt.tuning.store import Store, Trial
from tests.cli.fields import undocumented
from tests.tuning.problems import conv
from tests.tuning.test_store import plan

KEY = task_key(conv(), host_cpu(), 2)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A cache folder whose store holds one record."""
    with Store(tmp_path / "tuning.sqlite3") as store:
        store.add_record(KEY, plan(), 2e-3, 0.8, plan(2))
        store.add_trial(KEY, Trial(plan(), 2e-3))
    return tmp_path


def document(capsys: pytest.CaptureFixture[str], *argv: str) -> dict[str, Any]:
    capsys.readouterr()
    assert main([*argv, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_cache_actions(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    there = ("--cache-dir", str(folder))
    found = {
        "list": document(capsys, "cache", "list", *there),
        "export": document(capsys, "cache", "export", str(tmp_path / "out.json"), *there),
        "import": document(capsys, "cache", "import", str(tmp_path / "out.json"), *there),
        "verify": document(capsys, "cache", "verify", *there),
        "prune": document(capsys, "cache", "prune", "--days", "0", *there),
    }
    fields = cache_command.COMMAND.fields
    assert {action: undocumented(one, fields) for action, one in found.items()} == {
        action: set() for action in found
    }
    (record,) = found["list"]["records"]
    assert (record["conv"], record["ratio"], record["state"]) == ("3x3 s1 1x16->24 @1x1x9x9", 0.8, "used")
    assert found["import"]["rows"] == {"trials": 0, "records": 0}
    assert found["verify"]["faults"] == []
    assert found["prune"]["rows"] == {"trials": 1, "records": 1}
    assert document(capsys, "cache", "list", *there)["records"] == []
    assert document(capsys, "cache", "import", str(tmp_path / "out.json"), *there)["rows"] == {
        "trials": 1, "records": 1
    }  # fmt: skip


def test_a_damaged_row_is_a_fault_and_an_exit_status(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with contextlib.closing(sqlite3.connect(folder / "tuning.sqlite3")) as store, store:
        store.execute("UPDATE records SET plan = '{'")
    assert main(["cache", "verify", "--cache-dir", str(folder)]) == 1
    assert "plan is no JSON" in capsys.readouterr().out


def test_cache_merge(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = tmp_path / "other"
    merged = document(capsys, "cache", "merge", str(folder / "tuning.sqlite3"), "--cache-dir", str(other))
    assert merged["rows"] == {"trials": 1, "records": 1}
    assert main(["cache", "list", "--cache-dir", str(other)]) == 0
    assert "3x3 s1 1x16->24 @1x1x9x9" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["cache", "export"], "a path is missing"),
        (["cache", "list", "x.json"], "takes no path"),
        (["cache", "list", "--days", "1"], "--days goes with prune only"),
        (["cache", "merge", "nothing.sqlite3"], "there is no store nothing.sqlite3"),
        (["cache", "export", "out.txt"], "ends in .json"),
        (["tune", "--conv", "n=1", "--budget", "1s"], "missing"),
        (["tune", "--suite", "contest", "--budget", "1s", "--shape", "x:1"], "--shape goes with a model"),
        (["tune", "--conv", "n=1", "--budget", "1s", "--batch", "2"], "--batch goes with --suite"),
    ],
)
def test_wrong_usage(folder: Path, capsys: pytest.CaptureFixture[str], argv: list[str], said: str) -> None:
    assert main([*argv, "--cache-dir", str(folder)]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("budget", ["0", "0m", "soon", "infs", "nan"])
def test_a_budget_that_is_none(budget: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["tune", "--suite", "contest", "--budget", budget])
    assert end.value.code == 2
    assert "duration" in capsys.readouterr().err


def test_there_is_no_store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for action, empty in (("list", "records"), ("verify", "faults")):
        assert main(["cache", action, "--cache-dir", str(tmp_path), "--json"]) == 0
        assert json.loads(capsys.readouterr().out)[empty] == []
    assert main(["cache", "export", "out.json", "--cache-dir", str(tmp_path)]) == 2
    assert "`convopt tune` makes one" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.kernels
def test_tune_reports(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    case = "n=1,c=16,h=9,w=9,k=24,r=3,s=3,pad=1"
    argv = ["tune", "--conv", case, "--budget", "2s", "--threads", "1", "--cache-dir", str(tmp_path)]
    found = document(capsys, *argv)
    assert undocumented(found, tune_command.COMMAND.fields) == set()
    assert found["seconds"] < 2 + 5
    (one,) = found["convs"]
    assert one["conv"] == "3x3 s1 1x16->24 @1x1x9x9"
    assert found["store"] == str(tmp_path / "tuning.sqlite3")
    tune_command.COMMAND.show(found)
    assert "kept in" in capsys.readouterr().out
