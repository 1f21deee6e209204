"""Inception-v3: the branchy one, with 1x7 and 7x1 convolutions, pools between convolutions, and Concats."""

from __future__ import annotations

from typing import TYPE_CHECKING

from convopt.bench.graph_builder import GraphBuilder, Image, Pair

if TYPE_CHECKING:
    import onnx

CLASSES = 1000
# Channels of the pool's projection in the 35x35 blocks, and of the factorized 7x7s in the 17x17 blocks.
PROJECTIONS_35 = (32, 64, 64)
FACTORIZED_17 = (128, 160, 160, 192)


def inception(batch: int = 1, size: int = 299) -> onnx.ModelProto:
    """Szegedy et al., arXiv:1512.00567, without the auxiliary classifier, channels as in torchvision.

    `size` is at least 75. [batch, 1000] out.
    """
    b = GraphBuilder("inception", batch, size)
    x = b.conv_norm_relu(b.input, 32, 3, stride=2, pad=0)
    x = b.conv_norm_relu(x, 32, 3, pad=0)
    x = b.max_pool(b.conv_norm_relu(x, 64, 3), 3, 2)
    x = b.conv_norm_relu(b.conv_norm_relu(x, 80, 1), 192, 3, pad=0)
    x = b.max_pool(x, 3, 2)
    for projection in PROJECTIONS_35:
        x = _block_35(b, x, projection)
    x = _reduce_to_17(b, x)
    for width in FACTORIZED_17:
        x = _block_17(b, x, width)
    x = _reduce_to_8(b, x)
    for _ in range(2):
        x = _block_8(b, x)
    return b.model(b.linear(b.flatten(b.global_average_pool(x)), CLASSES), flat=True)


def _chain(b: GraphBuilder, x: Image, *layers: tuple[int, int | Pair]) -> Image:
    """conv_norm_relu with these (channels, kernel), one behind the other."""
    for channels, kernel in layers:
        x = b.conv_norm_relu(x, channels, kernel)
    return x


def _projected_pool(b: GraphBuilder, x: Image, channels: int) -> Image:
    return b.conv_norm_relu(b.average_pool(x, 3, 1), channels, 1)


def _block_35(b: GraphBuilder, x: Image, projection: int) -> Image:
    """Figure 5: 5x5 beside two 3x3."""
    return b.concat(
        [
            _chain(b, x, (64, 1)),
            _chain(b, x, (48, 1), (64, 5)),
            _chain(b, x, (64, 1), (96, 3), (96, 3)),
            _projected_pool(b, x, projection),
        ]
    )


def _reduce_to_17(b: GraphBuilder, x: Image) -> Image:
    """Figure 10: strided convolutions beside a pool."""
    return b.concat(
        [
            b.conv_norm_relu(x, 384, 3, stride=2, pad=0),
            b.conv_norm_relu(_chain(b, x, (64, 1), (96, 3)), 96, 3, stride=2, pad=0),
            b.max_pool(x, 3, 2),
        ]
    )


def _block_17(b: GraphBuilder, x: Image, width: int) -> Image:
    """Figure 6 with n = 7: 7x7 as 1x7 and 7x1, once and twice."""
    row, column = (1, 7), (7, 1)
    return b.concat(
        [
            _chain(b, x, (192, 1)),
            _chain(b, x, (width, 1), (width, row), (192, column)),
            _chain(b, x, (width, 1), (width, column), (width, row), (width, column), (192, row)),
            _projected_pool(b, x, 192),
        ]
    )


def _reduce_to_8(b: GraphBuilder, x: Image) -> Image:
    return b.concat(
        [
            b.conv_norm_relu(_chain(b, x, (192, 1)), 320, 3, stride=2, pad=0),
            b.conv_norm_relu(_chain(b, x, (192, 1), (192, (1, 7)), (192, (7, 1))), 192, 3, stride=2, pad=0),
            b.max_pool(x, 3, 2),
        ]
    )


def _block_8(b: GraphBuilder, x: Image) -> Image:
    """Figure 7: a 3x3 as 1x3 and 3x1 side by side."""

    def split(y: Image) -> Image:
        return b.concat([_chain(b, y, (384, (1, 3))), _chain(b, y, (384, (3, 1)))])

    return b.concat(
        [
            _chain(b, x, (320, 1)),
            split(_chain(b, x, (384, 1))),
            split(_chain(b, x, (448, 1), (384, 3))),
            _projected_pool(b, x, 192),
        ]
    )
