"""Hypothesis strategies for convolutions and pools over all their attributes, and the models they make."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from hypothesis import strategies as st
from onnx import helper, numpy_helper

# Channels with every kind of tail: below, at and beyond the lanes of 4, 8 and 16.
CHANNELS = (1, 2, 3, 4, 5, 8, 16, 17, 27, 32, 33)
LARGEST = 2_000_000  # multiply-adds per example, for the oracle's sake


@dataclass(frozen=True)
class Problem:
    """One Conv, ConvTranspose, MaxPool or AveragePool node: the shapes of its data and its attributes.

    weight and bias are None for pools; bias is an option of the others.
    """

    op: str
    x: tuple[int, ...]
    weight: tuple[int, ...] | None
    bias: int | None
    attributes: tuple[tuple[str, Any], ...]

    def model(self) -> onnx.ModelProto:
        """The node, called "node", with random weights as initializers and undeclared output extents."""
        names = ["x"]
        initializers = []
        for name, shape in (("w", self.weight), ("b", None if self.bias is None else (self.bias,))):
            if shape is not None:
                names.append(name)
                initializers.append(numpy_helper.from_array(values(shape, name), name))
        node = helper.make_node(self.op, names, ["y"], name="node", **dict(self.attributes))
        return model_of([node], {"x": self.x}, ["y"], initializers)

    def inputs(self) -> dict[str, np.ndarray]:
        return {"x": values(self.x, "x")}


def values(shape: tuple[int, ...], name: str) -> np.ndarray:
    """Normal float32 values that depend on name and shape alone."""
    return np.random.default_rng([*name.encode(), *shape]).standard_normal(shape, dtype=np.float32)


def model_of(
    nodes: list[onnx.NodeProto],
    inputs: dict[str, tuple[int, ...]],
    outputs: list[str],
    initializers: list[onnx.TensorProto],
    opset: int = 22,
) -> onnx.ModelProto:
    """A float32 model; the outputs have the rank of the first input and no declared extents."""
    rank = len(next(iter(inputs.values())))
    graph = helper.make_graph(
        nodes,
        "graph",
        [
            helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)
            for name, shape in inputs.items()
        ],
        [
            helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [f"{name}_{i}" for i in range(rank)])
            for name in outputs
        ],
        initializers,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


@st.composite
def _axis(draw: st.DrawFn, rank: int) -> dict[str, int]:
    """kernel, stride, dilation and an effective extent, small enough for the rank."""
    kernel = draw(st.integers(1, 5 if rank < 3 else 3))
    dilation = draw(st.sampled_from((1, 1, 2, 3))) if kernel > 1 else 1
    return {
        "kernel": kernel,
        "stride": draw(st.sampled_from((1, 1, 2, 3))),
        "dilation": dilation,
        "effective": (kernel - 1) * dilation + 1,
    }


def _pads(draw: st.DrawFn, axes: list[dict[str, int]], limit: str) -> list[int]:
    """Begin and end pads, drawn apart, each below `limit` of its axis."""
    return [draw(st.integers(0, min(axis[limit] - 1, 4))) for axis in axes + axes]


def _sizes(draw: st.DrawFn, axes: list[dict[str, int]], pads: list[int]) -> tuple[int, ...]:
    """Input extents from the least that fits the kernel (often exactly that) on."""
    rank = len(axes)
    spread = 12 if rank < 3 else 4
    least = [max(axis["effective"] - pads[i] - pads[i + rank], 1) for i, axis in enumerate(axes)]
    return tuple(low + draw(st.one_of(st.just(0), st.integers(0, spread))) for low in least)


@st.composite
def _channels(draw: st.DrawFn) -> tuple[int, int, int]:
    """Input channels, output channels, groups: plain, grouped, or depthwise with a multiplier."""
    kind = draw(st.sampled_from(("plain", "plain", "grouped", "depthwise")))
    if kind == "plain":
        return draw(st.sampled_from(CHANNELS)), draw(st.sampled_from(CHANNELS)), 1
    if kind == "grouped":
        group = draw(st.integers(2, 4))
        return (
            group * draw(st.sampled_from((1, 2, 3, 8, 17))),
            group * draw(st.sampled_from((1, 2, 5, 8, 16))),
            group,
        )
    channels = draw(st.sampled_from(CHANNELS))
    return channels, channels * draw(st.sampled_from((1, 1, 2, 3))), channels


@st.composite
def convolutions(draw: st.DrawFn) -> Problem:
    """Conv of rank 1 to 3; pads of both kinds, stride with dilation, groups, batch 0 to 3."""
    rank = draw(st.sampled_from((2, 2, 1, 3)))
    axes = [draw(_axis(rank)) for _ in range(rank)]
    auto_pad = draw(st.sampled_from(("NOTSET", "NOTSET", "NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID")))
    pads = _pads(draw, axes, "effective") if auto_pad == "NOTSET" else [0] * (2 * rank)
    sizes = _sizes(draw, axes, pads)
    inputs, outputs, group = draw(_channels())
    kernel = tuple(axis["kernel"] for axis in axes)
    work = math.prod(sizes) * outputs * (inputs // group) * math.prod(kernel)
    batch = draw(st.sampled_from((1, 1, 2, 3, 0))) if work < LARGEST // 3 else 1
    if work > LARGEST:
        inputs = outputs = group = 1
    attributes = (*_attributes(axes, pads, auto_pad), ("group", group))
    bias = draw(st.booleans())
    return Problem(
        "Conv",
        (batch, inputs, *sizes),
        (outputs, inputs // group, *kernel),
        outputs if bias else None,
        attributes,
    )


@st.composite
def transposed_convolutions(draw: st.DrawFn) -> Problem:
    """ConvTranspose of rank 1 to 3; pads by attribute, by output_shape or SAME, output_padding, groups."""
    rank = draw(st.sampled_from((2, 2, 1, 3)))
    axes = [draw(_axis(rank)) for _ in range(rank)]
    sizes = tuple(draw(st.integers(1, 7 if rank < 3 else 3)) for _ in range(rank))
    padding = [draw(st.integers(0, max(axis["stride"], axis["dilation"]) - 1)) for axis in axes]
    extents = [
        axis["stride"] * (size - 1) + axis["effective"] + extra
        for axis, size, extra in zip(axes, sizes, padding, strict=True)
    ]
    form = draw(st.sampled_from(("pads", "pads", "output_shape", "SAME_UPPER", "SAME_LOWER")))
    if form.startswith("SAME"):
        # The text (output = size * stride) and onnx's shape inference part ways beyond these.
        axes = [axis | {"stride": min(axis["stride"], axis["effective"])} for axis in axes]
        padding = [0] * rank
    pads = [0] * (2 * rank)
    chosen: tuple[tuple[str, Any], ...] = ()
    if form == "pads":
        for i, extent in enumerate(extents):
            pads[i] = draw(st.integers(0, min(extent - 1, 3)))
            pads[i + rank] = draw(st.integers(0, min(extent - 1 - pads[i], 3)))
    elif form == "output_shape":
        chosen = (
            ("output_shape", [extent - draw(st.integers(0, min(extent - 1, 3))) for extent in extents]),
        )
    auto_pad = form if form.startswith("SAME") else "NOTSET"
    inputs, outputs, group = draw(_channels())
    kernel = tuple(axis["kernel"] for axis in axes)
    work = math.prod(sizes) * outputs * (inputs // group) * math.prod(kernel)
    batch = draw(st.sampled_from((1, 1, 2, 0))) if work < LARGEST // 2 else 1
    attributes = (*_attributes(axes, pads, auto_pad), ("group", group), ("output_padding", padding), *chosen)
    bias = draw(st.booleans())
    weight = (inputs, outputs // group, *kernel)
    return Problem("ConvTranspose", (batch, inputs, *sizes), weight, outputs if bias else None, attributes)


@st.composite
def pools(draw: st.DrawFn) -> Problem:
    """MaxPool and AveragePool of rank 1 to 3; ceil_mode, count_include_pad, pads below the kernel."""
    op = draw(st.sampled_from(("MaxPool", "AveragePool")))
    rank = draw(st.sampled_from((2, 2, 1, 3)))
    axes = [draw(_axis(rank)) for _ in range(rank)]
    auto_pad = draw(st.sampled_from(("NOTSET", "NOTSET", "NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID")))
    pads = _pads(draw, axes, "kernel") if auto_pad == "NOTSET" else [0] * (2 * rank)
    sizes = _sizes(draw, axes, pads)
    # For VALID with ceil_mode the text and onnx's shape inference part ways.
    ceil_mode = draw(st.integers(0, 1)) if auto_pad != "VALID" else 0
    attributes = (*_attributes(axes, pads, auto_pad), ("ceil_mode", ceil_mode))
    if op == "AveragePool":
        attributes += (("count_include_pad", draw(st.integers(0, 1))),)
    batch = draw(st.sampled_from((1, 1, 2, 0)))
    return Problem(op, (batch, draw(st.sampled_from(CHANNELS)), *sizes), None, None, attributes)


def _attributes(axes: list[dict[str, int]], pads: list[int], auto_pad: str) -> tuple[tuple[str, Any], ...]:
    """kernel_shape, strides, dilations, and pads or auto_pad (which exclude each other)."""
    padding = ("pads", pads) if auto_pad == "NOTSET" else ("auto_pad", auto_pad)
    return (
        ("kernel_shape", [axis["kernel"] for axis in axes]),
        ("strides", [axis["stride"] for axis in axes]),
        ("dilations", [axis["dilation"] for axis in axes]),
        padding,
    )
