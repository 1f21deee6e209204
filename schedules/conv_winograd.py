"""Winograd convolution F(m x m, 3x3) for strides 1 and 2, its transforms fused around the products.

m x m outputs come from a x a inputs: transformed inputs V and weights U are multiplied point by point, which
over all tiles is a*a small matrix products (Lavin and Gray, "Fast Algorithms for Convolutional Neural
Networks", 2015: Y = A^T [(G g G^T) * (B^T d B)] A). 9 m*m multiplications become a*a, at the price of the
transforms and of accuracy. With stride 1, a = m + 2: 2.25 times fewer for m = 2, 4 times for m = 4. With
stride 2, a = 2 m + 1: 1.44 times fewer for m = 2, 1.65 for 3, 1.78 for 4 (see `strided`).

    task (image, block of tiles, chunk of output channels)
      V[point, tile, c] = B^T d B of the inputs under each tile          scratch
      for block of the chunk's tiles of output channels
        for point, for tile of output channels:  M[point, tile, k] = V[point] @ U[point]    scratch
        y = epilogue(A^T M A + bias)

With one tile of channels a block, V has to stay in L2 and M in L1: small channel counts. With all of them,
V and M go by once and only one point's slab of V is wanted at a time: large channel counts. U streams by in
both, asked for one panel ahead. Tasks that share tiles transform their inputs anew, which costs little where
there are many output channels.

A kernel of 3x3 taps in several planes is the same with the planes' channels side by side: kd*c of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from convopt.schedules.base import Estimate
from convopt.schedules.conv_direct import (
    CLOCK,
    L3_BYTES_PER_CYCLE,
    MEMORY_BYTES_PER_CYCLE,
    around_tile,
    tile_pixels,
    tile_step,
)
from convopt.schedules.conv_problem import Array, ConvProblem, pack_bias
from convopt.schedules.primitives.tile_runs import Window

if TYPE_CHECKING:
    from convopt.targets import Target

Matrix = tuple[tuple[float, ...], ...]


# Where the polynomials are evaluated, in this order: small ones keep the rounding errors small.
POINTS = (0, 1, -1, 2, -2)


@dataclass(frozen=True)
class Transform:
    """The three matrices in one dimension, A^T with a row for each output: y = A^T [(G g) * (B^T d)]."""

    b_t: Matrix
    a_t: Matrix
    g: Matrix

    @property
    def size(self) -> int:
        """Inputs per side of a tile, points per side of the products."""
        return len(self.b_t)


def toom_cook(m: int, taps: int) -> Transform:
    """F(m, taps) with stride 1, from m + taps - 2 points and infinity (Lavin and Gray, 2015, section 4)."""
    points = POINTS[: m + taps - 2]
    b_t, g = [], []
    for p in points:
        others = [q for q in points if q != p]
        b_t.append((*_monic(others), 0.0))
        g.append(tuple(p**i / prod(p - q for q in others) for i in range(taps)))
    b_t.append(_monic(points))
    g.append((*(0.0,) * (taps - 1), 1.0))
    a_t = [(*(float(p**i) for p in points), float(i == m - 1)) for i in range(m)]
    return Transform(tuple(b_t), tuple(a_t), tuple(g))


def _monic(roots: Sequence[int]) -> tuple[float, ...]:
    """Coefficients of the product of (x - root), the constant first."""
    return tuple(float(c) for c in np.poly(roots)[::-1]) if roots else (1.0,)


def strided(m: int) -> Transform:
    """m outputs of three taps with stride 2: taps 0 and 2 meet the even inputs alone, tap 1 the odd ones.

    The even inputs are convolved by F(m, 2), the odd ones multiplied as they are: m + 1 + m products for
    3 m.
    """
    even = toom_cook(m, 2)
    unit = np.eye(m).tolist()
    b_t = [tuple(row[k // 2] if k % 2 == 0 else 0.0 for k in range(2 * m + 1)) for row in even.b_t]
    b_t += [tuple(float(k == 2 * i + 1) for k in range(2 * m + 1)) for i in range(m)]
    a_t = [(*row, *one) for row, one in zip(even.a_t, unit, strict=True)]
    g = [(first, 0.0, last) for first, last in even.g] + [(0.0, 1.0, 0.0)] * m
    return Transform(tuple(b_t), tuple(a_t), tuple(g))


# By stride and m.
TRANSFORMS = {(1, m): toom_cook(m, 3) for m in (2, 4)} | {(2, m): strided(m) for m in (2, 3, 4)}
# Measured with 320 channels to 4: five times slower than without the transforms.
LEAST_FEATURES = 16

Part = tuple[int, int, int, int, int]  # a WinogradConv's fields but the last two


@dataclass(frozen=True)
class WinogradConv:
    """m: outputs per side of a tile. pixels x vectors: the products' register tile, tiles by channels.

    tile_rows x tile_columns: the tiles that a task transforms at once. feature_chunk: tiles of output
    channels (of `vectors` vectors) of a task; feature_block: those of them whose products wait in the scratch
    together.
    """

    name: ClassVar[str] = "winograd"
    m: int
    pixels: int
    vectors: int
    tile_rows: int
    tile_columns: int
    feature_chunk: int
    feature_block: int

    @classmethod
    def space(cls, problem: ConvProblem, target: Target) -> Iterator[WinogradConv]:
        for part in cls.parts(problem, target):
            yield from cls.cuts(part, problem, target)

    @classmethod
    def parts(cls, problem: ConvProblem, target: Target) -> Iterator[Part]:
        """What many configurations share: all but how output channels are cut."""
        for stride, m in TRANSFORMS:
            if stride != problem.strides[1]:
                continue
            rows, columns = -(-problem.y.shape[3] // m), -(-problem.y.shape[4] // m)
            areas = {(r, columns) for r in (1, 2, 4, -(-rows // 2), rows) if r <= rows}
            areas |= {(1, -(-columns // parts)) for parts in (2, 4) if columns >= 16 * parts}
            for vectors in (2, 3, 4):
                if (pixels := tile_pixels(target, vectors)) >= 1:
                    yield from ((m, pixels, vectors, *area) for area in sorted(areas))

    @classmethod
    def cuts(cls, part: Part, problem: ConvProblem, target: Target) -> Iterator[WinogradConv]:
        """The configurations of a part, the one with all channels in a task first."""
        features = -(-problem.features // (part[2] * target.lanes))
        chunks = sorted({-(-features // parts) for parts in (1, 2, 4)}, reverse=True)
        yield from (cls(*part, chunk, chunk) for chunk in chunks)
        if features > 1:
            yield cls(*part, features, 1)

    @staticmethod
    @lru_cache(maxsize=4096)
    def why_none(problem: ConvProblem, target: Target) -> str | None:
        """Why no configuration takes the problem, None if one may."""
        if problem.kernel[1:] != (3, 3) or problem.dilations[1:] != (1, 1):
            return "only 3x3 with dilation 1"
        _, stride, across = problem.strides
        if stride != across:
            return f"strides {problem.strides}"
        if not Window.of(problem, 0).stays_inside:
            return "the kernel leaves the input's depth, which has no border of zeros"
        if problem.channels % target.lanes or problem.x.strides[5] != 1:
            return f"input channels are not contiguous vectors of {target.lanes}"
        if problem.features < LEAST_FEATURES:
            return f"{problem.features} output channels don't pay for transforming the inputs"
        if problem.y.strides[5] != 1:
            return "output channels are not contiguous"
        return None

    def why_not(self, problem: ConvProblem, target: Target) -> str | None:
        if (reason := self.why_none(problem, target)) is not None:
            return reason
        if (problem.strides[1], self.m) not in TRANSFORMS:
            return f"no transform to {self.m}x{self.m} outputs with strides {problem.strides}"
        if self.scratch_bytes(problem, target) > target.l3 // 2:
            return f"{self.scratch_bytes(problem, target)} B scratch > {target.l3 // 2}"
        if self.feature_chunk % self.feature_block:
            return f"blocks of {self.feature_block} tiles of channels don't divide {self.feature_chunk}"
        return None

    def transform(self, problem: ConvProblem) -> Transform:
        return TRANSFORMS[problem.strides[1], self.m]

    def points(self, problem: ConvProblem) -> int:
        return self.transform(problem).size ** 2

    @property
    def batch(self) -> int:
        """Tiles of a task."""
        return self.tile_rows * self.tile_columns

    def blocks(self, problem: ConvProblem) -> tuple[int, int]:
        """(rows, columns) of blocks of tiles of an image."""
        rows, columns = (-(-extent // self.m) for extent in problem.y.shape[3:5])
        return -(-rows // self.tile_rows), -(-columns // self.tile_columns)

    def features(self, problem: ConvProblem, target: Target) -> int:
        """Tiles of output channels."""
        return -(-problem.features // (self.vectors * target.lanes))

    def cost(self, problem: ConvProblem, target: Target) -> Estimate:
        """Products as in DirectConv, transforms by loads and operations, what L2 can't hold by its bytes."""
        features = min(self.features(problem, target), self.feature_chunk)
        tile_k = self.vectors * target.lanes
        channels, points = planes_channels(problem), self.points(problem)
        compute = self._cycles(problem, target)
        v_bytes, m_bytes = self._scratch_parts(problem, target)
        u_bytes = 4 * points * channels * features * tile_k
        reads = 1 if self.feature_block == self.feature_chunk else features
        passing = 0.0
        if v_bytes + min(m_bytes, 64 << 10) > target.l2 * 3 // 4:
            passing += v_bytes * (1 + reads)
        if m_bytes > target.l2 // 2:
            passing += 2 * m_bytes
        # What is far more than L2 holds is soon driven out of a shared L3 too: at 112x112x128 blocks of 7 MB
        # took 1.4 times as long as blocks of 1 MB (measured).
        kept = v_bytes + m_bytes <= target.l3 // 16
        stream = passing / (L3_BYTES_PER_CYCLE if kept else MEMORY_BYTES_PER_CYCLE)
        whole = 4 * points * channels * problem.features
        stream += u_bytes / (L3_BYTES_PER_CYCLE if whole <= target.l3 // 2 else MEMORY_BYTES_PER_CYCLE)
        seconds = self.tasks(problem, target) / CLOCK
        return Estimate(compute * seconds, stream * seconds, 0.5 * min(compute, stream) * seconds)

    def _cycles(self, problem: ConvProblem, target: Target) -> float:
        """Of a task's products and transforms."""
        lanes = target.lanes
        features = min(self.features(problem, target), self.feature_chunk)
        runs = -(-self.batch // self.pixels)
        per_tile = self.batch / runs
        channels, points = planes_channels(problem), self.points(problem)
        step = tile_step(per_tile, self.vectors, channels * self.vectors * lanes * 4, target)
        around = around_tile(per_tile, self.vectors)
        compute = points * runs * features * (channels * step + around)
        # Loads, stores and about 2 operations per load and point, two a cycle.
        transform = points * (1.0 + 1.0 + 0.5)
        return compute + self.batch * (channels // lanes + features * self.vectors) * transform

    @staticmethod
    def least_seconds(part: Part, problem: ConvProblem, target: Target) -> float:
        """What `cost` is at least, however channels are cut: inputs transformed once, nothing to wait for."""
        whole = next(WinogradConv.cuts(part, problem, target))
        return whole._cycles(problem, target) * whole.tasks(problem, target) / CLOCK

    def tasks(self, problem: ConvProblem, target: Target) -> int:
        rows, columns = self.blocks(problem)
        chunks = -(-self.features(problem, target) // self.feature_chunk)
        return problem.groups * problem.y.shape[1] * problem.y.shape[2] * rows * columns * chunks

    def slabs(self, problem: ConvProblem, target: Target) -> tuple[int, int]:
        """Elements from one point to the next in V and in M: a cache line more than there are.

        A multiple of 4 KiB would put all points of a tile into the same set of the cache.
        """
        block = self.feature_block * self.vectors * target.lanes
        return self.batch * planes_channels(problem) + 16, self.batch * block + 16

    def _scratch_parts(self, problem: ConvProblem, target: Target) -> tuple[int, int]:
        """Bytes of V and of M."""
        v, m = self.slabs(problem, target)
        return 4 * self.points(problem) * v, 4 * self.points(problem) * m

    def scratch_bytes(self, problem: ConvProblem, target: Target) -> int:
        return sum(self._scratch_parts(problem, target))

    def pack(self, problem: ConvProblem, target: Target, weight: Array, bias: Array | None) -> list[Array]:
        """U = G g G^T, in float64, as (g, blocks of tiles, point, tile of the block, (kd, c), channel)."""
        tile, size = self.vectors * target.lanes, self.feature_block
        g_matrix = np.array(self.transform(problem).g)
        weight = weight.swapaxes(2, 3).reshape(*weight.shape[:2], -1, 9)
        g, k, c = weight.shape[:3]
        blocks = -(-k // (tile * size))
        padded = np.zeros((g, blocks * size * tile, c, 9), np.float32)
        padded[:, :k] = weight
        taps = padded.reshape(g, blocks, size, tile, c, 9).transpose(0, 1, 5, 2, 4, 3)
        # One product with the Kronecker square of G; the 9 taps are put in order, not the more points.
        points = np.kron(g_matrix, g_matrix) @ taps.reshape(g, blocks, 9, -1).astype(np.float64)
        packed = [points.astype(np.float32).reshape(g, blocks, -1, size, c, tile)]
        return packed if bias is None else [*packed, pack_bias(bias, tile)]

    def apply(self, problem: ConvProblem, target: Target, symbol: str) -> Any:
        from convopt.schedules.primitives.winograd_tiles import winograd_kernel

        return winograd_kernel(self, problem, target, symbol)


def planes_channels(problem: ConvProblem) -> int:
    """Input channels of all the planes that the kernel covers: what a product sums over."""
    return problem.kernel[0] * problem.channels
