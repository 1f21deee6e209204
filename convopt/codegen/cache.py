"""Compiled kernels on disk, by what they were made from.

An entry is the SHA-256 of the object file followed by the object file, written under a temporary name and
renamed: readers in other processes see a whole entry or none. A damaged entry is removed and made again; a
full or read-only disk costs the cache, not the compilation, and a warning says so.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from convopt.runtime.folders import cache_folder, keep
from convopt.targets import CpuTarget, GpuTarget
from convopt.targets.matrix_units import MATRIX_UNITS

_DIGEST = hashlib.sha256().digest_size
_LIMIT_BYTES = 1 << 30
# The files that turn a schedule's functions into code.
GENERATORS = (
    "cpu", "cuda", "device", "device_lowering", "hip", "hip_prelude", "hip_printer", "opencl", "rocm",
)  # fmt: skip


@cache
def generator_version() -> str:
    """Changes when anything that shapes a kernel's code changes: our generators, TVM."""
    digest = hashlib.sha256(version("apache-tvm").encode())
    package = Path(__file__).parent.parent
    generators = [package / "codegen" / f"{name}.py" for name in GENERATORS]
    for source in sorted([*(package / "schedules").rglob("*.py"), *generators]):
        digest.update(source.read_bytes())
    return digest.hexdigest()


def kernel_key(schedule: Any, problem: Any, target: CpuTarget | GpuTarget) -> str:
    """Identity of a kernel: equal keys mean equal machine code, so equal kernels are compiled once."""
    units = [repr(MATRIX_UNITS[name]) for name in getattr(target, "matrix_units", ()) if name in MATRIX_UNITS]
    text = "\n".join(
        [generator_version(), repr(target), *units, type(schedule).__module__, repr(schedule), repr(problem)]
    )
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def symbol_of(key: str) -> str:
    return f"convopt_kernel_{key}"


class KernelCache:
    """Object files by key under `folder`/kernels."""

    def __init__(self, folder: Path | str | None = None) -> None:
        self.root = Path(folder or cache_folder())
        self.folder = self.root / "kernels"

    def _path(self, key: str) -> Path:
        return self.folder / key[:2] / f"{key}.kernel"

    def get(self, key: str) -> bytes | None:
        path = self._path(key)
        try:
            entry = path.read_bytes()
        except OSError:
            return None
        digest, code = entry[:_DIGEST], entry[_DIGEST:]
        if len(digest) == _DIGEST and hashlib.sha256(code).digest() == digest:
            with contextlib.suppress(OSError):
                os.utime(path)  # recently used entries survive `prune`
            return code
        with contextlib.suppress(OSError):
            path.unlink()
        return None

    def put(self, key: str, code: bytes) -> None:
        keep(self._path(key), hashlib.sha256(code).digest() + code, self.root)

    def prune(self, limit: int = _LIMIT_BYTES) -> None:
        """Removes the least recently used entries until the cache fits `limit` bytes."""
        entries = []
        with contextlib.suppress(OSError):
            for path in self.folder.glob("*/*.kernel"):
                with contextlib.suppress(OSError):
                    status = path.stat()
                    entries.append((status.st_mtime, status.st_size, path))
        total = sum(size for _, size, _ in entries)
        for _, size, path in sorted(entries):
            if total <= limit:
                break
            with contextlib.suppress(OSError):
                path.unlink()
            total -= size
