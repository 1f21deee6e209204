"""Named lists of convolutions to measure, each with where it comes from.

A suite is a tuple of (case, count): a network's distinct convolutions and how often each occurs in it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from convopt.bench.cases import ConvCase

Suite = tuple[tuple[ConvCase, int], ...]

# The tables of the papers, for the suites here and for the whole networks of `convopt.bench.networks`.
RESNET50_STAGES = ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2))  # width, blocks, first stride
MOBILENET_V2_BLOCKS = (  # expansion, output channels, repeats, first stride
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
VGG16_STAGES = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))  # width, repeats; a pool behind each
UNET_WIDTHS = (64, 128, 256, 512, 1024)  # on the way down, at half the size each


def _counted(cases: Iterable[ConvCase]) -> Suite:
    return tuple(Counter(cases).items())


def _square(c: int, size: int, k: int, r: int, stride: int = 1, groups: int = 1) -> ConvCase:
    """A conv on one square image with the padding that keeps ceil(size / stride)."""
    return ConvCase(1, c, size, size, k, r, r, stride, r // 2, 1, groups)


def contest() -> Suite:
    """The ASC/Hygon convolution contest: six final and six preliminary cases, 3x3, stride 1, pad 1."""
    final = [
        (16, 128, 64, 64, 27),
        (16, 256, 32, 32, 256),
        (16, 64, 128, 128, 64),
        (2, 1920, 32, 32, 640),
        (2, 640, 64, 64, 640),
        (2, 320, 64, 64, 4),
    ]
    preliminary = [
        (64, 256, 14, 14, 256),
        (256, 192, 14, 14, 192),
        (16, 256, 26, 26, 512),
        (32, 256, 14, 14, 256),
        (2, 1280, 16, 16, 1280),
        (2, 960, 64, 64, 32),
    ]
    return _counted(ConvCase(n, c, h, w, k, 3, 3, 1, 1) for n, c, h, w, k in final + preliminary)


def resnet50() -> Suite:
    """He et al., arXiv:1512.03385, table 1, 224x224; the stride is on the 3x3 as in torchvision ("v1.5")."""
    cases = [_square(3, 224, 64, 7, 2)]
    channels, size = 64, 56
    for width, blocks, first_stride in RESNET50_STAGES:
        for block in range(blocks):
            stride = first_stride if block == 0 else 1
            cases.append(_square(channels, size, width, 1))
            cases.append(_square(width, size, width, 3, stride))
            if block == 0:
                cases.append(_square(channels, size, 4 * width, 1, stride))
            size //= stride
            channels = 4 * width
            cases.append(_square(width, size, channels, 1))
    return _counted(cases)


def mobilenet_v2() -> Suite:
    """Sandler et al., arXiv:1801.04381, table 2, 224x224, width 1.0."""
    cases = [_square(3, 224, 32, 3, 2)]
    channels, size = 32, 112
    for expansion, out, repeats, first_stride in MOBILENET_V2_BLOCKS:
        for block in range(repeats):
            stride = first_stride if block == 0 else 1
            hidden = channels * expansion
            if expansion != 1:
                cases.append(_square(channels, size, hidden, 1))
            cases.append(_square(hidden, size, hidden, 3, stride, groups=hidden))
            size //= stride
            cases.append(_square(hidden, size, out, 1))
            channels = out
    cases.append(_square(channels, size, 1280, 1))
    return _counted(cases)


def vgg16() -> Suite:
    """Simonyan and Zisserman, arXiv:1409.1556, table 1 column D, 224x224."""
    cases = []
    channels, size = 3, 224
    for width, repeats in VGG16_STAGES:
        for _ in range(repeats):
            cases.append(_square(channels, size, width, 3))
            channels = width
        size //= 2
    return _counted(cases)


def unet() -> Suite:
    """Ronneberger et al., arXiv:1505.04597, figure 1, on 3x256x256 with padded convs, two classes.

    The 2x2 up-convolutions are transposed ones and not in the list.
    """
    cases = []
    channels, size = 3, 256
    for width in UNET_WIDTHS:
        cases += [_square(channels, size, width, 3), _square(width, size, width, 3)]
        channels = width
        size //= 2
    size = 32
    for width in reversed(UNET_WIDTHS[:-1]):
        cases += [_square(2 * width, size, width, 3), _square(width, size, width, 3)]
        size *= 2
    cases.append(_square(64, 256, 2, 1))
    return _counted(cases)


SUITES = {
    "contest": contest,
    "resnet50": resnet50,
    "mobilenet_v2": mobilenet_v2,
    "unet": unet,
    "vgg16": vgg16,
}


def suite(name: str, batch: int | None = None, most: int | None = None) -> Suite:
    """The suite of that name, or every suite for "all".

    `batch` replaces n of each case, `most` lowers those above it.
    """
    chosen = SUITES.values() if name == "all" else (SUITES[name],)
    total: Counter[ConvCase] = Counter()
    for make in chosen:
        for case, count in make():
            images = batch or case.n
            total[replace(case, n=min(images, most or images))] += count
    return tuple(total.items())
