"""A shared object that exists in memory only: loaded from bytes, unloaded when nothing refers to it."""

from __future__ import annotations

import _ctypes
import ctypes
import itertools
import os
import tempfile
import weakref
from pathlib import Path
from typing import Any

from convopt.errors import ArtifactError

_loads = itertools.count(1)


class Library:
    """The loaded image. Keep a reference while any of its code may run.

    ArtifactError: the dynamic linker refuses it; the text has the linker's words.
    """

    def __init__(self, image: bytes) -> None:
        try:
            self._library = (
                _load_from_memory(image) if hasattr(os, "memfd_create") else _load_from_file(image)
            )
        except OSError as error:
            raise ArtifactError(
                f"the compiled kernels can't be loaded on this machine ({error}): compile the model here"
            ) from error
        weakref.finalize(self, _ctypes.dlclose, self._library._handle).atexit = False

    def function(self, name: str) -> Any:
        return self._library[name]

    def symbol(self, name: str) -> int:
        """The address of a function. ArtifactError where the image has none of that name."""
        try:
            return ctypes.cast(self._library[name], ctypes.c_void_p).value or 0
        except AttributeError as error:
            raise ArtifactError(
                f"the compiled kernels have no function {name!r}: compile the model again"
            ) from error


def _load_from_memory(image: bytes) -> ctypes.CDLL:
    handle = os.memfd_create("convopt-kernels", os.MFD_CLOEXEC)
    try:
        with os.fdopen(handle, "wb", closefd=False) as file:
            file.write(image)
        # The linker knows libraries by the name they were opened with, and a closed descriptor's number comes
        # again: so the same descriptor gets another spelling each time (the bits of a counter as /. and //.).
        spelling = "".join("/." if bit == "0" else "//." for bit in f"{next(_loads):b}")
        return ctypes.CDLL(f"/proc/self/fd{spelling}/{handle}")
    finally:
        os.close(handle)


def _load_from_file(image: bytes) -> ctypes.CDLL:
    with tempfile.TemporaryDirectory(prefix="convopt-") as folder:
        path = Path(folder, "kernels.so")
        path.write_bytes(image)
        return ctypes.CDLL(str(path))
