"""Aligned memory for arenas, weights and outputs, as numpy arrays."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
from typing import Any

import numpy as np

ALIGNMENT = 64  # a cache line, and the widest vector register
HUGE_PAGE = 2 << 20

Bytes = np.ndarray[tuple[int], np.dtype[np.uint8]]

_addressof = ctypes.addressof
_from_buffer: Any = ctypes.c_char.from_buffer  # Any: numpy's stubs declare no buffer protocol for 3.11


def allocate(nbytes: int) -> Bytes:
    """Zeroed bytes, 64-byte aligned; large blocks start at a huge page and ask for such pages.

    Untouched pages cost nothing. MemoryError where the system refuses.
    """
    if nbytes < 2 * HUGE_PAGE:
        return _aligned(np.zeros(nbytes + ALIGNMENT, np.uint8), nbytes, ALIGNMENT)
    try:
        block = mmap.mmap(-1, nbytes + HUGE_PAGE)
    except OSError as error:
        raise MemoryError(f"cannot allocate {nbytes} bytes: {error}") from error
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # kernels without huge pages
            block.madvise(mmap.MADV_HUGEPAGE)
    return _aligned(np.frombuffer(block, np.uint8), nbytes, HUGE_PAGE)


def empty(shape: tuple[int, ...], dtype: np.dtype[Any], nbytes: int) -> tuple[np.ndarray[Any, Any], int]:
    """An uninitialised array of `nbytes` at a 64-byte boundary, and its address.

    numpy's own arrays are aligned to 16 bytes only: each vector store would straddle two cache lines.
    """
    block = np.empty(nbytes + ALIGNMENT, np.uint8)
    start = _addressof(_from_buffer(block))
    skip = -start % ALIGNMENT
    return np.ndarray(shape, dtype, block, skip), start + skip


def address(array: np.ndarray[Any, Any]) -> int:
    """Where element 0 is, in a quarter of the time of numpy's own ways: each call asks several times."""
    try:
        return _addressof(_from_buffer(array))
    except (TypeError, ValueError):  # read-only, empty, strided, or of a dtype without a buffer (bfloat16)
        pointer: int = array.__array_interface__["data"][0]
        return pointer


def as_aligned(data: bytes | memoryview | np.ndarray[Any, Any]) -> Bytes:
    """The bytes as a 64-byte aligned array: the given memory where it is aligned, a copy where not."""
    source = (
        np.frombuffer(data, np.uint8) if not isinstance(data, np.ndarray) else data.reshape(-1).view(np.uint8)
    )
    if address(source) % ALIGNMENT == 0:
        return source
    copy = allocate(source.nbytes)
    copy[:] = source
    return copy


def bytes_of(array: np.ndarray[Any, Any]) -> Bytes:
    """Its bytes in row-major order: a view where that is how they lie."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


class Blob:
    """Arrays that go into one block of memory, each at a multiple of ALIGNMENT."""

    def __init__(self) -> None:
        self._parts: list[tuple[int, Bytes]] = []
        self.size = 0

    def add(self, array: np.ndarray[Any, Any]) -> int:
        """The byte at which it will begin. It is copied by `joined`, and must not change until then."""
        start, part = self.size, bytes_of(array)
        self._parts.append((start, part))
        self.size += -(-part.nbytes // ALIGNMENT) * ALIGNMENT
        return start

    def joined(self) -> Bytes:
        block = allocate(self.size)
        for start, part in self._parts:
            block[start : start + part.nbytes] = part
        return block


def _aligned(block: Bytes, nbytes: int, alignment: int) -> Bytes:
    start = -address(block) % alignment
    return block[start : start + nbytes]
