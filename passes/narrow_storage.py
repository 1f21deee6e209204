"""Stores values between kernels as float16 or bfloat16: half the memory, arithmetic in float32 as before.

A kernel converts what it loads and rounds what it stores. The groups' bodies stay float32; only the types of
the values between groups change, and a group whose operand has another type than its body means a Cast there.
What stays float32: inputs and outputs of the model, constants, what an island reads or writes, the results of
`keep_fp32`, and everything that shares memory with one of these (slices, reshapes, concatenations).

Before::

    c = convopt.Conv<body = (x, w) => (y) { y = Conv(x, w) }>(a, w)       # c float32

After::

    c = convopt.Conv<body = (x, w) => (y) { y = Conv(x, w) }>(a, w)       # c float16
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import networkx as nx
import onnx_ir as ir

from convopt.errors import InputError
from convopt.ir.groups import body_of
from convopt.ir.precision import NARROW, Precision, keep_fp32
from convopt.ir.values import constant
from convopt.passes.base import Note, PassContext, PassReport

_SHARING = frozenset({"Move", "View"})  # their outputs may be views of their inputs, or the other way round


@dataclass(frozen=True)
class NarrowStorage:
    """Runs behind assign-layout. precision: the type to store, and the nodes to leave alone."""

    name: ClassVar[str] = "narrow-storage"
    precision: Precision

    @property
    def tolerance(self) -> float:
        """Of the outputs' scale: what rounding every value once may add up to."""
        return self.precision.tolerance

    def run(self, model: ir.Model, context: PassContext) -> PassReport:
        if self.precision.name == "fp32":
            return PassReport()
        dtype = NARROW.get(self.precision.name)
        graph = model.graph
        self._check_names(graph)
        memory, wide = nx.Graph(), set(graph.inputs) | set(graph.outputs)
        for group in graph:
            values = [v for v in (*group.inputs, *group.outputs) if v is not None and constant(v) is None]
            memory.add_nodes_from(values)
            if group.op_type in _SHARING:
                nx.add_path(memory, values)
            if group.op_type in ("Island", "Empty"):
                wide.update(values)
            if any(node.name in self.precision.keep_fp32 for node in body_of(group)):
                keep_fp32(group)
                # A copy in another layout, made for this group, would only round what it reads.
                copies = (v for v in group.inputs if v is not None and _is_copy(v))
                wide.update((*group.outputs, *copies))
        if dtype is None:
            return PassReport()  # tf32: only what is multiplied is rounded, and what is kept has its mark
        notes = []
        for shared in nx.connected_components(memory):
            if not shared.isdisjoint(wide):
                continue
            for value in shared:
                if value.dtype == ir.DataType.FLOAT:
                    value.type = ir.TensorType(dtype)
                    producer = value.producer()
                    assert producer is not None
                    notes.append(Note(producer.name or "", f"{value.name} is stored as {dtype.name.lower()}"))
        return PassReport(len(notes), tuple(notes))

    def _check_names(self, graph: ir.Graph) -> None:
        known = {node.name for group in graph for node in body_of(group)}
        unknown = [name for name in self.precision.keep_fp32 if name not in known]
        if unknown:
            raise InputError(
                f"keep_fp32: no node of the optimized model is named {unknown[0]!r};"
                " `convopt explain` lists them"
            )


def _is_copy(value: ir.Value) -> bool:
    producer = value.producer()
    return producer is not None and producer.op_type == "Relayout"
