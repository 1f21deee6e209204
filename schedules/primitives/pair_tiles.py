"""The TIR of products of bfloat16 pairs, and the register tile made of them. Needs tvm."""

from __future__ import annotations

from typing import Any

from tvm.tirx.script.builder import ir as T

from convopt.schedules.conv_direct import DirectConv
from convopt.schedules.conv_problem import ConvProblem
from convopt.schedules.primitives.conv_tiles import Position, Tile, Turn
from convopt.schedules.primitives.emit import hold, lanes_at, reduction, splat, steps_of_line
from convopt.targets import CpuTarget

# TVM's code generator has no vectors of bfloat16: the instruction comes in as a function on 32-bit pairs,
# which LLVM inlines.
_FUNCTION = "convopt_pair_products"
_LLVM = f"""
declare <16 x float> @llvm.x86.avx512bf16.dpbf16ps.512(<16 x float>, <32 x bfloat>, <32 x bfloat>)
define internal <16 x float> @{_FUNCTION}(<16 x float> %s, <16 x i32> %a, <16 x i32> %b) alwaysinline {{
  %x = bitcast <16 x i32> %a to <32 x bfloat>
  %y = bitcast <16 x i32> %b to <32 x bfloat>
  %r = call <16 x float>
    @llvm.x86.avx512bf16.dpbf16ps.512(<16 x float> %s, <32 x bfloat> %x, <32 x bfloat> %y)
  ret <16 x float> %r
}}
"""


class PairProducts:
    """sum + a.low * b.low + a.high * b.high in each lane; a and b are int32 of two bfloat16."""

    def __init__(self, target: CpuTarget) -> None:
        self.target, self.lanes = target, target.lanes

    def imported(self) -> Any:
        """The block in which `__call__` may be used."""
        return T.attr(0, "pragma_import_llvm", _LLVM)

    def __call__(self, total: Any, a: Any, b: Any) -> Any:
        if not self.target.emulated:
            return T.call_extern(f"float32x{self.lanes}", _FUNCTION, total, a, b)
        wide = f"float32x{self.lanes}"

        def low(pair: Any) -> Any:
            return T.reinterpret(wide, T.shift_left(pair, splat(T.int32(16), self.lanes)))

        def high(pair: Any) -> Any:
            return T.reinterpret(wide, T.bitwise_and(pair, splat(T.int32(-65536), self.lanes)))

        # The manual's order: the higher elements' product first.
        return hold(total + high(a) * high(b), self.lanes) + low(a) * low(b)


class PairTile(Tile):
    """A register tile whose steps take two input channels."""

    def __init__(
        self, schedule: DirectConv, problem: ConvProblem, target: CpuTarget, buffers: list[Any]
    ) -> None:
        super().__init__(schedule, problem, target, buffers)
        self.products = PairProducts(target)

    def reduce(
        self, place: tuple[Any, Any, Any], positions: list[Position], sums: list[list[Any]], turn: Turn
    ) -> None:
        group, _, panel = place
        problem, schedule, lanes = self.problem, self.schedule, self.lanes
        tile_k, block = schedule.vectors * lanes, schedule.channel_block
        x_group, (x_d, x_h, x_w, _) = problem.x.strides[0], problem.x.strides[2:]
        (kd, kh, kw), (dd, dh, dw), (pd, ph, pw) = problem.kernel, problem.dilations, problem.pads
        origin = group * x_group + panel * block - pd * x_d - ph * x_h - pw * x_w
        base = self.panel_at(place)
        zero, pairs = lanes_at(0, lanes), block // 2
        large = self.exceeds_l2(2)
        loops = T.serial(0, kd), T.serial(0, kh), T.serial(0, kw)
        with self.products.imported(), loops[0] as d, loops[1] as h, loops[2] as w:
            row = ((d * kh + h) * kw + w) * pairs

            def ahead(c: Any, count: int) -> None:
                self.ask_for_next_panel(base, turn, row + c, count, 2 * tile_k)

            group = steps_of_line(2 * turn.share(2 * tile_k))
            with reduction(pairs, ahead if large else None, group) as c:
                tap = origin + d * (dd * x_d) + h * (dh * x_h) + w * (dw * x_w) + c * 2
                step = base + (row + c) * (2 * tile_k)
                weights = [
                    T.reinterpret(f"int32x{lanes}", self.weight[lanes_at(step + 2 * v * lanes, 2 * lanes)])
                    for v in range(schedule.vectors)
                ]
                for i, (x_at, _, _) in enumerate(positions):
                    pair = splat(T.reinterpret("int32", self.x[lanes_at(x_at + tap, 2)]), lanes)
                    for v, weight in enumerate(weights):
                        T.buffer_store(sums[i][v], self.products(sums[i][v][zero], pair, weight), [zero])
