"""A library of kernels for any sizes: built once, right on every shape, and never compiling again."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import numpy as np
import pytest

from convopt.cli import kernels
from convopt.cli.main import main
from convopt.codegen import workers
from convopt.codegen.cache import KernelCache
from convopt.errors import ArtifactError, InputError
from convopt.kernels.library import GemmLibrary, build, instances, kept
from convopt.selection.rule import Size
from convopt.targets import host_cpu
from convopt.targets.cpu import HASWELL, SKYLAKE_AVX512
from tests.cli.fields import undocumented

pytestmark = pytest.mark.kernels


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("library")
    path = folder / "gemm.kernels"
    assert build(path, KernelCache(folder)) == len(kept(host_cpu())[1].kept) >= 12
    return path


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(
    ("m", "n", "k"),
    [(1, 1, 1), (1, 1000, 7), (7, 5, 64), (49, 33, 129), (196, 128, 64), (513, 10, 3), (1000, 47, 31)],
)
def test_products_of_any_size(
    library: Path, m: int, n: int, k: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*unused: object) -> None:
        raise AssertionError("something was compiled")

    monkeypatch.setattr(workers._Worker, "compile", refuse)
    monkeypatch.setattr("convopt.codegen.link.c_compiler", refuse)
    rng = np.random.default_rng(m * n + k)
    a, b = rng.standard_normal((m, k), np.float32), rng.standard_normal((k, n), np.float32)
    expected = a.astype(np.float64) @ b.astype(np.float64)
    y = GemmLibrary(library, threads).run(a, b)
    np.testing.assert_allclose(y, expected, atol=1e-5 * k**0.5 + 1e-6)


def test_every_instance_is_right(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not those that the rule chooses only."""
    loaded = GemmLibrary(library, 2)
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((61, 19), np.float32), rng.standard_normal((19, 37), np.float32)
    expected = a.astype(np.float64) @ b.astype(np.float64)
    for config in loaded.symbols:
        (y,) = loaded._context(config, 61, 37, 19).run([a, config.pack(b, loaded.target)])
        np.testing.assert_allclose(y[:, :37], expected, atol=1e-4, err_msg=repr(config))


def test_the_sizes_pick_the_kernel(library: Path) -> None:
    loaded = GemmLibrary(library, 2)
    small, large = loaded.select(1, 1, 64).chosen, loaded.select(4096, 4096, 64).chosen
    assert small != large
    assert large.reuse > small.reuse
    assert {step.number for step in loaded.select(64, 64, 64).steps} == {1, 2, 3, 4, 5}
    # Even where no panel fits the cache's share.
    assert loaded.select(64, 64, 1 << 20).chosen.config in loaded.symbols


@pytest.mark.parametrize("target", [HASWELL, SKYLAKE_AVX512], ids=lambda t: t.mcpu)
def test_what_is_kept_hides_the_latency(target) -> None:
    first, second = kept(target)
    assert {i.config for i in first.kept} == {i.config for i in instances(target, Size(1, 1, 1))}
    for instance in second.kept:
        assert instance.config.pixels * instance.config.vectors >= 8


def test_bad_calls(library: Path, tmp_path: Path) -> None:
    loaded = GemmLibrary(library)
    with pytest.raises(InputError, match="expected sizes of at least 1"):
        loaded.select(0, 1, 1)
    with pytest.raises(InputError, match=r"expected \(m, k\) and \(k, n\)"):
        loaded.run(np.zeros((2, 3), np.float32), np.zeros((2, 3), np.float32))
    with pytest.raises(ArtifactError, match="there is no library"):
        GemmLibrary(tmp_path / "none.kernels")
    (tmp_path / "text.kernels").write_text("no zip")
    with pytest.raises(ArtifactError, match="is no kernel library"):
        GemmLibrary(tmp_path / "text.kernels")


def test_a_damaged_library(library: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(library) as archive:
        manifest, code = archive.read("manifest.json"), archive.read("kernels.so")
    for name, changed, said in (
        ("code", {"kernels.so": code[:-1] + b"\0" if code[-1] else code[:-1] + b"\1"}, "another digest"),
        ("format", {"manifest.json": json.dumps(json.loads(manifest) | {"format": 9})}, "format 9"),
        (
            "machine",
            {
                "manifest.json": json.dumps(
                    json.loads(manifest) | {"requires": {"system": "plan9", "machine": "z", "flags": []}}
                )
            },
            "built for plan9",
        ),
    ):
        path = tmp_path / name
        with zipfile.ZipFile(path, "w") as archive:
            for member, data in ({"manifest.json": manifest, "kernels.so": code} | changed).items():
                archive.writestr(member, data)
        with pytest.raises(ArtifactError, match=said):
            GemmLibrary(path)


def test_the_command(library: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ("--m", "196", "--n", "64", "--k", "32")
    built = tmp_path / "again.kernels"
    for argv in (
        ["build", str(built), "--cache-dir", str(library.parent)],
        ["list", str(built)],
        ["select", str(built), *sizes],
    ):
        assert main(["kernels", *argv, "--json"]) == 0
        document = json.loads(capsys.readouterr().out)
        assert undocumented(document, kernels.COMMAND.fields) == set()
        assert main(["kernels", *argv]) == 0
        assert capsys.readouterr().out
    assert document["config"]["pixels"] >= 1
    assert main(["kernels", "select", str(built), "--m", "1"]) == 2
    assert main(["kernels", "list", str(built), *sizes]) == 2
    assert "go with select" in capsys.readouterr().err
