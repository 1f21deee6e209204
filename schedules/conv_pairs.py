"""Direct convolution in bfloat16 by pair products (AVX512-BF16): the register tiles of `conv_direct`.

VDPBF16PS (Intel SDM volume 2) adds the products of two neighbouring inputs with two weights to each float32
sum, so that a step of the reduction takes two input channels: the pair is broadcast as one 32-bit element,
the weights lie in pairs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from convopt.schedules.base import Estimate
from convopt.schedules.conv_direct import DirectConv
from convopt.schedules.conv_problem import Array, ConvProblem, pack_bias, pack_weight, with_narrow_weight

if TYPE_CHECKING:
    from collections.abc import Iterator

    from convopt.targets import Target


@dataclass(frozen=True)
class PairConv(DirectConv):
    name: ClassVar[str] = "direct-pairs"

    @classmethod
    def space(cls, problem: ConvProblem, target: Target) -> Iterator[DirectConv]:
        if problem.arithmetic == "bfloat16":
            yield from super().space(problem, target)

    def why_not(self, problem: ConvProblem, target: Target) -> str | None:
        if target.bf16 is None:
            return f"{target.name} has no AVX512-BF16"
        if problem.arithmetic != "bfloat16" or problem.x.dtype != "bfloat16":
            return "its products are float32"
        if problem.x.strides[5] != 1:
            return "input channels are not contiguous"
        if self.channel_block % 2:
            return f"blocks of {self.channel_block} channels are no pairs"
        return super().why_not(problem, target)

    def cost(self, problem: ConvProblem, target: Target) -> Estimate:
        """DirectConv's with half the steps and half the bytes.

        A pair product starts every cycle; where two float32 ones do (Intel's cores with AMX), a step takes as
        long as two of DirectConv's.
        """
        one, share = super().cost(problem, target), self._step(target)
        return Estimate(one.compute * share, one.memory / 2, one.overhead / 2)

    def _step(self, target: Target) -> float:
        """Cycles of a step over those of DirectConv's steps for the same channels."""
        return 1.0 if target.bf16 == "amx" else 0.5

    def pack(self, problem: ConvProblem, target: Target, weight: Array, bias: Array | None) -> list[Array]:
        import ml_dtypes

        tile = self.vectors * target.lanes
        plain = pack_weight(weight, self.channel_block, tile)  # (..., channel_block, tile)
        pairs = plain.reshape(*plain.shape[:-2], self.channel_block // 2, 2, tile).swapaxes(-1, -2)
        packed = [np.ascontiguousarray(pairs).astype(ml_dtypes.bfloat16)]
        return packed if bias is None else [*packed, pack_bias(bias, tile)]

    def apply(self, problem: ConvProblem, target: Target, symbol: str) -> Any:
        from convopt.schedules.primitives.conv_tiles import direct_kernel
        from convopt.schedules.primitives.pair_tiles import PairTile

        return direct_kernel(self, problem, target, symbol, with_narrow_weight(problem), PairTile)
