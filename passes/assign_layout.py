"""Gives every value its order in memory, row-major or channels-last, at the least cost in copies.

Each operator has demands: convolutions, pools and resizes want channels-last; islands, reshapes and the
model's inputs and outputs are row-major; elementwise operators and concatenations take any order, the same on
all sides. Choosing the free ones so that the fewest bytes are copied is a minimum cut: the nodes are the
groups, the two sides the two orders, an edge is a value whose copy costs its bytes. Where producer and
consumer differ, a Relayout is inserted; Transposes of the model that channels-last makes trivial cost
nothing.

Before::

    y = convopt.Conv(x, w)          # x, y row-major

After::

    x_last = convopt.Relayout(x)    # channels-last
    y_last = convopt.Conv(x_last, w)
    y = convopt.Relayout(y_last)
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, ClassVar

import networkx as nx
import onnx_ir as ir

from convopt.ir.groups import body_of, is_group, make_group
from convopt.ir.layout import CHANNELS_LAST, ROW_MAJOR, boundary, has_choice, layout_of, set_layout
from convopt.ir.values import attribute, constant, static_shape, unique_name
from convopt.passes.base import Note, PassContext, PassReport

_LAST, _ROW = "source", "sink"  # the cut's two sides
_SIDES = {CHANNELS_LAST: _LAST, ROW_MAJOR: _ROW}
_FIXED_LAST = frozenset({"Conv", "Pool", "Resize"})
_FIXED_ROW = frozenset({"Empty", "Gemm", "Island"})


@dataclass(frozen=True)
class AssignLayout:
    name: ClassVar[str] = "assign-layout"

    def run(self, model: ir.Model, context: PassContext) -> PassReport:
        graph = model.graph
        problem = _Cut()
        inputs, outputs = boundary(graph)
        for value, layout in zip(graph.inputs, inputs, strict=True):
            problem.produced[value] = _SIDES[layout]
        for group in graph:
            problem.add_group(group)
        for value, layout in zip(graph.outputs, outputs, strict=True):
            problem.demands[value].append(_SIDES[layout])
        problem.solve()
        for value, side in problem.produced.items():
            if has_choice(value):
                set_layout(value, problem.layout(side))
        notes = tuple(_insert_relayouts(graph, problem, outputs))
        graph.sort()
        return PassReport(len(notes), notes)


@dataclass
class _Cut:
    """The flow network and who demands what: a "side" is a node of the network."""

    network: Any = field(default_factory=nx.DiGraph)
    produced: dict[ir.Value, Any] = field(default_factory=dict)
    demands: dict[ir.Value, list[Any]] = field(default_factory=lambda: defaultdict(list))
    wanted: dict[tuple[ir.Node, int], Any] = field(default_factory=dict)
    last_side: set[Any] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.network.add_nodes_from((_LAST, _ROW))

    def layout(self, side: Any) -> str:
        return CHANNELS_LAST if side in self.last_side else ROW_MAJOR

    def add_group(self, group: ir.Node) -> None:
        inside, outside = self._sides(group)
        for index, value in enumerate(group.inputs):
            if value is None or constant(value) is not None or not has_choice(value):
                continue
            side = inside
            if group.op_type == "Pointwise" and len(value.shape or ()) != len(group.outputs[0].shape or ()):
                side = _ROW  # broadcast from the right: its dim 1 is another dim of the result
            self.demands[value].append(side)
            self.wanted[group, index] = side
        for value in group.outputs:
            self.produced[value] = outside

    def _sides(self, group: ir.Node) -> tuple[Any, Any]:
        """The sides that the group's inputs and outputs are on."""
        kind = group.op_type
        first = next(iter(body_of(group)))
        if kind == "Pool" and first.op_type.startswith("Global"):
            return group, group
        if kind in _FIXED_LAST:
            return _LAST, _LAST
        if kind in _FIXED_ROW or not is_group(group):
            return _ROW, _ROW
        if kind == "Relayout":
            source = group.inputs[0]
            assert source is not None
            return _SIDES[layout_of(source)], _SIDES[layout_of(group.outputs[0])]
        if kind == "View":
            before, after = static_shape(group.inputs[0]), static_shape(group.outputs[0])
            # Spatial dims may be merged and split in either order; anything else mixes channels and pixels.
            free = before and after and len(before) > 2 < len(after) and before[:2] == after[:2]
            return (group, group) if free else (_ROW, _ROW)
        if kind == "Move" and first.op_type == "Transpose":
            return self._transpose(group, attribute(first, "perm") or ())
        return group, group

    def _transpose(self, group: ir.Node, perm: tuple[int, ...]) -> tuple[Any, Any]:
        rank, cost = len(perm), _bytes(group.inputs[0])
        inside, outside = (group, "in"), (group, "out")
        if perm == (0, *range(2, rank), 1):  # to channels at the end: free from channels-last to row-major
            self._add(_LAST, inside, cost)
            self._add(outside, _ROW, cost)
        elif perm == (0, rank - 1, *range(1, rank - 1)):
            self._add(inside, _ROW, cost)
            self._add(_LAST, outside, cost)
        return inside, outside

    def _add(self, a: Any, b: Any, cost: float) -> None:
        """Pays `cost` if a is channels-last and b row-major."""
        if self.network.has_edge(a, b):
            cost += self.network[a][b]["capacity"]
        self.network.add_edge(a, b, capacity=cost)

    def solve(self) -> None:
        for value, demands in self.demands.items():
            if not has_choice(value):
                continue
            source, cost = self.produced.get(value, _ROW), _bytes(value)
            # A copy is made once for all consumers that want the other order: one edge with the cost, edges
            # that are never cut to each of them.
            self._add((value, "to last"), source, cost)
            self._add(source, (value, "to row"), cost)
            for side in demands:
                self.network.add_edge(side, (value, "to last"))
                self.network.add_edge((value, "to row"), side)
        if self.network.number_of_edges():
            _, (last, _) = nx.minimum_cut(self.network, _LAST, _ROW)
            self.last_side = set(last)
        self.last_side.add(_LAST)


