"""Give the model's inputs the extents that the caller asks for.

Before (shapes={"x": (1, 3, 224, 224)}):
    g (float[N,3,H,W] x) => (float[N,8,P,Q] y) { ... }
After:
    g (float[1,3,224,224] x) => (float[N,8,P,Q] y) { ... }

A dim that has a name is bound wherever an input carries that name, unless two inputs bind it to different
extents: runtimes don't hold models to their dims' names, and exporters are careless with them. An extent that
the model declares can be overridden: exporters often leave the shape of their example in the file. What it
declares of values inside is worth nothing then, and forgotten.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import ClassVar

import onnx_ir as ir

from convopt.errors import InputError
from convopt.ir.values import dims_of
from convopt.passes.base import Note, PassContext, PassReport


@dataclass(frozen=True)
class BindShapes:
    name: ClassVar[str] = "bind-shapes"

    def run(self, model: ir.Model, context: PassContext) -> PassReport:
        """Raises InputError for a name that is no input, a wrong rank or a negative extent."""
        inputs = {v.name: v for v in model.graph.inputs if v.name}
        bound: dict[str, set[int]] = {}
        notes: list[Note] = []
        for name, shape in context.shapes.items():
            if name not in inputs:
                raise InputError(f"a shape is given for {name!r}; the model's inputs are {', '.join(inputs)}")
            declared = dims_of(inputs[name]) or ()
            notes += _bind(inputs[name], tuple(shape), bound)
            if any(d is not None and d != e for d, e in zip(declared, shape, strict=False)):
                _forget_shapes(model)
        for value in model.graph.inputs:
            notes += _spread(value, {name: min(e) for name, e in bound.items() if len(e) == 1})
        return PassReport(len(notes), tuple(notes))


def _bind(value: ir.Value, shape: tuple[int, ...], bound: dict[str, set[int]]) -> list[Note]:
    if any(not isinstance(d, int) or isinstance(d, bool) or d < 0 for d in shape):
        raise InputError(f"input {value.name!r}: shape {shape}; expected integers of 0 or more")
    if max(shape, default=0) >= 1 << 63 or prod(shape) >= 1 << 63:
        raise InputError(f"input {value.name!r}: shape {shape}; expected fewer than 2^63 elements")
    if value.shape is None:
        value.shape = ir.Shape(shape)
        return [Note(value.name or "", f"shape {shape} given, none was declared")]
    if len(shape) != len(value.shape):
        raise InputError(
            f"input {value.name!r}: shape {shape} has {len(shape)} dims; expected {len(value.shape)},"
            f" as the model declares {value.shape}"
        )
    overridden = []
    for index, (declared, extent) in enumerate(zip(value.shape, shape, strict=True)):
        if isinstance(declared, ir.SymbolicDim):
            if declared.value:
                bound.setdefault(declared.value, set()).add(extent)
        elif declared != extent:
            overridden.append(f"{declared} -> {extent} at dim {index}")
    if tuple(value.shape) == shape:
        return []
    was, value.shape = str(value.shape), ir.Shape(shape)
    text = f"{was} bound to {list(shape)}"
    return [Note(value.name or "", text + (f", overriding {', '.join(overridden)}" if overridden else ""))]


def _forget_shapes(model: ir.Model) -> None:
    """What nodes give is of unknown extents from here on, until it is inferred anew; ranks stay."""
    for node in model.graph.all_nodes():
        for value in node.outputs:
            if value.shape is not None:
                value.shape = ir.Shape([None] * len(value.shape))


def _spread(value: ir.Value, bound: dict[str, int]) -> list[Note]:
    """Binds the dims of an input whose names were bound by another."""
    if value.shape is None:
        return []
    dims = [bound.get(d.value or "", d) if isinstance(d, ir.SymbolicDim) else d for d in value.shape]
    if all(a is b or a == b for a, b in zip(dims, value.shape, strict=True)):
        return []
    value.shape = ir.Shape(dims)
    return [Note(value.name or "", f"bound to {value.shape} by the dims' names")]
