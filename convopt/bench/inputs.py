"""A model made ready to be measured: its inputs' dims bound, and a random array for each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from convopt.errors import InputError

if TYPE_CHECKING:
    import onnx_ir as ir

Array = np.ndarray[Any, Any]


def bind_inputs(model: ir.Model, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Array]:
    """Gives the model's inputs these shapes, in place, and returns random arrays of them.

    What it declares of other values' shapes is dropped: engines refuse what contradicts the new shapes.

    Raises:
        InputError: a shape that does not fit, or an input that is left with dynamic dims.
    """
    from convopt.passes.base import PassContext
    from convopt.passes.bind_shapes import BindShapes
    from convopt.passes.check import draw_inputs

    context = PassContext(shapes=shapes)
    BindShapes().run(model, context)
    for node in model.graph:
        for value in node.outputs:
            value.shape = None
    arrays = draw_inputs(model, context, seed=0)
    if arrays is None:
        dynamic = next(v for v in model.graph.inputs if v.shape is None or not v.shape.is_static())
        raise InputError(
            f"input {dynamic.name!r} has dynamic dims {dynamic.shape}; give --shape {dynamic.name}:D,D,..."
        )
    return arrays
