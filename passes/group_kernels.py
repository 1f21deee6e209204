"""Cuts the graph into groups: each becomes one kernel, or one island that runs in onnxruntime.

A group is a node of the "convopt" domain whose `body` is the graph of standard operators that it computes, so
a group's meaning is its body, and expanding a lowered model is inlining. Elementwise operators join the
convolution, product or elementwise operator before them as long as one value leaves the group.

Before::

    c = Conv<pads = [1, 1, 1, 1]>(x, w, b)
    s = Sigmoid(c)
    y = Mul(c, s)

After::

    y = convopt.Conv<body = (x, w, b) => (y) { c = Conv(x, w, b)  s = Sigmoid(c)  y = Mul(c, s) }>(x, w, b)
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import networkx as nx
import onnx_ir as ir

from convopt.ir.groups import DOMAIN, REFUSED, captured, make_group
from convopt.ir.values import static_shape
from convopt.lowering.kinds import kind_of, why_not
from convopt.passes.base import Note, PassContext, PassReport

_EPILOGUE_KINDS = frozenset({"Conv", "Gemm", "Pointwise"})
_MOST_NODES = 24  # per group: registers and compile time grow with each
_MOST_INPUTS = 12  # a kernel's pointers are passed one by one
_BETWEEN = "it lies between nodes that pass values of unknown size"


@dataclass(frozen=True)
class GroupKernels:
    """refused: (node, reason) of nodes that must not be compiled, as later stages found out."""

    name: ClassVar[str] = "group-kernels"
    refused: tuple[tuple[str, str], ...] = ()

    def run(self, model: ir.Model, context: PassContext) -> PassReport:
        graph = model.graph
        nodes = [node for node in graph if node.domain != DOMAIN]
        refused = dict(self.refused)
        notes: list[Note] = []
        kinds: dict[ir.Node, str] = {}
        for node in nodes:
            reason = refused.get(node.name or "") or why_not(node, context.target)
            kinds[node] = "Island" if reason else kind_of(node)
            if reason:
                node.metadata_props[REFUSED] = reason
                notes.append(Note(node.name or "", reason, refused=True))
        grouping = _Grouping(nodes, kinds)
        for node in grouping.between_unknown_shapes():
            kinds[node] = "Island"
            node.metadata_props[REFUSED] = _BETWEEN
            notes.append(Note(node.name or "", _BETWEEN, refused=True))
        groups = grouping.kernels() + grouping.islands()
        for kind, members in groups:
            make_group(graph, kind, members)
            if len(members) > 1 and kind != "Island":
                joined = ", ".join(m.op_type for m in members[1:])
                notes.append(Note(members[0].name or "", f"one kernel with {joined}"))
        graph.sort()
        return PassReport(len(groups), tuple(notes))


@dataclass
class _Grouping:
    nodes: list[ir.Node]  # in topological order
    kinds: dict[ir.Node, str]
    taken: set[ir.Node] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.index = {node: i for i, node in enumerate(self.nodes)}
        self.readers: dict[ir.Node, list[ir.Node]] = {node: [] for node in self.nodes}
        for node in self.nodes:
            for producer in _producers(node):
                if producer in self.readers:
                    self.readers[producer].append(node)

    def kernels(self) -> list[tuple[str, list[ir.Node]]]:
        groups = []
        # Convolutions and products choose their epilogues first: what is left becomes pointwise kernels. The
        # later of two convolutions takes their sum: by then the other operand is ready.
        anchors = [n for n in reversed(self.nodes) if self.kinds[n] in ("Conv", "Gemm")]
        anchors += [n for n in self.nodes if self.kinds[n] not in ("Conv", "Gemm", "Island")]
        for node in anchors:
            if node in self.taken:
                continue
            kind = self.kinds[node]
            members = self._grow(node) if kind in _EPILOGUE_KINDS else [node]
            self.taken.update(members)
            groups.append((kind, members))
        return groups

    def _levelled(self) -> Any:
        """The nodes' graph, those that pass each other values of unknown size condensed to one.

        Such a value has to stay inside an island: memory between steps is planned, and needs sizes. Strings,
        sequences and optionals have none.
        """
        network = nx.DiGraph()
        network.add_nodes_from(self.nodes)
        for node, readers in self.readers.items():
            unknown = {v for v in node.outputs if static_shape(v) is None or v.dtype == ir.DataType.STRING}
            for reader in readers:
                network.add_edge(node, reader)
                if unknown and not unknown.isdisjoint((*reader.inputs, *captured(reader))):
                    network.add_edge(reader, node)
        return nx.condensation(network)

    def between_unknown_shapes(self) -> list[ir.Node]:
        """Compiled nodes on a way from the maker of a value of unknown size to its reader."""
        parts = [part["members"] for _, part in self._levelled().nodes(data=True)]
        between = {n for part in parts if len(part) > 1 for n in part if self.kinds[n] != "Island"}
        return [n for n in self.nodes if n in between]

    def islands(self) -> list[tuple[str, list[ir.Node]]]:
        """Fallback nodes of equal level form one island.

        The level counts changes between compiled and fallback on the way from the inputs, so nothing compiled
        can lie between two nodes of a level.
        """
        graph = self._levelled()
        fallback = {
            part: any(self.kinds[node] == "Island" for node in data["members"])
            for part, data in graph.nodes(data=True)
        }
        level: dict[int, int] = {}
        for part in nx.topological_sort(graph):
            before = graph.predecessors(part)
            level[part] = max((level[p] + (fallback[part] != fallback[p]) for p in before), default=0)
        islands: dict[int, list[ir.Node]] = {}
        for node in self.nodes:
            if self.kinds[node] == "Island":
                islands.setdefault(level[graph.graph["mapping"][node]], []).append(node)
        return [("Island", members) for members in islands.values()]

    def _grow(self, anchor: ir.Node) -> list[ir.Node]:
        """The anchor and the largest region of elementwise nodes behind it that one value leaves."""
        value = anchor.outputs[0]
        best, region = [anchor], {anchor}
        after = self._descendants(anchor)
        frontier = [(self.index[n], n) for n in set(value.consumers()) if n in self.index]
        heapq.heapify(frontier)
        seen = {n for _, n in frontier}
        while frontier and len(region) < _MOST_NODES:
            _, node = heapq.heappop(frontier)
            if not self._may_join(node, value, region, after):
                continue
            region.add(node)
            if _count_inputs(region) > _MOST_INPUTS:
                break
            for output in node.outputs:
                for consumer in output.consumers():
                    if consumer not in seen and consumer in self.index:
                        seen.add(consumer)
                        heapq.heappush(frontier, (self.index[consumer], consumer))
            if len(_leaving(region)) == 1:
                best = sorted(region, key=self.index.__getitem__)
        return best

    def _may_join(self, node: ir.Node, value: ir.Value, region: set[ir.Node], after: set[ir.Node]) -> bool:
        if self.kinds.get(node) != "Pointwise" or node in self.taken or len(node.outputs) != 1:
            return False
        if static_shape(node.outputs[0]) != static_shape(value) or node.outputs[0].dtype != value.dtype:
            return False
        # What is computed from the anchor by nodes outside can't be an operand: it would be a cycle.
        return all(p in region or p not in after for p in _producers(node))

    def _descendants(self, anchor: ir.Node) -> set[ir.Node]:
        found: set[ir.Node] = set()
        stack = [anchor]
        while stack:
            for reader in self.readers[stack.pop()]:
                if reader not in found:
                    found.add(reader)
                    stack.append(reader)
        return found


def _producers(node: ir.Node) -> Iterable[ir.Node]:
    """The nodes that make the node's inputs and what its subgraphs read of the graph."""
    for value in (*node.inputs, *captured(node)):
        producer = value.producer() if value is not None else None
        if producer is not None:
            yield producer


def _leaving(region: set[ir.Node]) -> list[ir.Value]:
    """The region's values that are read outside or are outputs of the model."""
    return [
        value
        for node in region
        for value in node.outputs
        if value.is_graph_output() or any(c not in region for c in value.consumers())
    ]


def _count_inputs(region: set[ir.Node]) -> int:
    return len({v for n in region for v in n.inputs if v is not None and v.producer() not in region})
