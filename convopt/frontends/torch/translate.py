"""A graph of ATen operators with static shapes as an ONNX model, and why operators have no place in one.

A node's `meta["val"]` (a FakeTensor, a tuple of them, or a number) tells its result's shape and dtype.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir
import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg

from convopt.frontends.onnx_file import TranslatedModel
from convopt.frontends.torch import elementwise, movement, norms, pools, products
from convopt.frontends.torch.builder import (
    FLOATS,
    Builder,
    Missing,
    OnDemand,
    Tensor,
    Untranslatable,
    as_array,
)
from convopt.ir.values import unique_name

TABLE: dict[Any, Callable[..., Any]] = {
    **elementwise.TABLE,
    **movement.TABLE,
    **norms.TABLE,
    **pools.TABLE,
    **products.TABLE,
}
# What costs nothing in torch: another look at the same memory.
VIEWS = frozenset(
    getattr(getattr(torch.ops.aten, name), overload)
    for name, overload in (
        ("alias", "default"), ("as_strided", "default"),
        ("detach", "default"), ("expand", "default"), ("permute", "default"),
        ("reshape", "default"), ("select", "int"), ("slice", "Tensor"), ("split", "Tensor"),
        ("split_with_sizes", "default"),
        ("squeeze", "default"), ("squeeze", "dim"), ("squeeze", "dims"), ("t", "default"),
        ("transpose", "int"), ("unbind", "int"), ("unsqueeze", "default"), ("view", "default"),
    )
)  # fmt: skip
_DTYPES = {
    torch.float32: ir.DataType.FLOAT,
    torch.float16: ir.DataType.FLOAT16,
    torch.bfloat16: ir.DataType.BFLOAT16,
    torch.int64: ir.DataType.INT64,
    torch.int32: ir.DataType.INT32,
    torch.int16: ir.DataType.INT16,
    torch.int8: ir.DataType.INT8,
    torch.uint8: ir.DataType.UINT8,
    torch.bool: ir.DataType.BOOL,
}


@dataclass(frozen=True)
class Translation:
    """inputs: the graph's placeholders that the model reads, in the order of its inputs. outputs: for each
    result of the graph the index of the model's output, or the tensor or number that it always is.
    held: the placeholders whose contents the model holds.
    """

    model: TranslatedModel
    inputs: tuple[Node, ...]
    outputs: tuple[int | torch.Tensor | None, ...]
    held: frozenset[Node]


def refusals(graph: Graph, constants: Mapping[Node, torch.Tensor]) -> dict[Node, str]:
    """Why nodes can't be translated, for each that can't."""
    walk = _Walk(constants, tolerant=True)
    for node in graph.nodes:
        walk.visit(node)
    refused = walk.refused
    for node in graph.nodes:
        if _picks(node) and node in refused:
            # The parts of a result stay together: a part that has no translation takes along the others.
            refused.setdefault(node.args[0], refused[node])
    for node in graph.nodes:
        if _picks(node) and node.args[0] in refused:
            refused.setdefault(node, refused[node.args[0]])
    return refused


def translate(
    module: GraphModule, constants: Mapping[Node, torch.Tensor], declared: bool = False
) -> Translation:
    """The whole graph as a model.

    constants: what placeholders (and get_attr nodes) hold, where that is known. declared: inputs and outputs
        of the model have torch's dtypes; else those that are computed in, and the caller converts.
    Raises:
        Untranslatable: names the node.
    """
    walk = _Walk(constants, tolerant=False, declared=declared)
    for node in module.graph.nodes:
        walk.visit(node)
    results = next(n for n in reversed(module.graph.nodes) if n.op == "output").args[0]
    outputs = walk.outputs(results if isinstance(results, (tuple, list)) else (results,))
    model = TranslatedModel(walk.builder.graph, ir_version=10)
    return Translation(model, tuple(walk.inputs), tuple(outputs), frozenset(walk.held))


def _picks(node: Node) -> bool:
    return node.op == "call_function" and node.target is operator.getitem


class _Walk:
    """Visits nodes in order. `tolerant` notes what can't be translated and goes on behind it."""

    def __init__(
        self, constants: Mapping[Node, torch.Tensor], tolerant: bool, declared: bool = False
    ) -> None:
        self.constants, self.tolerant, self.declared = constants, tolerant, declared
        self.builder = Builder()
        self.results: dict[Node, Any] = {}
        self.refused: dict[Node, str] = {}
        self.inputs: list[Node] = []
        self.held: set[Node] = set()

    def visit(self, node: Node) -> None:
        if node.op == "output":
            return
        if node.op in ("placeholder", "get_attr"):
            self.results[node] = _Lazy(node)
            return
        try:
            self.results[node] = self._call(node)
        except Untranslatable as reason:
            if not self.tolerant:
                raise Untranslatable(f"{node.name}: {reason}") from None
            self.refused[node] = str(reason)
            self.results[node] = _Lazy(node)

    def _call(self, node: Node) -> Any:
        if node.op != "call_function":
            raise Untranslatable(f"a {node.op}")
        out = node.meta.get("val")
        if _picks(node):
            return self._pick(node, out)
        translate = TABLE.get(node.target)
        if translate is None:
            raise Untranslatable(f"no translation of {node.target}")
        _check_result(out)
        self.builder.stem, self.builder.out = node.name, out
        args, kwargs = _by_position(node)
        result = translate(self.builder, *map_arg(args, self._operand), **map_arg(kwargs, self._operand))
        return self._tensors(result, out)

    def _pick(self, node: Node, out: Any) -> Any:
        source, which = node.args
        assert isinstance(source, Node) and isinstance(which, int)
        if isinstance(out, torch.Tensor) and out.numel() == 0:
            return _Empty(torch.empty(out.shape, dtype=out.dtype))
        results = self.results[source]
        if isinstance(results, _Lazy):
            raise Untranslatable(self.refused.get(source, "a part of what torch computes"))
        result = results[which]
        if isinstance(result, Missing):
            raise Untranslatable(f"{result.why} are wanted")
        if isinstance(result, OnDemand):
            self.builder.stem, self.builder.out = node.name, out
            return self._tensors(result.make(), out)
        return result

    def _tensors(self, result: Any, out: Any) -> Any:
        if isinstance(result, tuple):
            return tuple(self._tensors(r, o) for r, o in zip(result, out, strict=True))
        if isinstance(result, ir.Value):
            return Tensor.like(result, out)
        if isinstance(result, Tensor):  # its argument as it is: the dtype may be another
            return Tensor.like(result.value, out, result.array)
        return result

    def _operand(self, node: Node) -> Any:
        result = self.results[node]
        if isinstance(result, _Empty):
            raise Untranslatable("an operand is empty")
        if isinstance(result, _Lazy):
            result = self.results[node] = self._enter(node)
        return result

    def _enter(self, node: Node) -> Tensor:
        """A constant, or an input of the model."""
        value = self.constants.get(node)
        out = node.meta.get("val") if value is None else value
        if not isinstance(out, torch.Tensor):
            raise Untranslatable(f"{node.name} is no tensor")
        _check_tensor(out)
        dtype = _DTYPES[out.dtype] if self.declared else _computed(out.dtype)
        shape = ir.Shape(map(int, out.shape))
        if value is not None:
            self.held.add(node)
            if self.tolerant:  # only refusals are asked for: no copies of weights
                return Tensor.like(
                    ir.Value(name=node.name, shape=shape, type=ir.TensorType(dtype)), out, value
                )
            self.builder.stem, stem = node.name, self.builder.stem
            made = self.builder.constant(as_array(value))
            self.builder.stem = stem
            return Tensor.like(made, out, value)
        made = ir.Value(
            name=unique_name(self.builder.graph, node.name), shape=shape, type=ir.TensorType(dtype)
        )
        self.builder.graph.inputs.append(made)
        self.inputs.append(node)
        if dtype != _computed(out.dtype):
            made = self.builder.op("Cast", made, to=int(_computed(out.dtype)))
        return Tensor.like(made, out)

    def outputs(self, results: Sequence[Any]) -> list[int | torch.Tensor | None]:
        graph, known = self.builder.graph, dict[ir.Value, int]()
        places: list[int | torch.Tensor | None] = []
        for node in results:
            result = None if node is None else self.results[node]
            if result is None or isinstance(result, _Empty):
                places.append(None if result is None else result.tensor)
                continue
            tensor = self._operand(node)
            if tensor.value not in known:
                known[tensor.value] = len(graph.outputs)
                value, dtype = tensor.value, _computed(tensor.dtype)
                self.builder.stem = node.name
                if self.declared and dtype != _DTYPES[tensor.dtype]:
                    dtype = _DTYPES[tensor.dtype]
                    value = self.builder.op("Cast", value, to=int(dtype))
                elif value.producer() is None:
                    value = self.builder.op("Identity", value)
                value.shape, value.type = ir.Shape(tensor.shape), ir.TensorType(dtype)
                graph.outputs.append(value)
            places.append(known[tensor.value])
        return places


