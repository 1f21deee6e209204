"""Files that appear whole or not at all, and where convopt keeps what it can make again."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from convopt.errors import InputError

logger = logging.getLogger("convopt")


def cache_folder() -> Path:
    """$CONVOPT_CACHE, or convopt in the user's cache folder (XDG).

    InputError: the user has no home folder, as a bare number of a container has none.
    """
    if explicit := os.environ.get("CONVOPT_CACHE"):
        return Path(explicit)
    if base := os.environ.get("XDG_CACHE_HOME"):
        return Path(base) / "convopt"
    try:
        return Path.home() / ".cache" / "convopt"
    except RuntimeError:
        raise InputError(
            "no folder for the cache: this user has no home; set CONVOPT_CACHE or HOME, or give cache_dir"
        ) from None


def keep(path: Path, data: bytes, root: Path) -> None:
    """Writes a file of the cache that lies at `root`.

    A full or read-only disk costs the cache, not the program: a warning says so, once.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".new-")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            Path(temporary).replace(path)
        finally:
            Path(temporary).unlink(missing_ok=True)
    except OSError as error:
        _warn_once(root, error.strerror or str(error))


@functools.cache
def _warn_once(root: Path, reason: str) -> None:
    logger.warning(
        "the cache %s can't be written (%s): what is compiled is not kept, and compiled again the next time;"
        " set CONVOPT_CACHE or cache_dir to another folder",
        root,
        reason,
    )


@contextlib.contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """A temporary name beside `path`: takes its place when the block succeeds, vanishes when it fails.

    Raises:
        InputError: the file can't be written, as where the disk is full.
    """
    with naming(path):
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=path.suffix, dir=path.parent)
        os.close(handle)
        temporary = Path(name)
        try:
            yield temporary
            temporary.chmod(0o666 & ~_umask())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)


def write_files(folder: Path, contents: Mapping[str, bytes]) -> None:
    """Writes files by name into a folder, which is made: all of them, or none where one can't be written.

    Raises:
        InputError: the file that can't be written.
    """
    new = not folder.exists()
    with naming(folder):
        folder.mkdir(parents=True, exist_ok=True)
        try:
            with tempfile.TemporaryDirectory(prefix=".new-", dir=folder) as scratch:
                for name, data in contents.items():
                    with naming(folder / name):
                        Path(scratch, name).write_bytes(data)
                for name in contents:
                    Path(scratch, name).replace(folder / name)
        except BaseException:
            if new:
                folder.rmdir()
            raise


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Inside, what the system refuses becomes an InputError with the file: a full disk's error names none."""
    try:
        yield
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}") from error


def _umask() -> int:
    """The process's umask; it can only be read by setting it."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
