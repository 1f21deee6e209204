"""Register transposes by shuffles. Needs tvm."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm.tirx.script.builder import ir as T

Hold = Callable[[Any], Any]


def shuffle(vectors: Sequence[Any], indices: Sequence[int]) -> Any:
    """The lanes `indices` of the concatenation of `vectors`."""
    return T.Shuffle(list(vectors), [T.int32(i) for i in indices])


def transpose(rows: Sequence[Any], hold: Hold) -> list[Any]:
    """Rows of a square tile to its columns; as many lanes as rows, a power of two. `hold` names a value.

    First 4x4 tiles inside each 128-bit block by the two unpack steps that x86 and ARM have as instructions,
    then the blocks themselves (Eklundh's method), log2(n) shuffles per row in all.
    """
    n = len(rows)
    if n == 2:
        a, b = rows
        return [hold(shuffle([a, b], [0, 2])), hold(shuffle([a, b], [1, 3]))]
    rows = list(rows)
    blocks = range(0, n, 4)
    low = [i for b in blocks for i in (b, n + b, b + 1, n + b + 1)]
    high = [i for b in blocks for i in (b + 2, n + b + 2, b + 3, n + b + 3)]
    first = [i for b in blocks for i in (b, b + 1, n + b, n + b + 1)]
    second = [i for b in blocks for i in (b + 2, b + 3, n + b + 2, n + b + 3)]
    for base in blocks:
        r = rows[base : base + 4]
        ab, cd = hold(shuffle(r[:2], low)), hold(shuffle(r[2:], low))
        ab2, cd2 = hold(shuffle(r[:2], high)), hold(shuffle(r[2:], high))
        rows[base : base + 4] = [
            hold(shuffle([ab, cd], first)),
            hold(shuffle([ab, cd], second)),
            hold(shuffle([ab2, cd2], first)),
            hold(shuffle([ab2, cd2], second)),
        ]
    size = 4
    while size < n:
        even = [i if not i & size else n + i - size for i in range(n)]
        odd = [i + size if not i & size else n + i for i in range(n)]
        for i in range(n):
            if not i & size:
                a, b = rows[i], rows[i + size]
                rows[i], rows[i + size] = hold(shuffle([a, b], even)), hold(shuffle([a, b], odd))
        size *= 2
    return rows


def interleave(planes: Sequence[Any], lanes: int, hold: Hold) -> list[Any]:
    """Vectors a, b, c of `lanes` lanes to the vectors that hold a0 b0 c0 a1 b1 c1 ..."""
    count = len(planes)
    flat = [(f % count) * lanes + f // count for f in range(count * lanes)]
    return [hold(shuffle(planes, flat[v * lanes : (v + 1) * lanes])) for v in range(count)]


def deinterleave(vectors: Sequence[Any], lanes: int, hold: Hold) -> list[Any]:
    """The inverse of `interleave`."""
    count = len(vectors)
    return [hold(shuffle(vectors, range(c, count * lanes, count))) for c in range(count)]
