"""A hypothesis strategy for small graphs: rank-4 values through convolutions, data movement and joins.

What single operators can't show: layouts that several users agree on, views into a concatenation, memory that
is reused too early.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from hypothesis import strategies as st
from onnx import helper, numpy_helper

from tests.conformance.problems import model_of, values

Shape = tuple[int, int, int, int]


@dataclass
class Builder:
    """A graph being drawn: every value so far with its shape."""

    draw: st.DrawFn
    shapes: dict[str, Shape]
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: list[onnx.TensorProto] = field(default_factory=list)

    def node(self, op: str, inputs: list[str], shape: Shape, **attributes: Any) -> str:
        """Appends a node with one output of that shape."""
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], name=f"n{len(self.nodes)}", **attributes))
        self.shapes[name] = shape
        return name

    def constant(self, value: np.ndarray) -> str:
        name = f"k{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def weight(self, shape: tuple[int, ...], fan: int) -> str:
        """Random values that keep the magnitude of what passes through about one."""
        value = values(shape, f"k{len(self.constants)}") / np.float32(np.sqrt(max(fan, 1)))
        return self.constant(value.astype(np.float32))

    def integers(self, *numbers: int) -> str:
        return self.constant(np.array(numbers, np.int64))

    def pick(self) -> str:
        """One of the values so far, the latest most often."""
        names = list(self.shapes)
        return names[-1] if self.draw(st.booleans()) else self.draw(st.sampled_from(names))


def convolution(b: Builder) -> None:
    x = b.pick()
    n, c, h, w = b.shapes[x]
    kernel = b.draw(st.sampled_from((1, 3)))
    stride = b.draw(st.sampled_from((1, 1, 2)))
    depthwise = b.draw(st.booleans())
    m = c if depthwise else b.draw(st.sampled_from((1, 4, 8, 17)))
    weight = b.weight((m, 1 if depthwise else c, kernel, kernel), kernel * kernel * (1 if depthwise else c))
    pad = kernel // 2
    shape = (n, m, (h + 2 * pad - kernel) // stride + 1, (w + 2 * pad - kernel) // stride + 1)
    attributes = {"pads": [pad] * 4, "strides": [stride] * 2, "group": c if depthwise else 1}
    b.node("Conv", [x, weight, b.weight((m,), 1)], shape, **attributes)


def transposed_convolution(b: Builder) -> None:
    x = b.pick()
    n, c, h, w = b.shapes[x]
    m = b.draw(st.sampled_from((1, 5, 8)))
    b.node("ConvTranspose", [x, b.weight((c, m, 2, 2), c)], (n, m, 2 * h, 2 * w), strides=[2, 2])


def unary(b: Builder) -> None:
    x = b.pick()
    b.node(b.draw(st.sampled_from(("Relu", "Sigmoid", "Tanh", "HardSwish", "Neg"))), [x], b.shapes[x])


def silu(b: Builder) -> None:
    x = b.pick()
    b.node("Mul", [x, b.node("Sigmoid", [x], b.shapes[x])], b.shapes[x])


def squeeze_and_excite(b: Builder) -> None:
    x = b.pick()
    n, c, h, w = b.shapes[x]
    mean = b.node("GlobalAveragePool", [x], (n, c, 1, 1))
    scale = b.node("Conv", [mean, b.weight((c, c, 1, 1), c)], (n, c, 1, 1))
    b.node("Mul", [x, b.node("Sigmoid", [scale], (n, c, 1, 1))], (n, c, h, w))


def join(b: Builder) -> None:
    """Add of two values of one shape, or of a value and itself."""
    x = b.pick()
    y = b.draw(st.sampled_from([name for name, shape in b.shapes.items() if shape == b.shapes[x]]))
    b.node("Add", [x, y], b.shapes[x])


def concatenation(b: Builder) -> None:
    """Of up to three values (repetitions allowed) along any axis on which only they differ."""
    x = b.pick()
    axis = b.draw(st.sampled_from((1, 1, 1, 2, 3)))

    def fits(shape: Shape) -> bool:
        return all(i == axis or shape[i] == n for i, n in enumerate(b.shapes[x]))

    others = st.sampled_from([name for name, shape in b.shapes.items() if fits(shape)])
    parts = [x, *b.draw(st.lists(others, min_size=1, max_size=2))]
    shape = list(b.shapes[x])
    shape[axis] = sum(b.shapes[part][axis] for part in parts)
    b.node("Concat", parts, tuple(shape), axis=axis)


def slicing(b: Builder) -> None:
    x = b.pick()
    axis = b.draw(st.sampled_from((1, 2, 3)))
    extent = b.shapes[x][axis]
    start = b.draw(st.integers(0, extent - 1))
    step = b.draw(st.sampled_from((1, 1, 2)))
    shape = list(b.shapes[x])
    shape[axis] = len(range(start, extent, step))
    where = [b.integers(start), b.integers(extent), b.integers(axis), b.integers(step)]
    b.node("Slice", [x, *where], tuple(shape))


def padding(b: Builder) -> None:
    x = b.pick()
    n, c, h, w = b.shapes[x]
    top, left, bottom, right = (b.draw(st.integers(0, 2)) for _ in range(4))
    amounts = b.integers(0, 0, top, left, 0, 0, bottom, right)
    b.node("Pad", [x, amounts], (n, c, h + top + bottom, w + left + right))


def pooling(b: Builder) -> None:
    x = b.pick()
    n, c, h, w = b.shapes[x]
    stride = b.draw(st.sampled_from((1, 2)))
    shape = (n, c, (h - 1) // stride + 1, (w - 1) // stride + 1)
    attributes = {"kernel_shape": [3, 3], "strides": [stride] * 2, "pads": [1] * 4}
    b.node(b.draw(st.sampled_from(("MaxPool", "AveragePool"))), [x], shape, **attributes)


def resizing(b: Builder) -> None:
    x = b.pick()
    n, c, h, w = b.shapes[x]
    scales = b.constant(np.array([1, 1, 2, 2], np.float32))
    form = b.draw(
        st.sampled_from(
            (
                {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"},
                {"mode": "linear", "coordinate_transformation_mode": "half_pixel"},
                {"mode": "linear", "coordinate_transformation_mode": "align_corners"},
            )
        )
    )
    b.node("Resize", [x, "", scales], (n, c, 2 * h, 2 * w), **form)


def transposition(b: Builder) -> None:
    x = b.pick()
    order = b.draw(st.sampled_from(((0, 2, 3, 1), (0, 3, 1, 2), (0, 1, 3, 2))))
    shape = b.shapes[x]
    b.node("Transpose", [x], (shape[order[0]], shape[order[1]], shape[order[2]], shape[order[3]]), perm=order)


def reshaping(b: Builder) -> None:
    x = b.pick()
    n, c, h, w = b.shapes[x]
    shape = b.draw(st.sampled_from(((n, c * h, w, 1), (n, c, 1, h * w), (n, 1, c * h, w))))
    b.node("Reshape", [x, b.integers(*shape)], shape)


def normalisation(b: Builder) -> None:
    """Softmax or BatchNormalization."""
    x = b.pick()
    shape = b.shapes[x]
    if b.draw(st.booleans()):
        b.node("Softmax", [x], shape, axis=b.draw(st.sampled_from((1, 3))))
        return
    c = (shape[1],)
    variance = b.constant(np.abs(values(c, "variance")) + np.float32(0.5))
    parameters = [b.weight(c, 1), b.weight(c, 1), b.weight(c, 1), variance]
    b.node("BatchNormalization", [x, *parameters], shape)


STEPS: tuple[Callable[[Builder], None], ...] = (
    *(convolution, convolution, convolution, transposed_convolution, unary, silu, squeeze_and_excite),
    *(
        join,
        join,
        concatenation,
        concatenation,
        slicing,
        padding,
        pooling,
        resizing,
        transposition,
        reshaping,
    ),
    normalisation,
)
LARGEST = 20_000  # elements of a value; steps that would go on from a larger one start again at the input


@st.composite
def graphs(draw: st.DrawFn) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """A model of 2 to 9 steps, its outputs the last value and perhaps an earlier one, and its input."""
    shape = (
        draw(st.integers(1, 2)),
        draw(st.sampled_from((1, 3, 8))),
        draw(st.integers(1, 9)),
        draw(st.integers(1, 9)),
    )
    builder = Builder(draw, {"x": shape})
    for step in draw(st.lists(st.sampled_from(STEPS), min_size=2, max_size=9)):
        large = [name for name, extents in builder.shapes.items() if int(np.prod(extents)) > LARGEST]
        for name in large:
            del builder.shapes[name]
        step(builder)
    names = [node.output[0] for node in builder.nodes]
    outputs = [names[-1]]
    if draw(st.booleans()) and len(names) > 1:
        outputs.insert(0, draw(st.sampled_from(names[:-1])))
    model = model_of(builder.nodes, {"x": shape}, outputs, builder.constants)
    return model, {"x": values(shape, "x")}
