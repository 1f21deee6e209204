"""Winograd convolution F(m x m, 3x3) for stride 1, channels-last, its transforms fused around the products.

m x m outputs come from a = m + 2 inputs squared: transformed inputs V and weights U are multiplied point by
point, which over all tiles is a*a small matrix products (Lavin and Gray, "Fast Algorithms for Convolutional
Neural Networks", 2015: Y = A^T [(G g G^T) * (B^T d B)] A). 9 m*m multiplications become a*a: 2.25 times fewer
for m = 2, 4 times for m = 4, at the price of the transforms and of accuracy.

    task (image, block of tile rows)
      V[point, tile, c] = B^T d B of the inputs under each tile          scratch, in L2
      for tile of output channels
        for point:  M[point, tile, k] = V[point] @ U[point]               scratch, in L1 or L2
        y = epilogue(A^T M A + bias)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from convopt.schedules.base import Estimate
from convopt.schedules.conv_problem import Array, ConvProblem, pack_bias

if TYPE_CHECKING:
    from convopt.targets import Target

Matrix = tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class Transform:
    """The three matrices of F(m x m, 3x3) (Lavin and Gray, 2015, section 4)."""

    m: int
    b_t: Matrix
    a_t: Matrix
    g: Matrix

    @property
    def size(self) -> int:
        """Inputs per side of a tile, points per side of the products."""
        return self.m + 2


F2 = Transform(
    2,
    ((1, 0, -1, 0), (0, 1, 1, 0), (0, -1, 1, 0), (0, 1, 0, -1)),
    ((1, 1, 1, 0), (0, 1, -1, -1)),
    ((1, 0, 0), (0.5, 0.5, 0.5), (0.5, -0.5, 0.5), (0, 0, 1)),
)
F4 = Transform(
    4,
    (
        (4, 0, -5, 0, 1, 0),
        (0, -4, -4, 1, 1, 0),
        (0, 4, -4, -1, 1, 0),
        (0, -2, -1, 2, 1, 0),
        (0, 2, -1, -2, 1, 0),
        (0, 4, 0, -5, 0, 1),
    ),
    ((1, 1, 1, 1, 1, 0), (0, 1, -1, 2, -2, 0), (0, 1, 1, 4, 4, 0), (0, 1, -1, 8, -8, 1)),
    (
        (1 / 4, 0, 0),
        (-1 / 6, -1 / 6, -1 / 6),
        (-1 / 6, 1 / 6, -1 / 6),
        (1 / 24, 1 / 12, 1 / 6),
        (1 / 24, -1 / 12, 1 / 6),
        (0, 0, 1),
    ),
)
TRANSFORMS = {2: F2, 4: F4}
# Measured with 320 channels to 4: five times slower than without the transforms.
LEAST_FEATURES = 16


@dataclass(frozen=True)
class WinogradConv:
    """m: outputs per side of a tile. pixels x vectors: the products' register tile, tiles by channels.

    tile_rows: rows of tiles that a task transforms at once.
    """

    name: ClassVar[str] = "winograd"
    m: int
    pixels: int
    vectors: int
    tile_rows: int

    @classmethod
    def space(cls, problem: ConvProblem, target: Target) -> Iterator[WinogradConv]:
        from convopt.schedules.conv_direct import tile_pixels

        for m in TRANSFORMS:
            rows = -(-problem.y.shape[3] // m)
            for vectors in (2, 3, 4, 1):
                pixels = tile_pixels(target, vectors)
                for tile_rows in sorted({1, 2, 4, -(-rows // 2), rows}):
                    if pixels >= 1 and tile_rows <= rows:
                        yield cls(m, pixels, vectors, tile_rows)

    def why_not(self, problem: ConvProblem, target: Target) -> str | None:
        if problem.kernel != (1, 3, 3) or problem.strides != (1, 1, 1) or problem.dilations != (1, 1, 1):
            return "only 3x3 with stride 1 and dilation 1"
        if problem.channels % target.lanes or problem.x.strides[5] != 1:
            return f"input channels are not contiguous vectors of {target.lanes}"
        if problem.features < LEAST_FEATURES:
            return f"{problem.features} output channels don't pay for transforming the inputs"
        if problem.y.strides[5] != 1:
            return "output channels are not contiguous"
        if self.scratch_bytes(problem, target) > target.l3 // 4:
            return f"{self.scratch_bytes(problem, target)} B scratch > {target.l3 // 4}"
        return None

    def tiles(self, problem: ConvProblem) -> tuple[int, int]:
        """(rows, columns) of tiles of an image."""
        return -(-problem.y.shape[3] // self.m), -(-problem.y.shape[4] // self.m)

    def cost(self, problem: ConvProblem, target: Target) -> Estimate:
        """Products as in DirectConv, transforms by their loads and operations, U by where it comes from."""
        lanes, points = target.lanes, (self.m + 2) ** 2
        rows, columns = self.tiles(problem)
        blocks = -(-rows // self.tile_rows)
        batch = self.tile_rows * columns  # tiles per task
        tasks = problem.groups * problem.y.shape[1] * problem.y.shape[2] * blocks
        per_tile = batch / -(-batch // self.pixels)
        fma = per_tile * self.vectors
        loads = per_tile + self.vectors
        step = max(fma / 2, (0 if target.fma_from_memory else loads / 2), 4.0) / (fma / 2)
        features = -(-problem.features // lanes)
        products = points * batch * problem.channels * features / 2 * step
        # Loads, stores and about 2 operations per load and point, two a cycle.
        transform = points * (1.0 + 1.0 + 0.5)
        inputs = batch * (problem.channels // lanes) * transform
        outputs = batch * features * transform
        # M is written and read once, 3 instructions per vector and point.
        moves = points * batch * features * 1.5
        scratch = self.scratch_bytes(problem, target)
        spill = 1.0 if scratch <= target.l2 * 3 // 4 else 1.3
        weight = points * problem.channels * features * lanes * 4
        stream = 0.0 if weight + scratch <= target.l2 else weight / 8  # bytes a cycle from L3
        cycles = max(products, stream) + stream / 4 + (inputs + outputs + moves) * spill
        return Estimate(tasks * cycles / 2.4e9, 0.0)

    def tasks(self, problem: ConvProblem, target: Target) -> int:
        rows, _ = self.tiles(problem)
        return problem.groups * problem.y.shape[1] * problem.y.shape[2] * -(-rows // self.tile_rows)

    def scratch_bytes(self, problem: ConvProblem, target: Target) -> int:
        """V for all channels, M for one tile of output channels."""
        _, columns = self.tiles(problem)
        batch, points = self.tile_rows * columns, (self.m + 2) ** 2
        return 4 * points * batch * (problem.channels + self.vectors * target.lanes)

    def pack(self, problem: ConvProblem, target: Target, weight: Array, bias: Array | None) -> list[Array]:
        """U = G g G^T, computed in float64, as (g, k/tile, point, c, tile)."""
        tile = self.vectors * target.lanes
        g_matrix = np.array(TRANSFORMS[self.m].g)
        g, k, c = weight.shape[:3]
        blocks = -(-k // tile)
        padded = np.zeros((g, blocks * tile, c, 3, 3))
        padded[:, :k] = weight[:, :, :, 0]
        # One product with the Kronecker square of G: 36 (or 16) points of the 9 taps.
        points = padded.reshape(-1, 9) @ np.kron(g_matrix, g_matrix).T
        flat = points.astype(np.float32).reshape(g, blocks, tile, c, (self.m + 2) ** 2)
        packed = [np.ascontiguousarray(flat.transpose(0, 1, 4, 3, 2))]
        return packed if bias is None else [*packed, pack_bias(bias, tile)]

    def apply(self, problem: ConvProblem, target: Target, symbol: str) -> Any:
        from convopt.schedules.primitives.winograd_tiles import winograd_kernel

        return winograd_kernel(self, problem, target, symbol)
