"""What happens where a file can't be written: a limit on the size of files stands for a full disk."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import onnx
import pytest

from convopt.codegen.cache import KernelCache
from convopt.errors import InputError, ModelError
from convopt.frontends.onnx_file import load, save
from convopt.runtime.folders import write_files, written_whole

TOO_MUCH = bytes(5000)


@contextmanager
def _files_of_at_most(nbytes: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_file_that_does_not_fit_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "out.txt"
    path.write_text("before")
    said = f"cannot write {path}: File too large"
    with pytest.raises(InputError, match=said), _files_of_at_most(4096), written_whole(path) as temporary:
        temporary.write_bytes(TOO_MUCH)
    assert [p.name for p in tmp_path.iterdir()] == ["out.txt"] and path.read_text() == "before"


@pytest.mark.parametrize("exists", [True, False])
def test_of_several_files_all_are_written_or_none(exists: bool, tmp_path: Path) -> None:
    folder = tmp_path / "made"
    if exists:
        folder.mkdir()
        (folder / "a").write_text("before")
    with pytest.raises(InputError, match=f"cannot write {folder / 'b'}: "), _files_of_at_most(4096):
        write_files(folder, {"a": b"new", "b": TOO_MUCH})
    assert folder.exists() == exists
    if exists:
        assert [(p.name, p.read_text()) for p in folder.iterdir()] == [("a", "before")]
    write_files(folder, {"a": b"new", "b": TOO_MUCH})
    assert sorted(p.name for p in folder.iterdir()) == ["a", "b"]
    with pytest.raises(InputError, match=f"cannot write {folder / 'a' / 'under'}: "):
        write_files(folder / "a" / "under", {})


def test_a_model_that_does_not_fit_is_named(tmp_path: Path) -> None:
    text = '<ir_version: 9, opset_import: ["" : 20]> g (float[2] x) => (float[2] y) { y = Relu (x) }'
    path = tmp_path / "out.onnx"
    with pytest.raises(ModelError, match=f"cannot write {path}: File too large"), _files_of_at_most(16):
        save(load(onnx.parser.parse_model(text)), path)
    assert not list(tmp_path.iterdir())


def test_a_cache_that_can_not_be_written_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache = KernelCache(tmp_path / "cache")
    with _files_of_at_most(4096):
        for key in ("aa", "bb"):
            cache.put(key, TOO_MUCH)
    (record,) = caplog.records
    assert record.getMessage().startswith(
        f"the cache {cache.root} can't be written (File too large): what is"
    )
    assert cache.get("aa") is None and not [p for p in cache.root.rglob("*") if p.is_file()]
    cache.put("aa", TOO_MUCH)
    assert cache.get("aa") == TOO_MUCH
    blocked = KernelCache(tmp_path / "file")
    blocked.root.write_text("")
    blocked.put("aa", b"")
    assert f"the cache {blocked.root} can't be written (Not a directory)" in caplog.records[1].getMessage()
