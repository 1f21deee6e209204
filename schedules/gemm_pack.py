"""Packs a matrix that is only known at run time into the panels that a product reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from convopt.schedules.base import Estimate, TensorView

if TYPE_CHECKING:
    from convopt.targets import Target


@dataclass(frozen=True)
class PackProblem:
    """matrix (g, k, n), any strides, to (g, n/tile, k, tile), columns past n zero."""

    matrix: TensorView
    tile: int

    @property
    def operands(self) -> tuple[TensorView, ...]:
        return (self.matrix, TensorView((1,), (1,)))

    @property
    def panels(self) -> int:
        return -(-self.matrix.shape[2] // self.tile)


@dataclass(frozen=True)
class PackMatrix:
    """A task packs one panel, `tile` columns."""

    name: ClassVar[str] = "pack"

    def why_not(self, problem: PackProblem, target: Target) -> str | None:
        return None

    def cost(self, problem: PackProblem, target: Target) -> Estimate:
        return Estimate(0.0, problem.panels * problem.tile * problem.matrix.shape[1] * 8 / 10e9)

    def tasks(self, problem: PackProblem, target: Target) -> int:
        return problem.matrix.shape[0] * problem.panels

    def scratch_bytes(self, problem: PackProblem, target: Target) -> int:
        return 0

    def apply(self, problem: PackProblem, target: Target, symbol: str) -> Any:
        from tvm.tirx.script.builder import ir as T

        from convopt.schedules.primitives.conv_tiles import load, pieces
        from convopt.schedules.primitives.emit import kernel, lanes_at, splat

        _, rows, columns = problem.matrix.shape
        g_step, k_step, n_step = problem.matrix.strides
        tile, panels, lanes = problem.tile, problem.panels, target.lanes
        with kernel(symbol, problem.operands) as body:
            source, packed = body.buffers

            def copy(width: int, task: Any) -> None:
                group, panel = task // panels, task % panels
                with T.serial(0, rows) as k:
                    to = (task * rows + k) * tile
                    for base in range(0, tile, lanes):
                        inside = max(0, min(lanes, width - base))
                        for first, count in pieces(inside):
                            at = group * g_step + k * k_step + (panel * tile + base + first) * n_step
                            value = load(source, at, count, n_step if count > 1 else 1)
                            T.buffer_store(packed, value, [lanes_at(to + base + first, count)])
                        for first, count in pieces(lanes - inside):
                            at = to + base + inside + first
                            T.buffer_store(packed, splat(T.float32(0), count), [lanes_at(at, count)])

            with body.task() as task:
                tail = columns % tile
                if not tail:
                    copy(tile, task)
                else:
                    with T.If(task % panels == panels - 1):
                        with T.Then():
                            copy(tail, task)
                        with T.Else():
                            copy(tile, task)
        return body.function
