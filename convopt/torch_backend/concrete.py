"""An ATen graph with symbolic extents, bound to those of one call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import Graph, GraphModule, Interpreter, Node
from torch.fx._lazy_graph_module import _LazyGraphModule
from torch.fx.node import map_arg


def is_symbolic(module: GraphModule) -> bool:
    """Whether any extent is known at the call only."""
    return any(
        isinstance(value, torch.SymInt)
        or (
            isinstance(value, torch.Tensor)
            and any(isinstance(d, torch.SymInt) for d in (*value.shape, *value.stride()))
        )
        for node in module.graph.nodes
        if node.op == "placeholder"
        for value in [node.meta.get("val")]
    )


def copied(module: GraphModule) -> GraphModule:
    """A copy whose graph may be changed. Its code is made when it is first called, not at each change."""
    graph = Graph()
    graph.output(graph.graph_copy(module.graph, {}))
    return _LazyGraphModule(module, graph)


def bound(module: GraphModule, args: Sequence[Any]) -> GraphModule:
    """The graph for arguments of these shapes: numbers are literals, `meta["val"]` are static FakeTensors.

    It takes the same arguments. What torch refuses of such shapes raises torch's own error.
    """
    binder = _Binder(module)
    with FakeTensorMode() as mode, torch.no_grad():
        binder.mode = mode
        binder.run(
            *(mode.from_tensor(a) if isinstance(a, torch.Tensor) else a for a in args),
            enable_io_processing=False,
        )
    return _LazyGraphModule(module, binder.made)


class _Binder(Interpreter):
    """Runs the graph on FakeTensors and writes down what it runs."""

    mode: FakeTensorMode

    def __init__(self, module: GraphModule) -> None:
        super().__init__(module, garbage_collect_values=False)
        self.made = Graph()
        self.nodes: dict[Node, Any] = {}

    def fetch_attr(self, target: str) -> Any:
        found = super().fetch_attr(target)
        return self.mode.from_tensor(found) if isinstance(found, torch.Tensor) else found

    def run_node(self, node: Node) -> Any:
        result = super().run_node(node)
        if node.op == "output":
            self.made.output(map_arg(node.args[0], self._mapped))
        elif node.op != "placeholder" and _is_number(result):
            self.nodes[node] = result
        else:
            new = self.made.node_copy(node, self._mapped)
            new.meta["val"] = result
            self.nodes[node] = result if _is_number(result) else new
        return result

    def _mapped(self, node: Node) -> Any:
        return self.nodes[node]


def _is_number(value: Any) -> bool:
    return value is None or isinstance(value, (int, float, bool))
