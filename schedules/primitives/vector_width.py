"""How many neighbouring elements one load or store may take."""

from __future__ import annotations

from functools import lru_cache

from convopt.schedules.base import TensorView

ITEMSIZE = {"float32": 4, "float16": 2, "bfloat16": 2}
MOST_BYTES = 16


@lru_cache(maxsize=4096)
def access_width(view: TensorView, axis: int, most_bytes: int = MOST_BYTES) -> int:
    """The most elements along `axis` that every aligned group of them can be moved as one vector.

    They must be neighbours in memory, the extent a multiple of them, and every other step and the pointer
    itself too.
    """
    if view.strides[axis] != 1 and view.shape[axis] != 1:
        return 1
    width = max(1, most_bytes // ITEMSIZE[view.dtype])
    steps = [s for i, s in enumerate(view.strides) if i != axis and view.shape[i] != 1]
    while width > 1 and (
        view.shape[axis] % width
        or any(s % width for s in steps)
        or view.alignment % (width * ITEMSIZE[view.dtype])
    ):
        width //= 2
    return width
