"""Which nodes of an ATen graph are compiled, and the cut into parts."""

from __future__ import annotations

import operator
from collections.abc import Mapping

import torch
from torch.fx import GraphModule, Node
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
from torch.fx.passes.operator_support import OperatorSupportBase

from convopt.frontends.torch.translate import VIEWS, refusals
from convopt.runtime.program import Placement

aten = torch.ops.aten
_COPIES = frozenset(
    {
        *VIEWS, aten.clone.default, aten._unsafe_view.default, aten._to_copy.default,
        aten.lift_fresh_copy.default, operator.getitem,
    }
)  # fmt: skip


class Cut:
    """nodes: those to compile. views: those left in torch since they cost nothing there. refused: the others,
    with the reasons.
    """

    def __init__(
        self, module: GraphModule, values: Mapping[str, torch.Tensor], refused: Mapping[str, str]
    ) -> None:
        self.module = module
        constants = {node: values[node.name] for node in module.graph.nodes if node.name in values}
        calls = [
            node for node in module.graph.nodes if node.op in ("call_function", "call_module", "call_method")
        ]
        self.refused = refusals(module.graph, constants)
        for node in calls:
            if node.name in refused:
                self.refused[node] = refused[node.name]
        self.nodes = {node for node in calls if node not in self.refused}
        self.views: set[Node] = set()
        self._leave_views(calls, constants)

    def _leave_views(self, calls: list[Node], constants: Mapping[Node, torch.Tensor]) -> None:
        """A view at the rim of what is compiled would become a copy there; a refused one is free in torch."""

        def leave(node: Node) -> None:
            self.nodes.discard(node)
            self.views.add(node)

        for node in [node for node in self.refused if _is_view(node)]:
            del self.refused[node]
            leave(node)
            if node.target is aten.as_strided.default:
                # It sees the storage of what it is a view of, which a part's result does not share.
                above = node.args[0]
                while isinstance(above, Node) and _is_view(above):
                    leave(above)
                    above = above.args[0]
        views = [node for node in calls if node in self.nodes and _is_view(node)]
        for node in views:
            if not any(n in self.nodes for n in node.all_input_nodes if n not in constants):
                leave(node)
        for node in reversed(views):
            if node in self.nodes and not any(user in self.nodes for user in node.users):
                leave(node)

    def fuse(self) -> list[str]:
        """Puts the nodes to compile into submodules of the module; their names. Its user recompiles it."""
        partitioner = CapabilityBasedPartitioner(
            self.module, _Support(self.nodes), allows_single_node_partition=True
        )
        partitions = []
        for partition in partitioner.propose_partitions():
            if all(node.target in _COPIES for node in partition.nodes):
                for node in partition.nodes:
                    self.nodes.discard(node)
                    self.views.add(node)
            else:
                partitions.append(partition)
        before = {node.name for node in self.module.graph.nodes}
        partitioner.fuse_partitions(partitions)
        self.module.graph.lint()
        return [n.name for n in self.module.graph.nodes if n.op == "call_module" and n.name not in before]

    def placement(self) -> list[Placement]:
        places = [
            Placement(node.name, str(node.target), "fallback", why) for node, why in self.refused.items()
        ]
        places += [Placement(node.name, str(node.target), "view", "") for node in self.views]
        places += [Placement(node.name, str(node.target), "compiled", "") for node in self.nodes]
        return [place for place in places if place.op != str(operator.getitem)]


class _Support(OperatorSupportBase):
    def __init__(self, nodes: set[Node]) -> None:
        self.nodes = nodes

    def is_node_supported(self, submodules: Mapping[str, torch.nn.Module], node: Node) -> bool:
        return node in self.nodes


def _is_view(node: Node) -> bool:
    if node.target is operator.getitem:
        source = node.args[0]
        return isinstance(source, Node) and source.target in VIEWS
    return node.target in VIEWS
