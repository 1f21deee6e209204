"""torch.compile with convopt's kernels: a residual block, checked against eager and timed beside it.

python examples/torch_compile.py
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels), nn.ReLU()
        )
        self.second = nn.Sequential(nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x + self.second(self.first(x)))


def milliseconds(call: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> float:
    times = []
    for _ in range(10):
        start = time.perf_counter()
        call(x)
        times.append(time.perf_counter() - start)
    return 1e3 * sorted(times)[len(times) // 2]


def main() -> None:
    torch.manual_seed(0)
    block = Block(32).eval().to(memory_format=torch.channels_last)
    x = torch.randn(1, 32, 56, 56).to(memory_format=torch.channels_last)
    fast = torch.compile(block, backend="convopt", options={"report": lambda report: print(report.summary())})
    with torch.no_grad():
        torch.testing.assert_close(fast(x), block(x), rtol=1e-4, atol=1e-4)
        print(f"eager {milliseconds(block, x):.2f} ms, convopt {milliseconds(fast, x):.2f} ms")


if __name__ == "__main__":
    main()
