"""Artifacts: what is saved comes back, and anything else is refused with words."""

from __future__ import annotations

import hashlib
import io
import json
import os
import stat
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import convopt
from convopt.errors import ArtifactError, InputError, ModelError
from convopt.runtime import artifact, machine
from convopt.runtime.artifact import load, save
from convopt.runtime.loaded import LoadedProgram
from convopt.runtime.module import CompiledModule
from convopt.runtime.program import KernelStep, Placement, Program
from convopt.runtime.signature import TensorInfo
from tests.runtime.snippets import at, chain, chain_expected, floats, image
from tests.runtime.test_islands import EXPECTED, X, add_island


def sample(rows: int) -> np.ndarray:
    return np.random.default_rng(rows).random((rows, 8), np.float32)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    module = CompiledModule(
        [chain(5, 2), chain(3, 2)],
        threads=2,
        precision="fp16",
        target="cpu:haswell",
        inputs=[TensorInfo("x", "float32", ("rows", 8))],
        outputs=[TensorInfo("y", "float32", (None, 8))],
    )
    module.save(tmp_path / "m.convopt")
    return tmp_path / "m.convopt"


def test_roundtrip_of_two_shapes(saved: Path) -> None:
    module = load(saved)
    assert (module.threads, module.precision, module.target) == (2, "fp16", "cpu:haswell")
    assert module.inputs == (TensorInfo("x", "float32", ("rows", 8)),)
    assert module.outputs == (TensorInfo("y", "float32", (None, 8)),)
    for rows in (3, 5):
        x = sample(rows)
        np.testing.assert_allclose(module(x), chain_expected(x, 2), rtol=1e-6)
    with pytest.raises(InputError, match="this module was compiled for"):
        module(sample(4))
    assert load(saved, threads=3).threads == 3


def test_a_loaded_module_saves_the_same_bytes(saved: Path, tmp_path: Path) -> None:
    load(saved).save(tmp_path / "again.convopt")
    assert (tmp_path / "again.convopt").read_bytes() == saved.read_bytes()


def test_islands_and_placement_come_back(tmp_path: Path) -> None:
    loaded = add_island()
    place = Placement("sum", "Add", "fallback", "as a test")
    program = Program(**{**vars(loaded.program), "placement": (place,), "meta": {"passes": ["one"]}})
    module = CompiledModule(
        [LoadedProgram(program, loaded.image, loaded.weights, loaded.islands.models)], threads=1
    )
    module.save(tmp_path / "m.convopt")
    again = load(tmp_path / "m.convopt")
    np.testing.assert_array_equal(again(X), EXPECTED)
    assert again.programs[0].program == program


def test_equal_members_are_saved_once_and_aligned(saved: Path) -> None:
    with zipfile.ZipFile(saved) as archive:
        names = archive.namelist()
        assert archive.testzip() is None
    assert sorted(name.split("/")[0] for name in names) == ["code", "manifest.json", "weights", "weights"]
    loaded = load(saved).programs
    assert all(program.weights.__array_interface__["data"][0] % 64 == 0 for program in loaded)
    assert np.shares_memory(loaded[0].weights.base, loaded[1].weights.base)  # in place, not copied


def test_loading_imports_nothing_heavy_and_leaves_no_file(saved: Path, tmp_path: Path) -> None:
    """Also: from the command line's point of view, loading is quick."""
    script = (
        "import sys, time, numpy\n"
        "from convopt.runtime.artifact import load\n"
        f"module = load({str(saved)!r})\n"
        "module(numpy.zeros((3, 8), numpy.float32))\n"
        "heavy = {name.split('.')[0] for name in sys.modules}\n"
        "print(heavy & {'tvm', 'onnx', 'onnx_ir', 'onnxruntime', 'torch', 'rich', 'ml_dtypes'})\n"
    )
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "TMPDIR": str(temporary)},
    )
    assert done.stdout.strip() == "set()"
    assert list(temporary.iterdir()) == []


