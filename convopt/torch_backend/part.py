"""A compiled part of a torch graph: tensors in, tensors out, over torch's own memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir
import torch
from torch.fx import GraphModule, Node

from convopt.frontends.torch.builder import Untranslatable
from convopt.frontends.torch.translate import Translation
from convopt.ir.layout import CHANNELS_LAST, ROW_MAJOR, set_boundary
from convopt.runtime.device_arrays import DeviceArray
from convopt.runtime.device_program import DeviceProgram
from convopt.runtime.execution import ContextPool
from convopt.runtime.module import CompiledModule

Compile = Callable[[ir.Model], CompiledModule]


@dataclass(frozen=True)
class Entry:
    """An input: where it is among the part's arguments, and how the kernels want it."""

    position: int
    dtype: torch.dtype
    channels_last: bool

    def ready(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor as it is where dtype and order of memory fit, else a copy."""
        tensor = tensor.resolve_neg()  # a view's pending minus is not in memory
        if tensor.dtype != self.dtype:
            tensor = tensor.to(self.dtype)
        if not self.channels_last:
            return tensor.contiguous()
        last = tensor.movedim(1, -1)
        return tensor if last.is_contiguous() else last.contiguous().movedim(-1, 1)


@dataclass(frozen=True)
class Result:
    """An output: the kernels write `computed` into memory of these strides; a caller gets `dtype`."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    computed: torch.dtype
    dtype: torch.dtype


class CompiledPart(torch.nn.Module):
    """Stands in for a submodule of the graph. Without gradients: AOTAutograd has taken care of those."""

    def __init__(self, module: GraphModule, translation: Translation, compile_model: Compile) -> None:
        super().__init__()
        self.original = [module]  # in a list: it is no submodule, its parameters are not ours
        places = {node: i for i, node in enumerate(n for n in module.graph.nodes if n.op == "placeholder")}
        self.entries = tuple(_entry(node, places[node]) for node in translation.inputs)
        results = next(n for n in reversed(module.graph.nodes) if n.op == "output").args[0]
        self.single = not isinstance(results, (tuple, list))
        nodes: Sequence[Any] = [results] if self.single else results
        self.outputs = translation.outputs
        found: dict[int, Result] = {}
        for node, place in zip(nodes, self.outputs, strict=True):
            if isinstance(place, int):
                found[place] = _result(node)
        self.results = tuple(found[i] for i in range(len(found)))
        set_boundary(
            translation.model.graph,
            [CHANNELS_LAST if entry.channels_last else ROW_MAJOR for entry in self.entries],
            [CHANNELS_LAST if _is_last(r.shape, r.stride) else ROW_MAJOR for r in self.results],
        )
        self.compiled = compile_model(translation.model)
        self.loaded = self.compiled.programs[0]
        self.on_device = isinstance(self.loaded, DeviceProgram)
        self.contexts = ContextPool(self.compiled.threads)

    def forward(self, *args: Any) -> Any:
        # Copies made here must outlive the run: the list holds them.
        inputs = [entry.ready(args[entry.position]) for entry in self.entries]
        made = self._on_device(inputs) if self.on_device else self._on_host(inputs)
        cast = [
            t if r.dtype == r.computed else t.to(r.dtype) for t, r in zip(made, self.results, strict=True)
        ]
        outputs = [cast[place] if isinstance(place, int) else place for place in self.outputs]
        return outputs[0] if self.single else tuple(outputs)

    def _on_host(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        made = [torch.empty_strided(r.shape, r.stride, dtype=r.computed) for r in self.results]
        self.contexts.run_at(self.loaded, [t.data_ptr() for t in inputs], [t.data_ptr() for t in made])
        return made

    def _on_device(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """On torch's current stream of the inputs' device; nothing waits."""
        given = [DeviceArray(t, t, t.data_ptr(), tuple(t.shape), t.nbytes) for t in inputs]
        made = self.contexts.run_on_device(self.loaded, given)
        return [t.as_strided(r.shape, r.stride) for t, r in zip(made, self.results, strict=True)]


def _entry(node: Node, position: int) -> Entry:
    tensor = node.meta["val"]
    kept = tensor.dtype if tensor.dtype == torch.bool else torch.float32
    shape, stride = tuple(map(int, tensor.shape)), tuple(map(int, tensor.stride()))
    return Entry(
        position,
        kept,
        _is_last(shape, stride)
        or (len(shape) > 2 and stride[1] == 1 < shape[1] and not tensor.is_contiguous()),
    )


def _result(node: Node) -> Result:
    tensor = node.meta["val"]
    shape, stride = tuple(map(int, tensor.shape)), tuple(map(int, tensor.stride()))
    if not tensor.is_contiguous() and not _is_last(shape, stride):
        raise Untranslatable(f"{node.name}: a result of shape {shape} with strides {stride}")
    computed = tensor.dtype if tensor.dtype == torch.bool else torch.float32
    return Result(shape, stride, computed, tensor.dtype)


def _is_last(shape: Sequence[int], stride: Sequence[int]) -> bool:
    """Whether dim 1 is innermost and the memory gapless, and row-major is another order."""
    if len(shape) < 3 or shape[1] == 1:
        return False
    order, step = (0, *range(2, len(shape)), 1), 1
    for dim in reversed(order):
        if shape[dim] != 1 and stride[dim] != step:
            return False
        step *= shape[dim]
    return any(extent > 1 for extent in shape[2:])


def refused_nodes(part: CompiledPart, nodes: Mapping[str, Any]) -> dict[str, str]:
    """ATen nodes whose ONNX nodes no kernel computes, with the reasons; torch computes them instead."""
    refused: dict[str, str] = {}
    for place in part.compiled.placement:
        if place.where != "fallback":
            continue
        stem = place.node.split("/")[0]
        for name in (stem,) if stem in nodes else nodes:
            refused[name] = place.detail
    return refused
