"""The backend of torch.compile."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._dynamo.backends.common import aot_autograd
from torch._functorch import config as functorch
from torch._guards import TracingContext
from torch.fx import GraphModule

from convopt.errors import InputError
from convopt.torch_backend.collector import paused_collector
from convopt.torch_backend.decompositions import whole_upsampling
from convopt.torch_backend.graph import TorchGraph
from convopt.torch_backend.inference import static_inputs, traced
from convopt.torch_backend.settings import Settings

logger = logging.getLogger("convopt.torch")


def compile_graph(
    module: GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    **how: Any,
) -> Callable[..., Any]:
    """The graph, to be called with tensors; what it needs of gradients is torch's.

    options: see `Settings`; without a target it is that of the tensors' device. Raises InputError for an
    option that there is not, and for tensors on another device than the target's.
    """
    if mode := how.pop("mode", None):
        raise InputError(f"mode {mode!r}: convopt has no modes; expected options={{...}}")
    tensors = (*example_inputs, *module.parameters(), *module.buffers())
    settings = Settings.of(options).on_device_of(tensors)

    def forward(graph: GraphModule, inputs: Sequence[Any]) -> Any:
        return _boxed(TorchGraph(graph, _parameters(), settings))

    def backward(graph: GraphModule, inputs: Sequence[Any]) -> Any:
        return _boxed(lambda args: graph(*args))

    with whole_upsampling(), paused_collector():
        try:
            graph = traced(module, example_inputs)
        except Exception as why:  # Declined, or an operator's own: AOTAutograd deals with it, or says it
            logger.debug("AOTAutograd traces the graph: %s", why)
        else:
            return _without_gradients(TorchGraph(graph, static_inputs(module), settings))
        compiler = aot_autograd(fw_compiler=forward, bw_compiler=backward, inference_compiler=forward)
        # Nothing here reuses memory of what the forward saved: none of it is collected, see `_parameters`.
        with functorch.patch(donated_buffer=False):
            compiled: Callable[..., Any] = compiler(module, example_inputs)
    return compiled


def _without_gradients(graph: TorchGraph) -> Callable[..., Any]:
    """As AOTAutograd runs a graph for inference: the casts of autocast are in the graph, once."""
    autocast = torch._C._DisableAutocast if torch._C._is_any_autocast_enabled() else contextlib.nullcontext

    def run(*args: Any) -> Any:
        with torch.no_grad(), autocast():
            return graph(args)

    return run


def _boxed(call: Callable[[Sequence[Any]], Any]) -> Any:
    """In AOTAutograd's convention: the arguments come in a list that is the callee's to empty."""

    def run(args: list[Any]) -> Any:
        given = list(args)
        args.clear()
        return call(given)

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


def _parameters() -> list[int]:
    """Which arguments of the graph being compiled are parameters or buffers that it doesn't change itself."""
    context = TracingContext.try_get()
    metadata = context.fw_metadata if context is not None else None
    if metadata is None:
        return []
    if metadata.bw_donated_idxs is None:
        # Not collected reads as "some are donated" in the backward, which then may run only once.
        metadata.bw_donated_idxs = []
    changed = {i for i, info in enumerate(metadata.input_info) if info.mutates_data or info.mutates_metadata}
    return [i for i in metadata.static_input_indices if i not in changed]
