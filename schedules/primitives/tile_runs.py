"""Tiles of output positions along one dimension of a convolution whose input may have no border of zeros.

The tiles whose windows leave the input stand alone, at a position known when the kernel is made: what they
leave out is decided then, and those between them run without a check.
"""

from __future__ import annotations

from dataclasses import dataclass

from convopt.schedules.conv_problem import ConvProblem


@dataclass(frozen=True)
class Window:
    """One dimension: output o reads inputs o*stride - pad + t*dilation, t < taps, of `inputs` that exist.

    bordered: zeros lie around the inputs, all positions can be read.
    """

    inputs: int
    outputs: int
    taps: int
    stride: int
    dilation: int
    pad: int
    bordered: bool

    @classmethod
    def of(cls, problem: ConvProblem, dim: int) -> Window:
        """dim: 0 to 2 for depth, height, width."""
        return cls(
            problem.x.shape[2 + dim], problem.y.shape[2 + dim], problem.kernel[dim], problem.strides[dim],
            problem.dilations[dim], problem.pads[dim], problem.bordered,
        )  # fmt: skip

    def reached(self, size: int) -> list[int]:
        """Inputs that a tile of `size` outputs reads, as distances from its first one."""
        return sorted({o * self.stride + t * self.dilation for o in range(size) for t in range(self.taps)})

    def outside(self, start: int, size: int) -> frozenset[int]:
        """Those of `reached` that can't be read, for the tile that begins with output `start`."""
        if self.bordered:
            return frozenset()
        first = start * self.stride - self.pad
        return frozenset(at for at in self.reached(size) if not 0 <= first + at < self.inputs)

    @property
    def stays_inside(self) -> bool:
        return not self.outside(0, self.outputs)


@dataclass(frozen=True)
class TileRun:
    """`count` tiles of `size` outputs each, from output `start` on; outside: see `Window.outside`."""

    start: int
    count: int
    size: int
    outside: frozenset[int]


def balanced(total: int, most: int) -> list[tuple[int, int, int]]:
    """`total` in as few tiles of at most `most` as possible, as even as possible: [(start, count, size)]."""
    tiles = -(-total // most)
    size, larger = divmod(total, tiles)
    runs = [(0, larger, size + 1), (larger * (size + 1), tiles - larger, size)]
    return [run for run in runs if run[1]]


def tile_runs(window: Window, most: int) -> list[TileRun]:
    """All outputs in `balanced` tiles, those that read outside in runs of their own."""
    runs: list[TileRun] = []
    for start, count, size in balanced(window.outputs, most):
        for first in range(start, start + count * size, size):
            outside, last = window.outside(first, size), runs[-1] if runs else None
            if last is not None and not outside and not last.outside and last.size == size:
                runs[-1] = TileRun(last.start, last.count + 1, size, outside)
            else:
                runs.append(TileRun(first, 1, size, outside))
    return runs
