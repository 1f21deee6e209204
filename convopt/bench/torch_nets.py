"""Small networks of the usual kinds as torch modules with random weights, for `convopt bench --module`.

    module, x = made("small_vit")      # in evaluation mode; x: float32 NCHW, channels-last

The large ones are those of `convopt.bench.networks`, translated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import nn

from convopt.bench.networks import NETWORKS
from convopt.bench.torch_graph import torch_module

CLASSES = 100


def conv_norm(before: int, after: int, kernel: int, stride: int = 1, groups: int = 1) -> nn.Sequential:
    conv = nn.Conv2d(before, after, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(after))


class BasicBlock(nn.Module):
    """He et al., arXiv:1512.03385, figure 5, left."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.first, self.second = conv_norm(before, after, 3, stride), conv_norm(after, after, 3)
        self.skip = nn.Identity() if stride == 1 else conv_norm(before, after, 1, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.second(F.relu(self.first(x))) + self.skip(x))


class InvertedResidual(nn.Module):
    """Howard et al., arXiv:1905.02244: expansion, depthwise, squeeze and excitation, projection; h-swish."""

    def __init__(self, before: int, wide: int, after: int, kernel: int, stride: int) -> None:
        super().__init__()
        self.adds = stride == 1 and before == after
        self.expand, self.depthwise = conv_norm(before, wide, 1), conv_norm(wide, wide, kernel, stride, wide)
        squeezed = [nn.AdaptiveAvgPool2d(1), nn.Conv2d(wide, wide // 4, 1), nn.ReLU()]
        self.gate = nn.Sequential(*squeezed, nn.Conv2d(wide // 4, wide, 1), nn.Hardsigmoid())
        self.project = conv_norm(wide, after, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = F.hardswish(self.depthwise(F.hardswish(self.expand(x))))
        y = self.project(y * self.gate(y))
        return x + y if self.adds else y


class UNet(nn.Module):
    """Ronneberger et al., arXiv:1505.04597, padded and normalized."""

    def __init__(self, widths: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.down = nn.ModuleList(self._twice(a, b) for a, b in zip((3, *widths), widths, strict=False))
        pairs = list(zip(widths[:0:-1], widths[-2::-1], strict=True))
        self.up = nn.ModuleList(nn.ConvTranspose2d(a, b, 2, 2) for a, b in pairs)
        self.merge = nn.ModuleList(self._twice(2 * b, b) for _, b in pairs)
        self.last = nn.Conv2d(widths[0], classes, 1)

    @staticmethod
    def _twice(before: int, after: int) -> nn.Sequential:
        return nn.Sequential(
            conv_norm(before, after, 3), nn.ReLU(True), conv_norm(after, after, 3), nn.ReLU(True)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        skips = []
        for level, twice in enumerate(self.down):
            x = twice(F.max_pool2d(x, 2) if level else x)
            skips.append(x)
        for up, merge, skip in zip(self.up, self.merge, skips[-2::-1], strict=True):
            x = merge(torch.cat([skip, up(x)], 1))
        out: torch.Tensor = self.last(x)
        return out


class TransformerBlock(nn.Module):
    """Dosovitskiy et al., arXiv:2010.11929, equations 2 and 3: normalization first."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n, tokens, width = x.shape
        qkv = self.qkv(self.norm1(x)).reshape(n, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(*qkv.unbind(0)).transpose(1, 2)
        x = x + self.project(attended.reshape(n, tokens, width))
        out: torch.Tensor = x + self.mlp(self.norm2(x))
        return out


class ViT(nn.Module):
    """Dosovitskiy et al.: patches, a class token, learned places."""

    def __init__(self, size: int, patch: int, width: int, heads: int, depth: int) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, width, patch, patch)
        self.token = nn.Parameter(torch.randn(1, 1, width))
        self.place = nn.Parameter(torch.randn(1, (size // patch) ** 2 + 1, width))
        self.blocks = nn.Sequential(*(TransformerBlock(width, heads) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = self.patch(x).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.token.expand(len(x), -1, -1), tokens], 1) + self.place
        out: torch.Tensor = self.head(self.norm(self.blocks(tokens))[:, 0])
        return out


def small_resnet() -> nn.Module:
    """ResNet-18 of half the width."""
    blocks: list[nn.Module] = []
    before = 32
    for after, first_stride in ((32, 1), (64, 2), (128, 2), (256, 2)):
        blocks += [BasicBlock(before, after, first_stride), BasicBlock(after, after, 1)]
        before = after
    return nn.Sequential(
        conv_norm(3, 32, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1), *blocks,
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, CLASSES),
    )  # fmt: skip


def small_mobilenet() -> nn.Module:
    """Blocks of MobileNetV3-Small."""
    blocks: list[nn.Module] = []
    before = 16
    for wide, after, kernel, stride in (
        (64, 24, 3, 2), (96, 24, 3, 1), (96, 40, 5, 2), (240, 40, 5, 1), (240, 48, 5, 1), (288, 96, 5, 2),
        (576, 96, 5, 1),
    ):  # fmt: skip
        blocks.append(InvertedResidual(before, wide, after, kernel, stride))
        before = after
    return nn.Sequential(
        conv_norm(3, 16, 3, 2), nn.Hardswish(), *blocks, conv_norm(before, 576, 1), nn.Hardswish(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(576, CLASSES),
    )  # fmt: skip


# name: the module, and the height and width of its input
SMALL: Mapping[str, tuple[Callable[[], nn.Module], int]] = {
    "small_resnet": (small_resnet, 128),
    "small_mobilenet": (small_mobilenet, 128),
    "small_unet": (lambda: UNet((16, 32, 64, 128), 2), 128),
    "small_vit": (lambda: ViT(128, 16, 192, 3, 6), 128),
}


def made(name: str, batch: int = 1) -> tuple[nn.Module, torch.Tensor]:
    """A network in evaluation mode and its input; the same weights and input each time.

    name: a key of SMALL or of `convopt.bench.networks.NETWORKS`.
    """
    torch.manual_seed(0)
    if name in SMALL:
        build, size = SMALL[name]
        module = build().eval()
        module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # missing in its types
        for norm in module.modules():
            if isinstance(norm, nn.BatchNorm2d):
                nn.init.uniform_(norm.running_mean, -0.5, 0.5)  # type: ignore[arg-type]
                nn.init.uniform_(norm.running_var, 0.5, 2)  # type: ignore[arg-type]
        shape: tuple[int, ...] = (batch, 3, size, size)
    else:
        model = NETWORKS[name](batch=batch)
        module = torch_module(model, torch.float32)
        shape = tuple(dim.dim_value for dim in model.graph.input[0].type.tensor_type.shape.dim)
    return module, torch.randn(shape).to(memory_format=torch.channels_last)
