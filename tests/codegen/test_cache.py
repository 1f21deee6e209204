"""The kernel cache: whole entries or none, whatever happens to the processes and the disk."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest

from convopt.codegen.cache import KernelCache, kernel_key, symbol_of
from convopt.codegen.workers import KernelSource, compile_kernels
from convopt.errors import InputError
from convopt.runtime.folders import cache_folder
from convopt.schedules.base import row_major
from convopt.schedules.gemm_pack import PackMatrix, PackProblem
from convopt.targets import host_cpu

CODE = bytes(range(256)) * 40
KEY = "ab" + "0" * 30


def entries(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def test_what_was_put_comes_back(tmp_path: Path) -> None:
    cache = KernelCache(tmp_path)
    assert cache.get(KEY) is None
    cache.put(KEY, CODE)
    cache.put(KEY, CODE)
    assert KernelCache(tmp_path).get(KEY) == CODE
    assert cache.get("cd" + KEY[2:]) is None
    assert len(entries(tmp_path)) == 1
    cache.put(KEY, b"")
    assert cache.get(KEY) == b""


@pytest.mark.parametrize("damage", ["cut", "empty", "flipped", "longer", "digest only"])
def test_a_damaged_entry_is_none_and_goes(damage: str, tmp_path: Path) -> None:
    cache = KernelCache(tmp_path)
    cache.put(KEY, CODE)
    (path,) = entries(tmp_path)
    whole = path.read_bytes()
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 4
    path.write_bytes(
        {
            "cut": whole[:-7],
            "empty": b"",
            "flipped": bytes(flipped),
            "longer": whole + b"\0",
            "digest only": whole[:32],
        }[damage]
    )
    assert cache.get(KEY) is None
    assert entries(tmp_path) == []
    cache.put(KEY, CODE)
    assert cache.get(KEY) == CODE


def test_a_folder_that_can_not_be_written(tmp_path: Path) -> None:
    """A file where the folder should be: no user may write there, root included."""
    (tmp_path / "kernels").write_text("in the way")
    cache = KernelCache(tmp_path)
    cache.put(KEY, CODE)
    assert cache.get(KEY) is None
    cache.prune(0)
    assert (tmp_path / "kernels").read_text() == "in the way"


def test_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = KernelCache(tmp_path)

    def full(self: Path, target: Path) -> Path:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", full)
        cache.put(KEY, CODE)
    assert entries(tmp_path) == [] and cache.get(KEY) is None


def test_prune_takes_the_least_recently_used(tmp_path: Path) -> None:
    cache = KernelCache(tmp_path)
    keys = [f"{i:02x}" + "0" * 30 for i in range(4)]
    for age, key in enumerate(keys):
        cache.put(key, CODE)
        os.utime(cache._path(key), (1000 + age, 1000 + age))
    assert cache.get(keys[0]) == CODE  # used: now the newest
    cache.prune(2 * (len(CODE) + 32))
    assert [cache.get(key) is not None for key in keys] == [True, False, False, True]
    cache.prune()
    assert len(entries(tmp_path)) == 2


def test_the_folder_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CONVOPT_CACHE", str(tmp_path))
    assert cache_folder() == tmp_path
    monkeypatch.delenv("CONVOPT_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert cache_folder() == Path("/somewhere/convopt")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path.home() / ".cache" / "convopt"


def test_a_user_without_a_home_is_told_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CONVOPT_CACHE", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("os.getuid", lambda: 2**31 - 9)  # of no entry in the list of users
    with pytest.raises(InputError, match="set CONVOPT_CACHE or HOME, or give cache_dir"):
        cache_folder()


def test_keys_tell_kernels_apart() -> None:
    target, problem = host_cpu(), PackProblem(row_major((1, 3, 20)), 8)
    key = kernel_key(PackMatrix(), problem, target)
    assert key == kernel_key(PackMatrix(), PackProblem(row_major((1, 3, 20)), 8), target)
    others = {
        kernel_key(PackMatrix(), replace(problem, tile=16), target),
        kernel_key(PackMatrix(), replace(problem, matrix=row_major((1, 3, 20), "float16")), target),
        kernel_key(PackMatrix(), problem, replace(target, mcpu="haswell-like")),
    }
    assert len(others) == 3 and key not in others
    assert symbol_of(key).isidentifier()


WRITER = """
import sys
from pathlib import Path
from convopt.codegen.cache import KernelCache
cache, code = KernelCache(sys.argv[1]), bytes(range(256)) * 4000
print("ready", flush=True)
while True:
    for i in range(8):
        key = f"{i:02x}" + "0" * 30
        cache.put(key, code)
        assert cache.get(key) in (None, code)
"""


def writer(folder: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", textwrap.dedent(WRITER), str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    return process


def test_two_writers_and_a_reader_see_whole_entries(tmp_path: Path) -> None:
    code = bytes(range(256)) * 4000
    cache, writers = KernelCache(tmp_path), [writer(tmp_path) for _ in range(2)]
    try:
        seen = 0
        while seen < 300:
            entry = cache.get(f"{seen % 8:02x}" + "0" * 30)
            assert entry in (None, code)
            seen += entry is not None
        assert all(process.poll() is None for process in writers)
    finally:
        for process in writers:
            process.kill()
            process.communicate()


def test_a_writer_killed_at_any_moment_leaves_no_partial_entry(tmp_path: Path) -> None:
    code = bytes(range(256)) * 4000
    for attempt in range(6):
        process = writer(tmp_path)
        try:
            process.wait(0.01 * attempt)
        except subprocess.TimeoutExpired:
            os.kill(process.pid, signal.SIGKILL)
        process.communicate()
        cache = KernelCache(tmp_path)
        for i in range(8):
            assert cache.get(f"{i:02x}" + "0" * 30) in (None, code)
    names = {path.name for path in entries(tmp_path)}
    assert all(name.endswith(".kernel") or name.startswith(".new-") for name in names)


@pytest.mark.kernels
def test_a_damaged_kernel_is_compiled_again(tmp_path: Path) -> None:
    cache = KernelCache(tmp_path)
    source = KernelSource(PackMatrix(), PackProblem(row_major((1, 3, 20)), 8), host_cpu())
    first = compile_kernels([source], cache)
    assert (first.compiled, first.failures) == (1, {})
    assert compile_kernels([source], cache).compiled == 0
    (path,) = entries(tmp_path)
    path.write_bytes(path.read_bytes()[:-1])
    again = compile_kernels([source], cache)
    assert again.compiled == 1 and again.objects == first.objects
    assert compile_kernels([source], cache).compiled == 0


@pytest.mark.kernels
def test_without_a_writable_folder_kernels_are_compiled_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "kernels").write_text("in the way")
    source = KernelSource(PackMatrix(), PackProblem(row_major((1, 3, 20)), 8), host_cpu())
    for _ in range(2):
        result = compile_kernels([source], KernelCache(tmp_path))
        assert result.compiled == 1 and result.objects[source.key].startswith(b"\x7fELF")
