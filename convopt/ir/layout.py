"""The order of a value's dims in memory, kept on the value itself.

`channels-last` stores dim 1 innermost: N, spatial..., C. A value without the mark is row-major. Values whose
two orders are the same memory (one channel, or one pixel) have no choice and need no mark.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import onnx_ir as ir

from convopt.ir.values import static_shape

ROW_MAJOR = "row-major"
CHANNELS_LAST = "channels-last"
_KEY = "convopt.layout"
_BOUNDARY = ("convopt.inputs", "convopt.outputs")


def layout_of(value: ir.Value) -> str:
    return value.metadata_props.get(_KEY, ROW_MAJOR)


def set_layout(value: ir.Value, layout: str) -> None:
    if layout == ROW_MAJOR:
        value.metadata_props.pop(_KEY, None)
    else:
        value.metadata_props[_KEY] = layout


def set_boundary(graph: ir.Graph, inputs: Sequence[str], outputs: Sequence[str]) -> None:
    """Says in which layouts the graph's inputs come and its outputs are wanted, each in order."""
    for key, layouts in zip(_BOUNDARY, (inputs, outputs), strict=True):
        graph.metadata_props[key] = ",".join(layouts)


def boundary(graph: ir.Graph) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The layouts of the graph's inputs and outputs; row-major where nothing is said."""
    sides = (graph.inputs, graph.outputs)
    return tuple(  # type: ignore[return-value]
        tuple(graph.metadata_props[key].split(","))
        if graph.metadata_props.get(key)
        else (ROW_MAJOR,) * len(values)
        for key, values in zip(_BOUNDARY, sides, strict=True)
    )


def has_choice(value: ir.Value) -> bool:
    """Whether the two orders differ in memory."""
    shape = static_shape(value)
    return shape is not None and len(shape) >= 3 and shape[1] > 1 and prod(shape[2:]) > 1


def memory_order(rank: int, layout: str) -> tuple[int, ...]:
    """Dims from outermost to innermost."""
    if layout == CHANNELS_LAST and rank >= 3:
        return (0, *range(2, rank), 1)
    return tuple(range(rank))