def _bytes(value: ir.Value | None) -> int:
    assert value is not None and value.dtype is not None
    return prod(static_shape(value) or (1,)) * max(1, value.dtype.bitwidth // 8)


def _insert_relayouts(graph: ir.Graph, problem: _Cut, outputs: Sequence[str]) -> list[Note]:
    made: dict[tuple[ir.Value, str], ir.Value] = {}
    notes = []

    def in_layout(value: ir.Value, layout: str, before: ir.Node | None) -> ir.Value:
        if not has_choice(value) or layout_of(value) == layout:
            return value
        if (value, layout) not in made:
            copy = ir.Value(
                name=unique_name(graph, f"{value.name}_{layout.replace('-', '_')}"),
                type=value.type,
                shape=value.shape,
            )
            node = ir.node("Identity", [value], outputs=[copy], name=copy.name)
            if before is not None:
                graph.insert_before(before, node)
            else:
                graph.append(node)
            group = make_group(graph, "Relayout", [node], keep=[copy])
            set_layout(group.outputs[0], layout)
            made[value, layout] = group.outputs[0]
            notes.append(Note(value.name or "", f"copied to {layout}, {_bytes(value)} bytes"))
        return made[value, layout]

    for (group, index), side in problem.wanted.items():
        value = group.inputs[index]
        assert value is not None
        group.replace_input_with(index, in_layout(value, problem.layout(side), group))
    for index, (value, layout) in enumerate(zip(graph.outputs, outputs, strict=True)):
        if has_choice(value) and layout_of(value) != layout:
            # The output keeps its name: the value before it gets a new one.
            name, value.name = (
                value.name,
                unique_name(graph, f"{value.name}_{layout_of(value).replace('-', '_')}"),
            )
            copy = in_layout(value, layout, None)
            copy.name = name
            graph.outputs[index] = copy
    return notes
