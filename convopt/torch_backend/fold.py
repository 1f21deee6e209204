"""What depends on parameters alone is computed once: transposed and cast weights, tables of indices."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._ops import OpOverload
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

aten = torch.ops.aten
_UNINITIALISED = (aten.empty.memory_format, aten.new_empty.default, aten.empty_like.default)
_MOST_ELEMENTS = 1 << 28  # of a result: what is larger is left to each call


@dataclass
class Constants:
    """By a node's name (the cut makes new nodes): what it always holds, and the placeholders behind that."""

    values: dict[str, torch.Tensor] = field(default_factory=dict)
    sources: dict[str, frozenset[str]] = field(default_factory=dict)
    folded: list[tuple[str, str]] = field(default_factory=list)  # (name, operator) of nodes that are gone


def fold(module: GraphModule, parameters: Mapping[Node, torch.Tensor]) -> Constants:
    """Replaces, in place, what non-constant nodes read of constant ones by attributes of the module.

    parameters: the placeholders that hold the same tensor at every call. The module is not recompiled.
    """
    graph, found = module.graph, Constants()
    constant: dict[Node, frozenset[str]] = {}
    known: dict[Node, Any] = {}

    def hold(node: Node, value: torch.Tensor, sources: frozenset[str]) -> None:
        found.values[node.name], found.sources[node.name] = value, sources
        known[node], constant[node] = value, sources

    for node, tensor in parameters.items():
        hold(node, tensor, frozenset([node.name]))
    for node in graph.nodes:
        if node.op == "get_attr" and isinstance(
            value := getattr(module, str(node.target), None), torch.Tensor
        ):
            hold(node, value, frozenset())
        elif node not in constant and _foldable(node, constant):
            inputs = [] if node.target in _UNINITIALISED else node.all_input_nodes
            constant[node] = frozenset().union(*(constant[n] for n in inputs))
    for node in list(graph.nodes):
        if node not in constant or node in known or not isinstance(node.meta.get("val"), torch.Tensor):
            continue
        readers = [user for user in node.users if user.op == "call_function" and user not in constant]
        if not readers:
            continue
        value, name = _value(node, known), f"_folded_{len(found.folded)}"
        module.register_buffer(name, value, persistent=False)
        with graph.inserting_before(node):
            new = graph.get_attr(name)
        new.meta["val"] = value
        node.replace_all_uses_with(new, delete_user_cb=lambda user, readers=readers: user in readers)
        hold(new, value, constant[node])
        found.folded.append((node.name, str(node.target)))
    graph.eliminate_dead_code()
    return found


def _foldable(node: Node, constant: Mapping[Node, frozenset[str]]) -> bool:
    if node.op != "call_function":
        return False
    if node.target in _UNINITIALISED:
        return True
    if not all(n in constant for n in node.all_input_nodes):
        return False
    if node.target is operator.getitem:
        return True
    target = node.target
    return (
        isinstance(target, OpOverload)
        and not target._schema.is_mutable
        and torch.Tag.nondeterministic_seeded not in target.tags
        and all(
            v.numel() <= _MOST_ELEMENTS for v in _flat(node.meta.get("val")) if isinstance(v, torch.Tensor)
        )
    )


def _flat(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (tuple, list)) else [value]


def _value(node: Node, known: dict[Node, Any]) -> Any:
    if node not in known:
        if node.target in _UNINITIALISED:
            value = node.meta["val"]
            known[node] = torch.zeros(value.shape, dtype=value.dtype, device=value.device)
        else:
            args = map_arg(node.args, lambda n: _value(n, known))
            kwargs = map_arg(node.kwargs, lambda n: _value(n, known))
            with torch.no_grad():
                known[node] = node.target(*args, **kwargs)  # type: ignore[operator]
    return known[node]
