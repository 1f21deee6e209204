"""A depthwise convolution with those around it, row by row: what lies between stays in L2.

    task (image, chunk of output rows, block of output columns)
      for output row:
        ring[new input rows of the depthwise one] = expand(x)      scratch, zeros where its pads are
        d = depthwise(ring)                                        scratch, or y
        y = project(d)                                             1x1 over all channels of the row

`expand` is any convolution without groups, mostly a 1x1 or a stem, `project` a 1x1; either may be missing.
The rows that two output rows share are computed once a chunk, those that two chunks or blocks share twice.
Rows beyond the image are zeros, not what `expand` makes of zeros.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from convopt.schedules.base import Estimate, TensorView
from convopt.schedules.conv_depthwise import UNROLLED_TAPS, DepthwiseConv, memory_seconds
from convopt.schedules.conv_direct import DirectConv, tile_pixels
from convopt.schedules.conv_problem import Array, ConvProblem

if TYPE_CHECKING:
    from convopt.targets import Target


@dataclass(frozen=True)
class FusedConvProblem:
    """The stages in their order; each one's x is the y before it, whose views say its shape, not its place.

    Operands of a kernel: x, of each stage the weight, [bias] and others, y.
    """

    expand: ConvProblem | None
    depthwise: ConvProblem
    project: ConvProblem | None

    @property
    def stages(self) -> tuple[ConvProblem, ...]:
        return tuple(s for s in (self.expand, self.depthwise, self.project) if s is not None)

    @property
    def x(self) -> TensorView:
        return self.stages[0].x

    @property
    def y(self) -> TensorView:
        return self.stages[-1].y

    @property
    def operands(self) -> tuple[TensorView, ...]:
        constants = (view for stage in self.stages for view in stage.operands[1:-1])
        return (self.x, *constants, self.y)

    @property
    def channels(self) -> int:
        """Of what lies between the stages."""
        return self.depthwise.groups

    @property
    def ring_rows(self) -> int:
        """Input rows under one output row of the depthwise convolution."""
        return (self.depthwise.kernel[1] - 1) * self.depthwise.dilations[1] + 1

    @property
    def text(self) -> str:
        return " + ".join(stage.text for stage in self.stages)

    def why_not(self) -> str | None:
        """Why these stages can't be one kernel, on whatever target."""
        if self.expand is None and self.project is None:
            return "nothing around the depthwise convolution"
        for stage in self.stages:
            if {stage.x.dtype, stage.y.dtype, *(view.dtype for view in stage.others)} != {"float32"}:
                return "not all of it is float32"
            if stage.kernel[0] != 1 or stage.y.shape[2] != 1 or stage.x.shape[2] != 1:
                return "three spatial dims"
        if any(beside is not None and beside.groups > 1 for beside in (self.expand, self.project)):
            return "the convolution beside it has groups"
        if (p := self.project) is not None and (p.taps, p.strides, p.pads) != (1, (1, 1, 1), (0, 0, 0)):
            return "the convolution behind it is not 1x1 with stride 1"
        d = self.depthwise
        if d.channels != 1 or d.features != 1 or d.groups == 1:
            return "the middle one is not depthwise"
        if d.taps > UNROLLED_TAPS:
            return f"{d.taps} taps are not unrolled"
        if self.ring_rows < d.strides[1]:
            return "rows between the taps are never read"
        if (self.expand is None and d.x.strides[0] != 1) or self.y.strides[
            0 if self.project is None else 5
        ] != 1:
            return "channels are not contiguous"
        return None


