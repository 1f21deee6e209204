"""Small networks of the usual kinds, with random weights and statistics."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn


class Residual(nn.Module):
    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(before, after, 3, stride, 1, bias=False),
            nn.BatchNorm2d(after),
            nn.ReLU(inplace=True),
            nn.Conv2d(after, after, 3, 1, 1, bias=False),
            nn.BatchNorm2d(after),
        )
        self.skip = nn.Conv2d(before, after, 1, stride) if stride > 1 else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.body(x) + self.skip(x))


class Inverted(nn.Module):
    """A MobileNet block with squeeze and excitation."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        wide = 4 * channels
        self.expand = nn.Sequential(nn.Conv2d(channels, wide, 1), nn.BatchNorm2d(wide), nn.Hardswish())
        self.depthwise = nn.Sequential(
            nn.Conv2d(wide, wide, 3, padding=1, groups=wide), nn.BatchNorm2d(wide), nn.Hardswish()
        )
        self.squeeze = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(wide, 8, 1), nn.ReLU(), nn.Conv2d(8, wide, 1), nn.Hardsigmoid()
        )
        self.project = nn.Conv2d(wide, channels, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.depthwise(self.expand(x))
        return x + self.project(y * self.squeeze(y))


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(3, 12, 3, padding=1), nn.LeakyReLU(0.1))
        self.low = nn.Sequential(nn.Conv2d(12, 24, 3, stride=2, padding=1), nn.SiLU())
        self.up = nn.ConvTranspose2d(24, 12, 2, stride=2)
        self.last = nn.Conv2d(24, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        fine = self.down(x)
        low = self.low(fine)
        both = torch.cat([fine, self.up(low) + F.interpolate(low[:, :12], scale_factor=2)], 1)
        return torch.sigmoid(self.last(both))


class ViT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, 24, 4, stride=4)
        self.place = nn.Parameter(torch.randn(1, 17, 24))
        self.token = nn.Parameter(torch.randn(1, 1, 24))
        self.layer = nn.TransformerEncoderLayer(
            24, 3, 48, activation="gelu", batch_first=True, norm_first=True
        )
        self.head = nn.Linear(24, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = self.patch(x).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.token.expand(x.shape[0], -1, -1), tokens], 1) + self.place
        return self.head(self.layer(tokens)[:, 0])


def resnet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 12, 7, 2, 3), nn.BatchNorm2d(12), nn.ReLU(), nn.MaxPool2d(3, 2, 1),
        Residual(12, 12, 1), Residual(12, 20, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(20, 10),
    )  # fmt: skip


def mobilenet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 10, 3, 2, 1), nn.Hardswish(), Inverted(10), Inverted(10), nn.Conv2d(10, 16, 1),
        nn.ReLU6(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(16, 10),
    )  # fmt: skip


NETS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "resnet": (resnet, (2, 3, 37, 41)),
    "mobilenet": (mobilenet, (2, 3, 33, 35)),
    "unet": (UNet, (1, 3, 18, 22)),
    "vit": (ViT, (2, 3, 16, 16)),
}


def made(name: str) -> tuple[nn.Module, torch.Tensor]:
    """The net in evaluation mode, its normalizations with statistics of their own, and an input."""
    torch.manual_seed(0)
    build, shape = NETS[name]
    net = build()
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.running_mean, -1, 1)
            nn.init.uniform_(module.running_var, 0.5, 2)
    return net.eval(), torch.randn(shape)
