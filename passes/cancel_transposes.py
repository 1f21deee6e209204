"""Merge Transposes in a row; a pair that undoes itself goes.

Before:
    a = Transpose <perm = [0, 3, 1, 2]> (x)  b = Relu (a)
    c = Transpose <perm = [0, 2, 3, 1]> (a)  y = Add (c, x)
After:
    a = Transpose <perm = [0, 3, 1, 2]> (x)  b = Relu (a)
    y = Add (x, x)

The first of a pair stays for its other readers. Moving Transposes past operators is the layout's business.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from convopt.ir.values import attribute, dims_of, is_op, label, remove_if_unused, replace_value, set_ints
from convopt.passes.base import Note, PassContext, PassReport


@dataclass(frozen=True)
class CancelTransposes:
    name: ClassVar[str] = "cancel-transposes"

    def run(self, model: ir.Model, context: PassContext) -> PassReport:
        notes: list[Note] = []
        for node in list(model.graph):
            perm = permutation(node)
            if perm is None or node.inputs[0] is None:
                continue
            first = node.inputs[0].producer()
            inner = permutation(first) if first is not None else None
            if first is not None and inner is not None:
                perm = tuple(inner[p] for p in perm)
                node.replace_input_with(0, first.inputs[0])
                set_ints(node, "perm", perm)
                notes.append(Note(node.name or "", f"merged with {label(first)} into perm {list(perm)}"))
                remove_if_unused(first)
            if perm == tuple(range(len(perm))):
                source = node.inputs[0]
                assert source is not None
                replace_value(node.outputs[0], source)
                remove_if_unused(node)
                notes.append(Note(node.name or "", "moves nothing: removed"))
        return PassReport(len(notes), tuple(notes))


def permutation(node: ir.Node) -> tuple[int, ...] | None:
    """perm of a Transpose, the default written out; None for another operator or an unknown rank."""
    if not is_op(node, "Transpose"):
        return None
    given = attribute(node, "perm")
    if given is not None:
        return tuple(int(p) for p in given)
    dims = dims_of(node.inputs[0])
    return None if dims is None else tuple(reversed(range(len(dims))))