@dataclass(frozen=True)
class FusedConv:
    """width x row_chunk: the output pixels of a task. columns: the depthwise tile.

    expand_vectors, project_vectors: of the dense convolutions' register tiles; 0 where there is none.
    """

    name: ClassVar[str] = "fused"
    width: int
    row_chunk: int
    columns: int
    expand_vectors: int
    project_vectors: int

    @classmethod
    def space(cls, problem: FusedConvProblem, target: Target) -> Iterator[FusedConv]:
        height, width = problem.y.shape[3:5]
        columns = min(width, 8 if problem.depthwise.strides[2] == 1 else 4)
        expand, project = (_best_vectors(s, target) for s in (problem.expand, problem.project))
        for block in sorted({-(-width // n) for n in (1, 2, 3, 4, 6, 8, 12, 16)}):
            for rows in sorted({-(-height // n) for n in (1, 2, 4, 8, 16)}):
                if block >= min(width, columns):
                    yield cls(block, rows, min(columns, block), expand, project)

    def why_not(self, problem: FusedConvProblem, target: Target) -> str | None:
        if (reason := problem.why_not()) is not None:
            return reason
        if (used := self.columns + 4) > target.vector_registers:
            return f"{used} vector registers > {target.vector_registers}"
        room, weights = target.l2 * 3 // 4, sum(_weight_bytes(stage) for stage in problem.stages)
        if (held := self.scratch_bytes(problem, target)) + weights > room:
            return f"{held} B between the stages and {weights} of weights > {room}"
        return None

    def input_width(self, problem: FusedConvProblem) -> int:
        """Input columns of the depthwise convolution under a block."""
        d = problem.depthwise
        return (self.width - 1) * d.strides[2] + (d.kernel[2] - 1) * d.dilations[2] + 1

    def cost(self, problem: FusedConvProblem, target: Target) -> Estimate:
        """The stages' cycles, those of rows and columns computed twice too; x and y from beyond L2."""
        d = problem.depthwise
        height, width = d.y.shape[3:5]
        rows = -(-height // self.row_chunk)
        blocks = -(-width // self.width)
        compute = DepthwiseConv(1, self.columns, 1).cost(d, target).compute * blocks * self.width / width
        if problem.expand is not None:
            computed = (height * d.strides[1] + rows * (problem.ring_rows - d.strides[1])) * blocks
            again = max(1.0, computed * self.input_width(problem) / (d.x.shape[3] * d.x.shape[4]))
            compute += again * _seconds(problem.expand, self.expand_vectors, target)
        if problem.project is not None:
            compute += _seconds(problem.project, self.project_vectors, target) * blocks * self.width / width
        views = (problem.x, *(o for s in problem.stages for o in s.others if o.strides[4]), problem.y)
        memory = memory_seconds(sum(4 * view.size for view in views), target)
        return Estimate(compute, memory, 0.1 * min(compute, memory))

    def tasks(self, problem: FusedConvProblem, target: Target) -> int:
        _, images, _, height, width, _ = problem.y.shape
        return images * -(-height // self.row_chunk) * -(-width // self.width)

    def ring_floats(self, problem: FusedConvProblem) -> int:
        return (
            0 if problem.expand is None else problem.ring_rows * self.input_width(problem) * problem.channels
        )

    def scratch_bytes(self, problem: FusedConvProblem, target: Target) -> int:
        row = 0 if problem.project is None else self.width * problem.channels
        return 4 * (self.ring_floats(problem) + row)

    def pack(
        self, problem: FusedConvProblem, target: Target, constants: list[tuple[Array, Array | None]]
    ) -> list[Array]:
        """The constant operands, stage after stage; constants: each one's weight and bias."""
        packed: list[Array] = []
        for stage, (weight, bias) in zip(problem.stages, constants, strict=True):
            schedule: DepthwiseConv | DirectConv = DepthwiseConv(1, self.columns, 1)
            if stage is not problem.depthwise:
                schedule = self.tile(problem, stage, target)
            packed += schedule.pack(stage, target, weight, bias)
        return packed

    def tile(self, problem: FusedConvProblem, stage: ConvProblem, target: Target) -> DirectConv:
        """The register tile of a dense stage."""
        return _tile(stage, self.expand_vectors if stage is problem.expand else self.project_vectors, target)

    def apply(self, problem: FusedConvProblem, target: Target, symbol: str) -> Any:
        from convopt.schedules.primitives.fused_tiles import fused_kernel

        return fused_kernel(self, problem, target, symbol)


def _tile(stage: ConvProblem, vectors: int, target: Target) -> DirectConv:
    return DirectConv(tile_pixels(target, vectors), vectors, stage.channels, False, 1, 1)


def _weight_bytes(stage: ConvProblem) -> int:
    return 4 * stage.groups * stage.taps * stage.channels * stage.features


def _seconds(stage: ConvProblem, vectors: int, target: Target) -> float:
    """Of a dense stage's register tiles."""
    part = (tile_pixels(target, vectors), vectors, stage.channels, False)
    return DirectConv.least_seconds(part, stage, target)


def _best_vectors(stage: ConvProblem | None, target: Target) -> int:
    """The width of the register tile that takes the fewest cycles; 0 without a stage."""
    if stage is None:
        return 0
    fitting = [v for v in (2, 3, 4, 1) if tile_pixels(target, v) >= 1]
    return min(fitting, key=lambda v: _seconds(stage, v, target))