@dataclass(frozen=True)
class _Lazy:
    """A tensor from outside, taken in when it is read."""

    node: Node


@dataclass(frozen=True)
class _Empty:
    """A result without elements."""

    tensor: torch.Tensor


def _by_position(node: Node) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The node's arguments, keywords at their place where the schema has one for them."""
    args, kwargs = list(node.args), dict(node.kwargs)
    schema = node.target._schema  # type: ignore[union-attr]
    for argument in schema.arguments[len(args) :]:
        if argument.kwarg_only or not kwargs:
            break
        args.append(kwargs.pop(argument.name, argument.default_value))
    return tuple(args), kwargs


def _computed(dtype: torch.dtype) -> ir.DataType:
    """What stands for tensors of the dtype inside of a model."""
    return ir.DataType.BOOL if dtype == torch.bool else ir.DataType.FLOAT


def _check_result(out: Any) -> None:
    """Of what a kernel computes the elements are float32, or truth values."""
    tensors = [o for o in (out if isinstance(out, (tuple, list)) else (out,)) if isinstance(o, torch.Tensor)]
    if not tensors:
        raise Untranslatable("its result is no tensor")
    first = tensors[0]
    if first.dtype not in (*FLOATS, torch.bool):
        raise Untranslatable(f"{str(first.dtype).removeprefix('torch.')} is not computed by kernels")
    if first.numel() == 0:
        raise Untranslatable("its result is empty")


def _check_tensor(tensor: torch.Tensor) -> None:
    if tensor.layout != torch.strided or tensor.is_quantized:
        raise Untranslatable("a tensor that is not strided")
    if tensor.dtype not in _DTYPES:
        raise Untranslatable(f"an operand of {str(tensor.dtype).removeprefix('torch.')}")
    if tensor.numel() == 0:
        raise Untranslatable("an operand is empty")
