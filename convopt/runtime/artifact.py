"""Saved modules: one file, a zip archive of stored (uncompressed) members.

    manifest.json          format version, requirements, boundary, Programs, the other members' sizes
    code/<digest>.so       the kernels and the executor of a Program for a CPU
    code/<digest>.zip      the binaries of a Program for another device
    weights/<digest>.bin   its weights, 64-byte aligned in the file: they are used where they were read
    islands/<digest>.onnx  models of fallback islands
    (archive comment)      SHA-256 of every byte of the file before it

<digest> begins the SHA-256 of the member: Programs for other shapes share what is equal. The one digest at
the end covers headers and directory too: a flipped or missing byte anywhere is noticed before any is used. It
guards against damage, not against malice: an artifact is machine code, so load it only from where you would
install a program from. Nothing is unpacked to disk, and there are no pickles.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import secrets
import stat
import struct
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from convopt.errors import ArtifactError, ConvoptError, InputError
from convopt.runtime.device_program import DeviceProgram
from convopt.runtime.loaded import Loaded, LoadedProgram
from convopt.runtime.machine import Requirements, this_machine
from convopt.runtime.memory import ALIGNMENT, Bytes, allocate
from convopt.runtime.program_json import from_json, to_json
from convopt.runtime.signature import TensorInfo

if TYPE_CHECKING:
    from convopt.runtime.module import CompiledModule

VERSION = 3
MANIFEST = "manifest.json"
MEMBER = re.compile(
    r"manifest\.json|code/[0-9a-f]{32}\.(?:so|zip)|weights/[0-9a-f]{32}\.bin|islands/[0-9a-f]{32}\.onnx"
)
SEAL = b"convopt-artifact-sha256:"
SEAL_BYTES = len(SEAL) + 64
END_RECORD = b"PK\x05\x06"
END_RECORD_BYTES = 22
ALIGNMENT_EXTRA = 0xD935  # the zip extra field that Android's zipalign pads with
CHUNK = 1 << 20


def save(module: CompiledModule, path: str | os.PathLike[str]) -> None:
    """Write all Programs of the module. ArtifactError where that fails; then nothing new is at `path`."""
    programs = module.programs
    if not programs:
        raise ArtifactError("nothing is compiled yet: give shapes to optimize, or call the module once")
    target = Path(path)
    if os.path.lexists(target) and not (target.is_file() or target.is_symlink()):
        # A rename would put a file in the place of a device.
        raise ArtifactError(f"cannot write {target}: it is a folder or a device; expected a file's name")
    manifest, members = _contents(module, programs)
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
    try:
        with temporary.open("xb+") as file:
            _write(file, manifest, members)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
        _sync_folder(target.parent)
    except OSError as error:
        raise ArtifactError(f"cannot write {target}: {error.strerror or error}") from error
    except ValueError as error:  # a zero byte in the name
        raise ArtifactError(f"cannot write {str(target)!r}: {error}") from error
    finally:
        with contextlib.suppress(OSError, ValueError):
            temporary.unlink(missing_ok=True)


def _contents(
    module: CompiledModule, programs: list[Loaded]
) -> tuple[dict[str, Any], dict[str, bytes | memoryview]]:
    members: dict[str, bytes | memoryview] = {}

    def member(folder: str, ending: str, data: bytes | memoryview) -> str:
        name = f"{folder}/{hashlib.sha256(data).hexdigest()[:32]}.{ending}"
        members[name] = data
        return name

    entries = [
        {
            "program": to_json(loaded.program),
            "code": member("code", "zip" if isinstance(loaded, DeviceProgram) else "so", loaded.image),
            "weights": member("weights", "bin", loaded.weights.data),
            "islands": [member("islands", "onnx", model) for model in loaded.islands.models],
        }
        for loaded in programs
    ]
    flags = {str(flag) for loaded in programs for flag in loaded.program.meta.get("cpu_flags", ())}
    on_device = all(isinstance(loaded, DeviceProgram) for loaded in programs)
    needs = Requirements() if on_device else this_machine(tuple(sorted(flags)))
    manifest = {
        "version": VERSION,
        "requires": {"system": needs.system, "machine": needs.machine, "cpu_flags": list(needs.flags)},
        "threads": module.threads,
        "precision": module.precision,
        "target": module.target,
        "inputs": list(map(_boundary, module.inputs)),
        "outputs": list(map(_boundary, module.outputs)),
        "members": {name: len(data) for name, data in members.items()},
        "programs": entries,
    }
    return manifest, members


def _write(file: IO[bytes], manifest: dict[str, Any], members: Mapping[str, bytes | memoryview]) -> None:
    text = json.dumps(manifest, separators=(",", ":")).encode()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name, data in {MANIFEST: text, **members}.items():
            info = zipfile.ZipInfo(name)  # its default date, 1980: equal modules make equal files
            info.external_attr = (stat.S_IFREG | 0o644) << 16
            info.extra = _padding(file.tell() + 30 + len(name))
            archive.writestr(info, memoryview(data))
        archive.comment = SEAL + b"0" * 64
    end = file.seek(0, os.SEEK_END) - SEAL_BYTES
    file.seek(0)
    digest = hashlib.sha256()
    while chunk := file.read(min(CHUNK, end - file.tell())):
        digest.update(chunk)
    file.write(SEAL + digest.hexdigest().encode())


def _padding(start: int) -> bytes:
    """An extra field that moves the data behind it, at `start` without it, to a multiple of 64."""
    size = 6 + -(start + 6) % ALIGNMENT
    return struct.pack("<HHH", ALIGNMENT_EXTRA, size - 4, ALIGNMENT).ljust(size, b"\0")


def _sync_folder(folder: Path) -> None:
    """Makes the renaming durable, where folders can be synced."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def load(path: str | os.PathLike[str], *, threads: int | None = None) -> CompiledModule:
    """The module saved at `path`; `threads` replaces the number it was saved with.

    ArtifactError, with the remedy: no artifact, damaged, of another version, for another machine.
    InputError: an argument is wrong.
    """
    from convopt.runtime.module import CompiledModule

    if not isinstance(path, str | os.PathLike) or "\0" in str(path):
        raise InputError(f"{path!r} is no path; expected that of an artifact")
    try:
        with Path(path).open("rb") as file:
            members = _read(file)
        manifest = json.loads(bytes(members.pop(MANIFEST)))
        if manifest["version"] != VERSION:
            raise ArtifactError(
                f"it has format {manifest['version']}, this convopt reads {VERSION}: compile the model again"
            )
        requires = manifest["requires"]
        refusal = Requirements(
            requires["system"], requires["machine"], tuple(requires["cpu_flags"])
        ).why_not()
        if refusal:
            raise ArtifactError(f"{refusal}: compile the model on this machine")
        if manifest["members"] != {name: len(data) for name, data in members.items()}:
            raise ArtifactError("its members are not those that its manifest lists: copy or compile it again")
        return CompiledModule(
            [_program(entry, members) for entry in manifest["programs"]],
            threads=manifest["threads"] if threads is None else threads,
            precision=manifest["precision"],
            target=manifest["target"],
            inputs=list(map(_to_boundary, manifest["inputs"])),
            outputs=list(map(_to_boundary, manifest["outputs"])),
        )
    except OSError as error:
        raise ArtifactError(f"cannot read {path}: {error.strerror or error}") from error
    except ConvoptError as error:
        raise type(error)(f"{path}: {error}") from error
    except (KeyError, TypeError, ValueError) as error:
        raise ArtifactError(
            f"{path}: its manifest makes no sense ({error}): compile the model again"
        ) from error


