"""Whole networks to measure, as ONNX models with random weights and BatchNormalization still in them.

    model = NETWORKS["resnet50"](batch=1)      # input "x", float32 [batch, 3, size, size]

The shapes are those of the papers (and of `convopt.bench.suites`, by the same tables); `size` is the input's
height and width.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from convopt.bench.graph_builder import GraphBuilder, Image
from convopt.bench.inception import inception
from convopt.bench.suites import MOBILENET_V2_BLOCKS, RESNET50_STAGES, UNET_WIDTHS, VGG16_STAGES

if TYPE_CHECKING:
    import onnx

CLASSES = 1000


class Network(Protocol):
    def __call__(self, batch: int = ..., size: int = ...) -> onnx.ModelProto:
        """Raises InputError where a window doesn't fit into what is left of an input of that size."""
        ...


def resnet50(batch: int = 1, size: int = 224) -> onnx.ModelProto:
    """He et al., arXiv:1512.03385; the stride on the 3x3 as in torchvision ("v1.5"). [batch, 1000] out."""
    b = GraphBuilder("resnet50", batch, size)
    x = b.max_pool(b.conv_norm_relu(b.input, 64, 7, stride=2), 3, 2, 1)
    for width, blocks, first_stride in RESNET50_STAGES:
        for block in range(blocks):
            stride = first_stride if block == 0 else 1
            y = b.conv_norm_relu(x, width, 1)
            y = b.conv_norm_relu(y, width, 3, stride=stride)
            y = b.norm(b.conv(y, 4 * width, 1))
            x = b.relu(b.add(y, b.norm(b.conv(x, 4 * width, 1, stride)) if block == 0 else x))
    return b.model(b.linear(b.flatten(b.global_average_pool(x)), CLASSES), flat=True)


def mobilenet_v2(batch: int = 1, size: int = 224) -> onnx.ModelProto:
    """Sandler et al., arXiv:1801.04381, width 1.0. [batch, 1000] out."""
    b = GraphBuilder("mobilenet_v2", batch, size)

    def conv_relu6(x: Image, channels: int, kernel: int, stride: int = 1, groups: int = 1) -> Image:
        return b.relu6(b.norm(b.conv(x, channels, kernel, stride, groups=groups)))

    x = conv_relu6(b.input, 32, 3, 2)
    for expansion, out, repeats, first_stride in MOBILENET_V2_BLOCKS:
        for block in range(repeats):
            stride = first_stride if block == 0 else 1
            hidden = x.channels * expansion
            y = x if expansion == 1 else conv_relu6(x, hidden, 1)
            y = b.norm(b.conv(conv_relu6(y, hidden, 3, stride, hidden), out, 1))
            x = b.add(x, y) if stride == 1 and x.channels == out else y
    x = b.global_average_pool(conv_relu6(x, 1280, 1))
    return b.model(b.linear(b.flatten(x), CLASSES), flat=True)


def vgg16(batch: int = 1, size: int = 224) -> onnx.ModelProto:
    """Simonyan and Zisserman, arXiv:1409.1556, column D: biases, no normalization. [batch, 1000] out."""
    b = GraphBuilder("vgg16", batch, size)
    x = b.input
    for width, repeats in VGG16_STAGES:
        for _ in range(repeats):
            x = b.relu(b.conv(x, width, 3, bias=True))
        x = b.max_pool(x, 2, 2)
    x = b.flatten(x)
    for features in (4096, 4096):
        x = b.relu(b.linear(x, features))
    return b.model(b.linear(x, CLASSES), flat=True)


def unet(batch: int = 1, size: int = 256) -> onnx.ModelProto:
    """Ronneberger et al., arXiv:1505.04597, padded and normalized: `size` divides by 16.

    [batch, 2, size, size] out, as many pixels as the input has.
    """
    b = GraphBuilder("unet", batch, size)

    def twice(x: Image, width: int) -> Image:
        return b.conv_norm_relu(b.conv_norm_relu(x, width, 3), width, 3)

    x, skips = b.input, []
    for width in UNET_WIDTHS[:-1]:
        skips.append(twice(x, width))
        x = b.max_pool(skips[-1], 2, 2)
    x = twice(x, UNET_WIDTHS[-1])
    for skip in reversed(skips):
        x = twice(b.concat([skip, b.upconv(x, skip.channels)]), skip.channels)
    return b.model(b.conv(x, 2, 1, bias=True), flat=False)


NETWORKS: Mapping[str, Network] = {
    "resnet50": resnet50,
    "mobilenet_v2": mobilenet_v2,
    "vgg16": vgg16,
    "unet": unet,
    "inception": inception,
}
