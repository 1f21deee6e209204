"""The operators of the benchmark's networks and convolutions as a torch.fx graph: torch reads no ONNX."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import onnx
    import torch


class Untranslated(Exception):
    """A node that this translation doesn't know; the text names it and what is missing."""


@dataclass(frozen=True)
class _Step:
    """One node: fx inputs (None where omitted) and attributes as Python values."""

    node: onnx.NodeProto
    inputs: Sequence[Any]
    attributes: Mapping[str, Any]
    constants: Mapping[str, Any]  # of the graph, by name

    def pads(self) -> list[int]:
        """Of each spatial dim; torch pads both sides alike."""
        pads = self.attributes.get("pads", [])
        begin, end = pads[: len(pads) // 2], pads[len(pads) // 2 :]
        if begin != end:
            raise Untranslated(
                f"{self.node.op_type} {self.node.name!r}: pads {pads} differ from side to side"
            )
        return list(begin)

    def number(self, index: int) -> float | None:
        """Input `index`, a constant of one element; None where omitted."""
        if index >= len(self.node.input) or not self.node.input[index]:
            return None
        return float(self.constants[self.node.input[index]])


def torch_module(model: onnx.ModelProto, dtype: torch.dtype) -> torch.fx.GraphModule:
    """The model in eval mode with weights of `dtype`, those of 2-D convolutions channels-last.

    Its arguments are the model's inputs in order, its result a tuple of the outputs.

    Raises:
        Untranslated: an operator or attribute that the benchmark's models don't have.
    """
    import torch
    from onnx import helper, numpy_helper

    arrays = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    root, graph = torch.nn.Module(), torch.fx.Graph()
    values: dict[str, Any] = {info.name: graph.placeholder(info.name) for info in model.graph.input}

    def value(name: str) -> Any:
        if name and name not in values:
            tensor = torch.from_numpy(arrays[name].copy()).to(dtype)
            if tensor.dim() == 4:
                tensor = tensor.contiguous(memory_format=torch.channels_last)
            root.register_buffer(attribute := f"constant_{len(values)}", tensor)
            values[name] = graph.get_attr(attribute)
        return values[name] if name else None

    for node in model.graph.node:
        translate = _TRANSLATIONS.get(node.op_type)
        if translate is None:
            raise Untranslated(f"{node.op_type} {node.name!r} has no translation to torch here")
        read = node.input[:1] if node.op_type == "Clip" else node.input  # bounds are numbers, not tensors
        attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        step = _Step(node, [value(name) for name in read], attributes, arrays)
        function, arguments, keywords = translate(step)
        values[node.output[0]] = graph.call_function(function, arguments, keywords)
    graph.output(tuple(values[info.name] for info in model.graph.output))
    return torch.fx.GraphModule(root, graph).eval()


_Call = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]


def _conv(step: _Step) -> _Call:
    import torch.nn.functional as F

    a = step.attributes
    function = F.conv2d if step.node.op_type == "Conv" else F.conv_transpose2d
    if a.get("output_padding") or a.get("output_shape") or len(a.get("kernel_shape", [])) != 2:
        raise Untranslated(f"{step.node.op_type} {step.node.name!r}: only 2-D ones without output_shape")
    keywords = {
        "stride": tuple(a.get("strides", [1, 1])),
        "padding": tuple(step.pads()),
        "dilation": tuple(a.get("dilations", [1, 1])),
        "groups": a.get("group", 1),
    }
    return function, tuple(step.inputs), keywords


def _batch_norm(step: _Step) -> _Call:
    import torch.nn.functional as F

    x, scale, bias, mean, variance = step.inputs
    return F.batch_norm, (x, mean, variance, scale, bias, False, 0.0, step.attributes["epsilon"]), {}


def _clip(step: _Step) -> _Call:
    import torch

    return torch.clamp, (step.inputs[0], step.number(1), step.number(2)), {}


def _max_pool(step: _Step) -> _Call:
    import torch.nn.functional as F

    a = step.attributes
    arguments = (step.inputs[0], a["kernel_shape"], a["strides"], step.pads(), 1, bool(a.get("ceil_mode", 0)))
    return F.max_pool2d, arguments, {}


def _average_pool(step: _Step) -> _Call:
    import torch.nn.functional as F

    a = step.attributes
    arguments = (step.inputs[0], a["kernel_shape"], a["strides"], step.pads(), bool(a.get("ceil_mode", 0)))
    return F.avg_pool2d, (*arguments, bool(a.get("count_include_pad", 0))), {}


def _global_average_pool(step: _Step) -> _Call:
    import torch.nn.functional as F

    return F.adaptive_avg_pool2d, (step.inputs[0], 1), {}


def _gemm(step: _Step) -> _Call:
    import torch.nn.functional as F

    a = step.attributes
    if (a.get("alpha", 1.0), a.get("beta", 1.0), a.get("transA", 0), a.get("transB", 0)) != (1.0, 1.0, 0, 1):
        raise Untranslated(f"Gemm {step.node.name!r}: only x @ transposed weight + bias")
    return F.linear, tuple(step.inputs), {}


def _flatten(step: _Step) -> _Call:
    import torch

    return torch.flatten, (step.inputs[0], step.attributes.get("axis", 1)), {}


def _transpose(step: _Step) -> _Call:
    import torch

    return torch.permute, (step.inputs[0], tuple(step.attributes["perm"])), {}


def _concat(step: _Step) -> _Call:
    import torch

    return torch.cat, (list(step.inputs), step.attributes["axis"]), {}


def _relu(step: _Step) -> _Call:
    import torch

    return torch.relu, tuple(step.inputs), {}


def _add(step: _Step) -> _Call:
    import torch

    return torch.add, tuple(step.inputs), {}


_TRANSLATIONS: Mapping[str, Callable[[_Step], _Call]] = {
    "Add": _add,
    "AveragePool": _average_pool,
    "BatchNormalization": _batch_norm,
    "Clip": _clip,
    "Concat": _concat,
    "Conv": _conv,
    "ConvTranspose": _conv,
    "Flatten": _flatten,
    "Gemm": _gemm,
    "GlobalAveragePool": _global_average_pool,
    "MaxPool": _max_pool,
    "Relu": _relu,
    "Transpose": _transpose,
}
