"""Dynamo's graph as ATen operators in one trace, where nothing but results is wanted of it.

AOTAutograd traces a graph twice and wraps it in what few graphs for inference need: gradients, changed
inputs, results that lie in an input's memory, tensor subclasses. Here the graph runs once, on FakeTensors
under torch's functionalization, and each operator that it reaches is written down. Whatever shows in that
run to be more than inputs in, new tensors out is declined, with the reason: AOTAutograd's matter.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch._dispatch.python import enable_python_dispatcher
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import Graph, GraphModule, Node
from torch.fx._lazy_graph_module import _LazyGraphModule
from torch.fx.node import map_aggregate
from torch.utils._python_dispatch import TorchDispatchMode

untyped: Any = torch  # what torch's stubs leave out


class Declined(Exception):
    """The graph needs more than a trace of its operators; the text says what."""


def traced(module: GraphModule, inputs: Sequence[Any]) -> GraphModule:
    """A functional ATen graph of the same inputs and results; each node's `meta["val"]` is a FakeTensor.

    module: from dynamo, not changed. inputs: what it is about to be called with.

    Raises:
        Declined: see above. Any other error is one that the graph's operators raise.
    """
    _check_ambience(inputs)
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    fakes = [_fake(node, value) for node, value in zip(placeholders, inputs, strict=True)]
    for node in module.graph.nodes:
        if node.op not in ("placeholder", "output"):
            _check_node(node)
    recorder = _Recorder([node.name for node in placeholders], fakes)
    modes = {fake.fake_mode for fake in fakes}
    if len(modes) != 1:
        raise Declined("it has no inputs, or those of several traces")
    with modes.pop(), torch.no_grad(), recorder, enable_python_dispatcher():
        results = _functional(module, fakes)
    return recorder.module(results, fakes)


def _functional(module: GraphModule, inputs: Sequence[FakeTensor]) -> list[Any]:
    """Runs it with operators that change their arguments replaced by those that don't."""
    wrapped = [untyped._to_functional_tensor(tensor) for tensor in inputs]
    for tensor, wrapper in zip(inputs, wrapped, strict=True):
        # Torch takes a product apart otherwise where its operand wants a gradient, under no_grad too.
        untyped._mirror_autograd_meta_to(tensor, wrapper)
    untyped._enable_functionalization(reapply_views=True)
    try:
        results = module(*wrapped)
    finally:
        untyped._disable_functionalization()
    for wrapper in wrapped:
        if (
            untyped._functionalize_has_data_mutation(wrapper)
            or untyped._functionalize_has_metadata_mutation(wrapper)
            or untyped._functionalize_was_storage_changed(wrapper)
        ):
            raise Declined("it changes an input")
    for result in results:
        if not isinstance(result, torch.Tensor) or not untyped._is_functional_tensor(result):
            raise Declined("it gives more than tensors")
        untyped._sync(result)
    return [untyped._from_functional_tensor(result) for result in results]


def static_inputs(module: GraphModule) -> list[int]:
    """Which inputs of dynamo's graph are parameters or buffers, as AOTAutograd finds them."""
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    return [
        i
        for i, node in enumerate(placeholders)
        if node.meta.get("tensor_dict", {}).get("_dynamo_static_input_type")
    ]


def _check_ambience(inputs: Sequence[Any]) -> None:
    for value in inputs:
        if type(value) not in (torch.Tensor, torch.nn.Parameter):
            raise Declined(f"an input is a {type(value).__name__}")
        if value.is_neg() or value.is_conj():
            raise Declined("an input's sign is pending")
    if torch.is_grad_enabled() and any(value.requires_grad for value in inputs):
        raise Declined("gradients may be wanted")
    if (
        torch._C._len_torch_dispatch_stack()
        or torch._C._len_torch_function_stack()
        or torch._C._functorch.peek_interpreter_stack() is not None
    ):
        raise Declined("a mode of torch's dispatch, or a transform, is in force")


def _fake(node: Node, value: torch.Tensor) -> FakeTensor:
    """What dynamo traced the input as, if that is still like it: tracing may have changed its shape."""
    fake = node.meta.get("example_value")
    if not isinstance(fake, FakeTensor):
        raise Declined(f"{node.name} was traced as a {type(fake).__name__}")
    if any(isinstance(e, torch.SymInt) for e in (*fake.shape, *fake.stride(), fake.storage_offset())):
        raise Declined(f"{node.name} has dynamic extents")
    if _geometry(fake) != _geometry(value) or fake.dtype != value.dtype:
        raise Declined(f"{node.name} was changed by the trace")
    return fake


def _geometry(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tuple(tensor.shape), tensor.stride(), tensor.storage_offset()


def _check_node(node: Node) -> None:
    """Tensors in, tensors out: whatever else dynamo writes down is about torch's state, or about numbers."""
    value = node.meta.get("example_value")
    values = [v for v in value if v is not None] if isinstance(value, (tuple, list)) else [value]
    gives_tensors = bool(values) and all(isinstance(v, torch.Tensor) for v in values)
    if node.op not in ("call_function", "call_method") or not gives_tensors:
        raise Declined(f"{node.name}: a {node.op} that does not give tensors")
    if isinstance(node.target, torch._ops.HigherOrderOperator):
        raise Declined(f"{node.name}: {node.target} calls other graphs")


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Writes down the operators that are called below it."""

    def __init__(self, names: Sequence[str], inputs: Sequence[FakeTensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.graph = Graph()
        # Together with the tensor, whose id is not another's for as long as it is held.
        self.nodes: dict[int, tuple[Node, torch.Tensor]] = {}
        for name, tensor in zip(names, inputs, strict=True):
            self._hold(self.graph.placeholder(name), tensor)

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if func is torch.ops.prim.device.default:  # a question, whose answer is no tensor
            return result
        if func.namespace != "aten":
            raise Declined(f"it calls {func}")
        if func._schema.is_mutable:
            raise Declined(f"it changes an input: {func}")
        node = self.graph.call_function(func, self._nodes(args), self._nodes(kwargs))
        if isinstance(result, torch.Tensor):
            self._hold(node, result)
        elif isinstance(result, (tuple, list)) and all(
            r is None or isinstance(r, torch.Tensor) for r in result
        ):
            node.meta["val"] = result
            for i, part in enumerate(result):
                if part is not None:
                    self._hold(self.graph.call_function(operator.getitem, (node, i)), part)
        else:
            raise Declined(f"a result that is no tensor: {func}")
        return result

    def _hold(self, node: Node, tensor: torch.Tensor) -> None:
        node.meta["val"] = tensor
        self.nodes[id(tensor)] = node, tensor

    def _nodes(self, given: Any) -> Any:
        return map_aggregate(
            given, lambda value: self._node(value) if isinstance(value, torch.Tensor) else value
        )

    def _node(self, tensor: torch.Tensor) -> Node:
        if id(tensor) not in self.nodes:
            raise Declined("it holds a tensor of its own")
        return self.nodes[id(tensor)][0]

    def module(self, results: Any, inputs: Sequence[FakeTensor]) -> GraphModule:
        memory = [tensor.untyped_storage()._cdata for tensor in inputs]
        for result in results:
            if result.requires_grad:
                raise Declined("a result wants a gradient")
            if (address := result.untyped_storage()._cdata) in memory:
                raise Declined("a result lies in memory of an input, or of another result")
            memory.append(address)
        self.graph.output(tuple(map(self._node, results)))
        self.graph.eliminate_dead_code()
        return _LazyGraphModule(torch.nn.Module(), self.graph)  # called only where it stays in torch
