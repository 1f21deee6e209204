"""What is left of BatchNormalization, as elementwise arithmetic that joins the kernels around it.

Before::

    y = BatchNormalization <epsilon = 1e-05> (x, scale, shift, mean, var)

After, with constant statistics (s = scale / sqrt(var + epsilon), t = shift - mean * s, both 1xCx1x1)::

    m = Mul (x, s)
    y = Add (m, t)

Statistics that are computed are reshaped to 1xCx1x1 and used as the operator's formula has them. Training
forms (more than one output) stay as they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from convopt.ir.values import attribute, is_op, new_constant, new_node, replace_value, static_shape
from convopt.passes.base import Note, PassContext, PassReport
from convopt.passes.fold_batchnorm import scale_shift


@dataclass(frozen=True)
class LowerBatchNorm:
    name: ClassVar[str] = "lower-batchnorm"

    def run(self, model: ir.Model, context: PassContext) -> PassReport:
        notes = []
        for node in list(model.graph):
            if is_op(node, "BatchNormalization") and _lower(node):
                notes.append(Note(node.name or "", "written as multiplication and addition per channel"))
        return PassReport(len(notes), tuple(notes))


def _lower(node: ir.Node) -> bool:
    x, graph = node.inputs[0], node.graph
    shape = static_shape(x)
    assert x is not None and graph is not None
    if shape is None or len(node.outputs) != 1 or attribute(node, "training_mode", 0) or x.dtype is None:
        return False
    stem = node.name or "batchnorm"
    wide = (1, shape[1], *(1,) * (len(shape) - 2))

    def apply(op: str, a: ir.Value, b: ir.Value, extents: tuple[int, ...]) -> ir.Value:
        return new_node(node, op, [a, b], stem=f"{stem}_{op.lower()}", dtype=x.dtype, shape=extents)

    factors = scale_shift(node, 0, shape[1], len(shape))
    if factors is not None:
        scale, shift = (
            new_constant(graph, a.reshape(wide).astype(x.dtype.numpy()), f"{stem}_{what}")
            for a, what in zip(factors, ("scale", "shift"), strict=True)
        )
    else:
        extents = new_constant(graph, np.array(wide, np.int64), f"{stem}_shape")
        epsilon = np.array(attribute(node, "epsilon", 1e-5), x.dtype.numpy())
        given = [v for v in node.inputs[1:5] if v is not None]
        if len(given) != 4 or any(v.dtype != x.dtype for v in given):
            return False
        gamma, beta, mean, variance = (
            new_node(node, "Reshape", [v, extents], stem=f"{stem}_per_channel", dtype=x.dtype, shape=wide)
            for v in given
        )
        padded = apply("Add", variance, new_constant(graph, epsilon, f"{stem}_epsilon"), wide)
        root = new_node(node, "Sqrt", [padded], stem=f"{stem}_sqrt", dtype=x.dtype, shape=wide)
        scale = apply("Div", gamma, root, wide)
        shift = apply("Sub", beta, apply("Mul", mean, scale, wide), wide)
    replace_value(node.outputs[0], apply("Add", apply("Mul", x, scale, shape), shift, shape))
    graph.remove(node, safe=True)
    return True