def _boundary(info: TensorInfo) -> list[Any]:
    return [info.name, info.dtype, info.shape, info.channels_last]


def _to_boundary(data: list[Any]) -> TensorInfo:
    name, dtype, shape, channels_last = data
    return TensorInfo(name, dtype, None if shape is None else tuple(shape), channels_last is True)


def _program(entry: Mapping[str, Any], members: Mapping[str, Bytes]) -> Loaded:
    kind = DeviceProgram if entry["code"].endswith(".zip") else LoadedProgram
    return kind(
        from_json(entry["program"]),
        bytes(members[entry["code"]]),
        members[entry["weights"]],
        tuple(bytes(members[name]) for name in entry["islands"]),
    )


def _read(file: IO[bytes]) -> dict[str, Bytes]:
    """The checked file's members, as views of one aligned block that holds all of it."""
    size = file.seek(0, os.SEEK_END)
    tail = END_RECORD_BYTES + SEAL_BYTES
    file.seek(max(size - tail, 0))
    ending = file.read(tail)
    seal = ending[END_RECORD_BYTES:]
    if len(ending) < tail or not ending.startswith(END_RECORD) or not seal.startswith(SEAL):
        raise ArtifactError(
            "no convopt artifact, or one that is cut off: copy or compile it again (convopt.optimize compiles"
            " ONNX models)"
        )
    content = allocate(size)
    file.seek(0)
    view = content.data
    filled = 0
    while filled < size:
        count = file.readinto(view[filled:])  # type: ignore[attr-defined]
        if not count:
            raise ArtifactError("it became shorter while it was read: load it again")
        filled += count
    if hashlib.sha256(view[: size - SEAL_BYTES]).hexdigest().encode() != seal[len(SEAL) :]:
        raise ArtifactError("it is damaged (its checksum does not match): copy or compile it again")
    try:
        with zipfile.ZipFile(file) as archive:
            return _members(archive.infolist(), content)
    except (zipfile.BadZipFile, NotImplementedError, struct.error) as error:
        raise ArtifactError(
            f"it is no zip archive as convopt writes them ({error}): compile it again"
        ) from error


def _members(infos: list[zipfile.ZipInfo], content: Bytes) -> dict[str, Bytes]:
    members: dict[str, Bytes] = {}
    for info in infos:
        kind = stat.S_IFMT(info.external_attr >> 16)
        if not MEMBER.fullmatch(info.orig_filename) or info.filename in members or kind != stat.S_IFREG:
            raise ArtifactError(f"it has a member {info.orig_filename!r} that no artifact has")
        if (
            info.compress_type != zipfile.ZIP_STORED
            or info.compress_size != info.file_size
            or info.flag_bits & 1
        ):
            raise ArtifactError(
                f"its member {info.filename!r} is compressed or encrypted, which no artifact's is"
            )
        lengths = bytes(content[info.header_offset + 26 : info.header_offset + 30])
        if len(lengths) < 4:
            raise ArtifactError(f"its member {info.filename!r} lies outside of the file")
        start = info.header_offset + 30 + sum(struct.unpack("<HH", lengths))
        if start + info.file_size > len(content) - SEAL_BYTES:
            raise ArtifactError(f"its member {info.filename!r} lies outside of the file")
        members[info.filename] = content[start : start + info.file_size]
    if MANIFEST not in members:
        raise ArtifactError("it has no manifest")
    return members