def test_without_memory_files_a_private_file_serves(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create", raising=False)
    x = sample(3)
    np.testing.assert_allclose(load(saved)(x), chain_expected(x, 2), rtol=1e-6)


def test_every_flipped_byte_is_noticed(saved: Path, tmp_path: Path) -> None:
    whole = saved.read_bytes()
    broken = tmp_path / "broken.convopt"
    # All of the beginning (headers, manifest) and end (directory, digest); samples of the long middle.
    places = {*range(0, 3000), *range(3000, len(whole) - 1200, 97), *range(len(whole) - 1200, len(whole))}
    for place in sorted(places):
        damaged = bytearray(whole)
        damaged[place] ^= 0x20
        with pytest.raises(ArtifactError, match=r"damaged|no convopt artifact"):
            artifact._read(io.BytesIO(damaged))
    broken.write_bytes(damaged)
    with pytest.raises(ArtifactError, match=f"^{broken}: "):
        load(broken)


def test_every_truncation_is_noticed(saved: Path, tmp_path: Path) -> None:
    whole = saved.read_bytes()
    broken = tmp_path / "broken.convopt"
    for size in (0, 1, 50, len(whole) // 2, len(whole) - 100, len(whole) - 1):
        broken.write_bytes(whole[:size])
        with pytest.raises(ArtifactError, match="no convopt artifact"):
            load(broken)
    broken.write_bytes(whole + b"\0")
    with pytest.raises(ArtifactError, match="no convopt artifact"):
        load(broken)
    broken.write_bytes(whole[:4000] + whole[5000:])
    with pytest.raises(ArtifactError, match="damaged"):
        load(broken)


def resealed(path: Path, edit: Callable[[dict[str, bytes]], None], **info: int) -> Path:
    """The artifact with its members edited and a right digest: `edit` gets {name: data}."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    edit(members)
    out = path.with_name("edited.convopt")
    with zipfile.ZipFile(out, "w") as archive:
        for name, data in members.items():
            entry = zipfile.ZipInfo(name)
            entry.external_attr = info.get("mode", stat.S_IFREG | 0o644) << 16
            entry.compress_type = info.get("compress_type", zipfile.ZIP_STORED)
            archive.writestr(entry, data)
        archive.comment = artifact.SEAL + b"0" * 64
    data = out.read_bytes()[: -artifact.SEAL_BYTES]
    out.write_bytes(data + artifact.SEAL + hashlib.sha256(data).hexdigest().encode())
    return out


def edit_manifest(**changes: object) -> Callable[[dict[str, bytes]], None]:
    def edit(members: dict[str, bytes]) -> None:
        manifest = json.loads(members["manifest.json"])
        for name, value in changes.items():
            manifest[name] = value
        members["manifest.json"] = json.dumps(manifest).encode()

    return edit


def test_an_edited_artifact_with_a_right_digest_loads(saved: Path) -> None:
    """The helper of the tests below makes what the loader takes, so that they test what they say."""
    x = sample(3)
    np.testing.assert_allclose(load(resealed(saved, lambda _: None))(x), chain_expected(x, 2), rtol=1e-6)


@pytest.mark.parametrize("name", ["../x", "/etc/x", "code/../../x.so", "code/" + "0" * 31 + ".so", "x"])
def test_foreign_members_are_refused(saved: Path, name: str) -> None:
    def edit(members: dict[str, bytes]) -> None:
        members[name] = b"x"

    with pytest.raises(ArtifactError, match="that no artifact has"):
        load(resealed(saved, edit))


def test_symbolic_links_and_compressed_members_are_refused(saved: Path) -> None:
    with pytest.raises(ArtifactError, match="that no artifact has"):
        load(resealed(saved, lambda _: None, mode=stat.S_IFLNK | 0o777))
    with pytest.raises(ArtifactError, match="is compressed"):
        load(resealed(saved, lambda _: None, compress_type=zipfile.ZIP_DEFLATED))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"version": 1}, "format 1, this convopt reads 3: compile the model again"),
        ({"members": {}}, "not those that its manifest lists"),
        ({"programs": [{}]}, "makes no sense"),
        ({"programs": "no"}, "makes no sense"),
        ({"programs": []}, "makes no sense"),
        ({"inputs": [["x", "float32"]]}, "makes no sense"),
        ({"outputs": [["y", "float32", [1], False]] * 2}, "another number of inputs or outputs"),
        ({"requires": {"system": "plan9", "machine": "mips", "cpu_flags": []}}, "compiled for plan9 on mips"),
    ],
)
def test_manifests_that_do_not_fit(saved: Path, changes: dict[str, object], words: str) -> None:
    with pytest.raises(ArtifactError, match=words):
        load(resealed(saved, edit_manifest(**changes)))


def test_members_must_all_be_there(saved: Path) -> None:
    def edit(members: dict[str, bytes]) -> None:
        del members[next(name for name in members if name.startswith("code/"))]

    with pytest.raises(ArtifactError, match="not those that its manifest lists"):
        load(resealed(saved, edit))
    with pytest.raises(ArtifactError, match="no manifest"):
        load(resealed(saved, lambda members: members.pop("manifest.json") and None))


def test_features_of_the_cpu_are_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    step = KernelStep("k_empty", (at("output"),), 1)
    meta = {"cpu_flags": ["sse2", "avx1024", "neon9"]}
    program = Program((), (floats("y", 1),), 0, 0, (step,), meta=meta)
    path = tmp_path / "m.convopt"
    CompiledModule([LoadedProgram(program, image())], threads=1).save(path)
    monkeypatch.setattr(machine, "cpu_flags", lambda: frozenset({"sse2"}))
    with pytest.raises(
        ArtifactError, match="this CPU lacks avx1024, neon9: compile the model on this machine"
    ):
        load(path)
    monkeypatch.setattr(machine, "cpu_flags", lambda: frozenset(meta["cpu_flags"]))
    load(path)


def test_a_missing_file_and_a_file_of_another_kind(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"cannot read .*none.convopt: No such file"):
        load(tmp_path / "none.convopt")
    with pytest.raises(ArtifactError, match=r"cannot read .*: Is a directory"):
        load(tmp_path)
    (tmp_path / "text").write_text("a text " * 100)
    with pytest.raises(ArtifactError, match=r"no convopt artifact.*convopt\.optimize compiles ONNX models"):
        load(tmp_path / "text")


def test_what_the_other_function_reads(saved: Path) -> None:
    with pytest.raises(ModelError, match=r"a convopt artifact, not an ONNX model: convopt\.load reads it"):
        convopt.optimize(saved)
    assert {"load", "optimize"} <= set(dir(convopt))


@pytest.mark.parametrize("step", ["writestr", "fsync", "replace"])
def test_a_failing_disk_leaves_nothing_and_keeps_the_old(
    saved: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    module = load(saved)
    before = saved.read_bytes()

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    owner = {"writestr": zipfile.ZipFile, "fsync": os, "replace": Path}[step]
    monkeypatch.setattr(owner, step, full)
    for path in (saved, saved.with_name("new.convopt")):
        with pytest.raises(ArtifactError, match=r"cannot write .*: No space left on device"):
            save(module, path)
    assert [path.name for path in saved.parent.iterdir()] == [saved.name]
    assert saved.read_bytes() == before


def test_saving_into_a_missing_folder(saved: Path) -> None:
    with pytest.raises(ArtifactError, match=r"cannot write .*: No such file"):
        save(load(saved), saved.parent / "none" / "m.convopt")


def test_nothing_to_save() -> None:
    info = [TensorInfo("x", "float32", ("n", 8))]
    module = CompiledModule([], threads=1, inputs=info, outputs=info, compile_shapes=lambda _: chain(1))
    with pytest.raises(ArtifactError, match="nothing is compiled yet"):
        module.save("nowhere.convopt")


def test_a_device_is_not_replaced_by_a_file(tmp_path: Path) -> None:
    """A rename onto /dev/null would take it away from everyone."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    module = CompiledModule([chain(3, 2)], threads=1)
    for path in (pipe, tmp_path, tmp_path / "a\0b"):
        with pytest.raises(ArtifactError, match="cannot write"):
            module.save(path)
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_threads_are_checked_when_an_artifact_is_loaded(saved: Path) -> None:
    threads: Any = "2"
    with pytest.raises(InputError, match="threads is '2'; expected an integer of 1 to 1024"):
        load(saved, threads=threads)


@pytest.mark.parametrize("path", [None, 3, b"a.convopt", "a\0b"])
def test_what_is_no_path_is_refused(path: Any) -> None:
    with pytest.raises(InputError, match="is no path; expected that of an artifact"):
        load(path)
