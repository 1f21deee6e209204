"""Which element of the epilogue's strip a thread takes: for numbers and for TIR alike."""

from __future__ import annotations

from typing import Any


def store_position(unit: Any, rows: int, across: int, lanes: int, by_rows: bool) -> tuple[Any, Any]:
    """(row, first column) of the strip that store `unit` takes, `across` vectors of `lanes` in a row.

    by_rows: neighbouring units take neighbouring channels, else neighbouring pixels.
    """
    if by_rows:
        return unit // across, unit % across * lanes
    return unit % rows, unit // rows * lanes
