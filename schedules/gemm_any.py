"""Matrix product whose sizes come at run time: one compiled kernel for every m, n and k.

    y[m, n] = a[m, k] @ b[k, n]        a dense, b in panels of `tile` columns, y's rows padded to panels

What a `DirectConv` knows when it is compiled is read from an operand here: an int32 vector (m, panels, k). It
gives up what constants allow (even tiles, partial panels), and never needs a compiler again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from convopt.schedules.base import Estimate, TensorView
from convopt.schedules.conv_direct import CLOCK, tile_pixels
from convopt.schedules.conv_problem import Array

if TYPE_CHECKING:
    from convopt.targets import CpuTarget, Target


@dataclass(frozen=True)
class AnyGemmProblem:
    """Nothing is known of the sizes. Operands: sizes, a, packed b, y."""

    @property
    def operands(self) -> tuple[TensorView, ...]:
        matrix = TensorView((1,), (1,))
        return (TensorView((3,), (1,), "int32"), matrix, matrix, matrix)


@dataclass(frozen=True)
class AnyGemm:
    """pixels x vectors: the register tile. row_chunk: tiles of rows that a task computes, of one panel."""

    name: ClassVar[str] = "any-gemm"
    pixels: int
    vectors: int
    row_chunk: int

    @classmethod
    def space(cls, target: CpuTarget) -> list[AnyGemm]:
        """Whole and half register tiles, and three sizes of tasks."""
        found = []
        for vectors in (1, 2, 3, 4):
            most = tile_pixels(target, vectors)
            for pixels in sorted({most, -(-most // 2), 1} - {0}, reverse=True):
                found += [cls(pixels, vectors, chunk) for chunk in (1, 4, 16, 64)]
        return found

    def tile(self, target: Target) -> int:
        """Columns of a panel."""
        return self.vectors * target.lanes

    def why_not(self, problem: AnyGemmProblem, target: Target) -> str | None:
        used = self.pixels * self.vectors + self.vectors + (0 if target.fma_from_memory else 1)
        if used > target.vector_registers:
            return f"{used} vector registers > {target.vector_registers}"
        return None

    def cost(self, problem: AnyGemmProblem, target: Target) -> Estimate:
        """Of one register tile and one step of the reduction: the sizes are unknown."""
        return Estimate(max(self.pixels * self.vectors / 2, 4.0) / CLOCK, 0.0)

    def panels(self, n: int, target: Target) -> int:
        return -(-n // self.tile(target))

    def tasks_of(self, m: int, n: int, target: Target) -> int:
        return self.panels(n, target) * -(-m // (self.pixels * self.row_chunk))

    def pack(self, b: Array, target: Target) -> Array:
        """(k, n) to (panels, k, tile), zeros in the columns past n."""
        k, n = b.shape
        panels, tile = self.panels(n, target), self.tile(target)
        padded = np.zeros((k, panels * tile), np.float32)
        padded[:, :n] = b
        return np.ascontiguousarray(padded.reshape(k, panels, tile).transpose(1, 0, 2))

    def apply(self, problem: AnyGemmProblem, target: Target, symbol: str) -> Any:
        from tvm import tirx
        from tvm.tirx.script.builder import ir as T

        from convopt.schedules.primitives.emit import hold, kernel, lanes_at, register, splat

        lanes, tile = target.lanes, self.tile(target)
        with kernel(symbol, problem.operands) as body:
            sizes, a, b, y = body.buffers
            m, panels, k = (hold(sizes[i], 1, "int32") for i in range(3))
            tiles = hold((m + (self.pixels - 1)) // self.pixels, 1, "int32")
            chunks = hold((tiles + (self.row_chunk - 1)) // self.row_chunk, 1, "int32")
            with body.task() as task:
                panel, first = task // chunks, task % chunks * self.row_chunk
                with T.serial(0, tirx.min(tiles - first, self.row_chunk)) as t:
                    # Rows past the end repeat the last one: the same values are stored twice.
                    rows = [
                        hold(tirx.min((first + t) * self.pixels + i, m - 1), 1, "int32")
                        for i in range(self.pixels)
                    ]
                    sums = [[register(lanes) for _ in range(self.vectors)] for _ in rows]
                    for row in sums:
                        for one in row:
                            T.buffer_store(one, splat(T.float32(0), lanes), [lanes_at(0, lanes)])
                    with T.serial(0, k) as c:
                        weights = [
                            hold(b[lanes_at((panel * k + c) * tile + v * lanes, lanes)], lanes)
                            for v in range(self.vectors)
                        ]
                        for i, row in enumerate(rows):
                            x = splat(a[row * k + c], lanes)
                            for v in range(self.vectors):
                                at = [lanes_at(0, lanes)]
                                T.buffer_store(sums[i][v], x * weights[v] + sums[i][v][at[0]], at)
                    for i, row in enumerate(rows):
                        for v in range(self.vectors):
                            to = (row * panels + panel) * tile + v * lanes
                            T.buffer_store(y, sums[i][v][lanes_at(0, lanes)], [lanes_at(to, lanes)])
        return body.function
