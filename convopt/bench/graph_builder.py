"""ONNX graphs with random weights, written layer by layer as an exporter leaves them in eval mode.

Weights follow He et al., arXiv:1502.01852, generalized: their variance is 1 / (fan-in * mean square of the
input), with an estimate of the mean square carried along, so that whatever a layer reads (rectified, summed,
pooled or concatenated values) its outputs have variance 1 for an input of standard normal values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import log
from typing import TYPE_CHECKING, Any

from convopt.errors import InputError

if TYPE_CHECKING:
    import numpy as np
    import onnx

Pair = tuple[int, int]


@dataclass(frozen=True)
class Image:
    """A value of shape [batch, channels, height, width]."""

    name: str
    channels: int
    height: int
    width: int
    mean_square: float = 1.0  # estimated
    rectified: bool = False  # whether most of it is positive, so that a Relu takes nothing away


class GraphBuilder:
    """One graph under construction; each method appends nodes and returns their output.

    input: the graph's input "x", float32 [batch, channels, size, size].
    The same calls with the same seed give the same weights.
    """

    def __init__(self, name: str, batch: int, size: int, channels: int = 3, seed: int = 0) -> None:
        import numpy as np

        self.input = Image("x", channels, size, size)
        self._name = name
        self._batch = batch
        self._random = np.random.default_rng(seed)
        self._nodes: list[onnx.NodeProto] = []
        self._constants: dict[str, onnx.TensorProto] = {}

    def conv(
        self,
        x: Image,
        channels: int,
        kernel: int | Pair,
        stride: int = 1,
        pad: int | Pair | None = None,
        groups: int = 1,
        bias: bool = False,
    ) -> Image:
        """A convolution; `pad` on both sides, by default what keeps ceil(size / stride) of an odd kernel."""
        r, s = kernel if isinstance(kernel, tuple) else (kernel, kernel)
        pads = (r // 2, s // 2) if pad is None else pad if isinstance(pad, tuple) else (pad, pad)
        weight = self._weight((channels, x.channels // groups, r, s), x.channels // groups * r * s, x)
        name = self._append(
            "Conv",
            [x.name, weight, *([self._bias(channels)] if bias else [])],
            kernel_shape=[r, s],
            strides=[stride, stride],
            pads=[*pads, *pads],
            dilations=[1, 1],
            group=groups,
        )
        return self._window(x, name, channels, (r, s), stride, pads)

    def upconv(self, x: Image, channels: int) -> Image:
        """A transposed convolution, 2x2 with stride 2 and bias: twice the size, one product per tap."""
        weight = self._weight((x.channels, channels, 2, 2), x.channels, x)
        name = self._append(
            "ConvTranspose",
            [x.name, weight, self._bias(channels)],
            kernel_shape=[2, 2],
            strides=[2, 2],
            pads=[0] * 4,
            dilations=[1, 1],
            group=1,
        )
        return Image(name, channels, 2 * x.height, 2 * x.width)

    def norm(self, x: Image) -> Image:
        """BatchNormalization with statistics near those of its input, which has mean 0 and variance 1."""
        draw, c = self._random, x.channels
        statistics = {
            "scale": draw.uniform(0.5, 1.5, c),
            "bias": draw.normal(0, 0.2, c),
            "mean": draw.normal(0, 0.2, c),
            "var": draw.uniform(0.5, 2.0, c),
        }
        inputs = [self._constant(role, array) for role, array in statistics.items()]
        name = self._append("BatchNormalization", [x.name, *inputs], epsilon=1e-5, momentum=0.9)
        return replace(x, name=name, mean_square=1.0)

    def relu(self, x: Image) -> Image:
        return _rectified(x, self._append("Relu", [x.name]))

    def relu6(self, x: Image) -> Image:
        import numpy as np

        bounds = [self._constant("min", np.float32(0)), self._constant("max", np.float32(6))]
        return _rectified(x, self._append("Clip", [x.name, *bounds]))

    def conv_norm_relu(self, x: Image, channels: int, kernel: int | Pair, **options: Any) -> Image:
        return self.relu(self.norm(self.conv(x, channels, kernel, **options)))

    def add(self, a: Image, b: Image) -> Image:
        name = self._append("Add", [a.name, b.name])
        mean_square = a.mean_square + b.mean_square
        return replace(a, name=name, mean_square=mean_square, rectified=a.rectified or b.rectified)

    def concat(self, parts: Sequence[Image]) -> Image:
        """Along the channels."""
        name = self._append("Concat", [part.name for part in parts], axis=1)
        channels = sum(part.channels for part in parts)
        mean_square = sum(part.mean_square * part.channels for part in parts) / channels
        return replace(parts[0], name=name, channels=channels, mean_square=mean_square)

    def max_pool(self, x: Image, size: int, stride: int, pad: int = 0) -> Image:
        name = self._append(
            "MaxPool",
            [x.name],
            kernel_shape=[size] * 2,
            strides=[stride] * 2,
            pads=[pad] * 4,
            ceil_mode=0,
        )
        pooled = self._window(x, name, x.channels, (size, size), stride, (pad, pad))
        # The largest of n normal values is about sqrt(2 ln n).
        mean_square = x.mean_square * 2 * log(size * size)
        return replace(pooled, mean_square=mean_square, rectified=x.rectified)

    def average_pool(self, x: Image, size: int, pad: int) -> Image:
        """With stride 1; the padding counts, as torch has it by default."""
        name = self._append(
            "AveragePool",
            [x.name],
            kernel_shape=[size] * 2,
            strides=[1, 1],
            pads=[pad] * 4,
            count_include_pad=1,
        )
        pooled = self._window(x, name, x.channels, (size, size), 1, (pad, pad))
        return replace(pooled, mean_square=x.mean_square, rectified=x.rectified)

    def global_average_pool(self, x: Image) -> Image:
        return replace(x, name=self._append("GlobalAveragePool", [x.name]), height=1, width=1)

    def flatten(self, x: Image) -> Image:
        name = self._append("Flatten", [x.name], axis=1)
        return replace(x, name=name, channels=x.channels * x.height * x.width, height=1, width=1)

    def linear(self, x: Image, features: int) -> Image:
        """Gemm with bias on what `flatten` gave."""
        weight = self._weight((features, x.channels), x.channels, x)
        name = self._append("Gemm", [x.name, weight, self._bias(features)], alpha=1.0, beta=1.0, transB=1)
        return replace(x, name=name, channels=features, mean_square=1.0, rectified=False)

    def model(self, y: Image, *, flat: bool) -> onnx.ModelProto:
        """The finished model with the output `y`: [batch, channels] if `flat`, else an image."""
        from onnx import TensorProto, helper

        x = self.input
        shape = [self._batch, y.channels] if flat else [self._batch, y.channels, y.height, y.width]
        graph = helper.make_graph(
            self._nodes,
            self._name,
            [
                helper.make_tensor_value_info(
                    x.name, TensorProto.FLOAT, [self._batch, x.channels, x.height, x.width]
                )
            ],
            [helper.make_tensor_value_info(y.name, TensorProto.FLOAT, shape)],
            list(self._constants.values()),
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)

    def _append(self, op: str, inputs: list[str], **attributes: Any) -> str:
        """A node named after its position; the name of its output."""
        from onnx import helper

        name = f"{op}_{len(self._nodes)}"
        self._nodes.append(helper.make_node(op, inputs, [f"{name}_output"], name=name, **attributes))
        return f"{name}_output"

    def _window(self, x: Image, name: str, channels: int, kernel: Pair, stride: int, pad: Pair) -> Image:
        height, width = (
            (extent + 2 * p - k) // stride + 1
            for extent, p, k in zip((x.height, x.width), pad, kernel, strict=True)
        )
        if min(height, width) < 1:
            raise InputError(
                f"{self._name}: the input of size {self.input.height} is too small: {name} reads"
                f" {x.height}x{x.width} with a window of {kernel[0]}x{kernel[1]}"
            )
        return Image(name, channels, height, width)

    def _weight(self, shape: tuple[int, ...], fan_in: int, x: Image) -> str:
        import numpy as np

        weight = self._random.standard_normal(shape, np.float32)
        weight *= np.float32((fan_in * x.mean_square) ** -0.5)
        return self._constant("weight", weight)

    def _bias(self, channels: int) -> str:
        return self._constant("bias", self._random.normal(0, 0.1, channels))

    def _constant(self, role: str, array: np.ndarray[Any, Any] | np.float32) -> str:
        """An initializer for the node that is appended next."""
        import numpy as np
        from onnx import numpy_helper

        name = f"{len(self._nodes)}.{role}"
        self._constants[name] = numpy_helper.from_array(np.asarray(array, np.float32), name)
        return name


def _rectified(x: Image, name: str) -> Image:
    return replace(x, name=name, mean_square=x.mean_square / (1 if x.rectified else 2), rectified=True)
