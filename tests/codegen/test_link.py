"""From objects to the shared object of a Program."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from convopt.codegen.cache import KernelCache
from convopt.codegen.link import c_compiler, executor_object, link
from convopt.errors import CompileError
from convopt.runtime.library import Library


def compiled(folder: Path, name: str, source: str) -> Path:
    (folder / f"{name}.c").write_text(source)
    out = folder / f"{name}.o"
    subprocess.run([*c_compiler(), "-fPIC", "-c", str(folder / f"{name}.c"), "-o", str(out)], check=True)
    return out


def test_paths_and_bytes_give_the_same(tmp_path: Path) -> None:
    path = compiled(tmp_path, "one", "#include <math.h>\nfloat f(float x) { return expf(x); }")
    for objects in ([path], {"one": path.read_bytes()}):
        library = Library(link(objects))
        assert library.symbol("f") and library.symbol("convopt_run")


def test_many_objects(tmp_path: Path) -> None:
    """More than fits on a command line is left to the response file; here: names stay apart."""
    objects = {
        f"kernel {i}": compiled(tmp_path, f"k{i}", f"int f{i}(void) {{ return {i}; }}").read_bytes()
        for i in range(12)
    }
    library = Library(link(objects))
    assert [library.function(f"f{i}")() for i in range(12)] == list(range(12))


@pytest.mark.parametrize(
    ("sources", "words"),
    [
        (["void f(void) {}", "void f(void) {}"], r"linking 2 kernels: .*f"),
        (["void g(void); void f(void) { g(); }"], r"(?s)linking 1 kernels: .*undefined reference to `g'"),
    ],
)
def test_symbols_defined_twice_or_nowhere(tmp_path: Path, sources: list[str], words: str) -> None:
    with pytest.raises(CompileError, match=words):
        link([compiled(tmp_path, f"k{i}", source) for i, source in enumerate(sources)])


def test_an_object_that_is_none() -> None:
    with pytest.raises(CompileError, match="linking 1 kernels"):
        link({"broken": b"no ELF file"})


def test_no_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CompileError, match=r"no C compiler .* install one .* or set CC"):
        c_compiler()
    monkeypatch.setenv("CC", "none-such")
    with pytest.raises(CompileError, match="CC='none-such' is not a command"):
        c_compiler()


def test_the_compiler_may_have_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CC", raising=False)
    plain = c_compiler()
    monkeypatch.setenv("CC", f"{plain[0]} -g0")
    assert c_compiler() == [plain[0], "-g0"]


def test_the_executor_is_compiled_once_per_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = KernelCache(tmp_path)
    code = executor_object(cache)
    entry = next(path for path in tmp_path.rglob("*") if path.is_file())

    def refuse(*_: object) -> None:
        raise AssertionError("compiled again")

    c_compiler()
    with monkeypatch.context() as patch:
        patch.setattr("convopt.codegen.link._run", refuse)
        assert executor_object(cache) == code
    damaged = bytearray(entry.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    entry.write_bytes(damaged)
    assert executor_object(cache) == code
    assert entry.read_bytes() != bytes(damaged)


def test_the_executor_compiles_without_warnings(tmp_path: Path) -> None:
    source = Path(__file__).parents[2] / "convopt" / "runtime" / "executor.c"
    flags = ["-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-fPIC", "-c", str(source), "-o", os.devnull]
    subprocess.run([*c_compiler(), *flags], check=True)
