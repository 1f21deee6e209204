"""Max and average pooling in one normal form, and the arithmetic of windows that reach over the border."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any, Literal

from convopt.schedules.base import TensorView

Triple = tuple[int, int, int]


@dataclass(frozen=True)
class PoolProblem:
    """x: (n, c, d, h, w) to y: (n, c, od, oh, ow), any strides; missing spatial dimensions have extent 1.

    Output o of a dimension sees inputs o*stride - begin + k*dilation, k < kernel, where they exist. An
    average divides by how many exist, or with count_include_pad by how many lie within the input and its pads
    (windows of ceil_mode may reach further). Operands of a kernel: x, y.
    """

    x: TensorView
    y: TensorView
    kernel: Triple
    strides: Triple
    dilations: Triple
    begin: Triple
    end: Triple
    mode: Literal["max", "average"]
    count_include_pad: bool = False

    @property
    def operands(self) -> tuple[TensorView, ...]:
        return (self.x, self.y)

    @property
    def taps(self) -> int:
        return prod(self.kernel)

    def axis(self, d: int) -> Axis:
        """Of spatial dimension d, 0 to 2."""
        return Axis(
            self.x.shape[2 + d],
            self.y.shape[2 + d],
            self.kernel[d],
            self.strides[d],
            self.dilations[d],
            self.begin[d],
            self.end[d],
        )


@dataclass(frozen=True)
class Axis:
    """One spatial dimension of a pool. Methods take an output index, an int or an expression of TIR."""

    extent: int
    outputs: int
    kernel: int
    stride: int
    dilation: int
    begin: int
    end: int

    @property
    def inside(self) -> tuple[int, int]:
        """The outputs [first, last) whose whole window lies in the input."""
        first = min(-(-self.begin // self.stride), self.outputs)
        reach = self.extent - 1 - (self.kernel - 1) * self.dilation + self.begin
        last = min(reach // self.stride + 1, self.outputs) if reach >= 0 else 0
        return first, max(first, last)

    @property
    def all_inside(self) -> bool:
        return self.inside == (0, self.outputs)

    def start(self, o: Any) -> Any:
        """The input index of tap 0; negative in the begin pad."""
        return o * self.stride - self.begin

    def taps(self, o: Any) -> tuple[Any, Any]:
        """The taps [low, high) that exist."""
        return self._steps_to(-self.start(o)), self._steps_to(self.extent - self.start(o))

    def padded_taps(self, o: Any) -> Any:
        """How many taps lie in the input and its pads."""
        return self._steps_to(self.extent + self.end - self.start(o))

    def _steps_to(self, distance: Any) -> Any:
        """How many taps are less than `distance` away, at most the kernel's."""
        if isinstance(distance, int):
            return min(max(-(-distance // self.dilation), 0), self.kernel)
        from tvm.tirx.script.builder import ir as T

        steps = (distance + (self.dilation - 1)) // self.dilation
        return T.min(T.max(steps, T.int32(0)), T.int32(self.kernel))
