"""What a Slice takes along one axis."""

from __future__ import annotations


def slice_range(start: int, end: int, step: int, size: int) -> range:
    """The positions in an axis of `size` elements, in order, by the clamping rules of Slice-10.

    They differ from Python's: going backwards, a start before the axis means its first element, and an end of
    -size - 1 or below is how the first element is included.
    """
    start, end = (bound + size if bound < 0 else bound for bound in (start, end))
    if step > 0:
        return range(min(max(start, 0), size), min(max(end, 0), size), step)
    return range(min(max(start, 0), size - 1), min(max(end, -1), size - 1), step)
