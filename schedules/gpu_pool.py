"""Max and average pooling on GPUs: a thread computes neighbouring channels of one output pixel."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, prod
from typing import Any, ClassVar

from convopt.schedules.base import Estimate
from convopt.schedules.pool_problem import PoolProblem
from convopt.schedules.primitives.gpu_nest import MOST_INDEX, THREADS, blocks_of, indices_of
from convopt.schedules.primitives.vector_width import ITEMSIZE, access_width
from convopt.targets import GpuTarget

CHANNEL = 1


def default(problem: PoolProblem, target: GpuTarget) -> GpuPool:
    widths = [access_width(v, CHANNEL) for v in problem.operands if v.dtype in ITEMSIZE]
    return GpuPool(min(widths, default=1))


@dataclass(frozen=True)
class GpuPool:
    """`vector` channels per thread, loaded and stored as one."""

    name: ClassVar[str] = "gpu-pool"
    vector: int = 1

    def why_not(self, problem: PoolProblem, target: GpuTarget) -> str | None:
        for view in problem.operands:
            if view.dtype not in ITEMSIZE:
                return f"pooling of {view.dtype}"
            if view.reach > MOST_INDEX:
                return f"an operand of shape {view.shape} spans 2**31 elements"
            if access_width(view, CHANNEL) % self.vector:
                return f"no aligned vectors of {self.vector} channels"
        return None

    def cost(self, problem: PoolProblem, target: GpuTarget) -> Estimate:
        moved = sum(v.size * ITEMSIZE[v.dtype] for v in problem.operands)
        rate = target.vector_flops / 2 * target.compute_units * target.clock
        return Estimate(problem.taps * problem.y.size / rate, moved / target.memory_rate)

    def workspace_bytes(self, problem: PoolProblem, target: GpuTarget) -> int:
        return 0

    def shared_bytes(self, problem: PoolProblem, target: GpuTarget) -> int:
        return 0

    def apply(self, problem: PoolProblem, target: GpuTarget, symbol: str) -> tuple[Any, ...]:
        from tvm.tirx.script.builder import ir as T

        from convopt.schedules.primitives.gpu_emit import (
            device_kernel,
            from_float,
            hold,
            hold_multiple,
            local,
            store,
            to_float,
            vector,
            when,
        )
        from convopt.schedules.primitives.vector_math import VectorMath

        x, y, lanes = problem.x, problem.y, self.vector
        # Neighbouring threads take neighbours in the output's memory.
        order = sorted(range(5), key=lambda d: -abs(y.strides[d]))
        extents = [y.shape[d] // (lanes if d == CHANNEL else 1) for d in order]
        threads, maximum, math = prod(extents), problem.mode == "max", VectorMath(1, "local")
        with device_kernel(f"{symbol}_0", problem.operands, blocks_of(threads), THREADS) as body:
            source, destination = body.buffers
            flat = body.block[0] * THREADS + body.thread
            with when(flat < threads if threads % THREADS else None):
                found = dict(zip(order, indices_of(flat, extents), strict=True))
                at = [
                    hold(found[d]) if d != CHANNEL else hold_multiple(found[d] * lanes, lanes)
                    for d in range(5)
                ]
                sums, element = local(lanes), local(lanes, x.dtype)
                for lane in range(lanes):
                    T.buffer_store(sums, T.float32(-inf if maximum else 0.0), [lane])
                axes = [problem.axis(d) for d in range(3)]
                first = at[0] * x.strides[0] + at[1] * x.strides[1]
                for axis, o, stride in zip(axes, at[2:], x.strides[2:], strict=True):
                    first = first + axis.start(o) * stride
                start = hold_multiple(first, lanes)
                bounds = [
                    (0, axis.kernel) if axis.all_inside else tuple(hold(t) for t in axis.taps(o))
                    for axis, o in zip(axes, at[2:], strict=True)
                ]
                steps = [a.dilation * s for a, s in zip(axes, x.strides[2:], strict=True)]
                (d0, d1), (h0, h1), (w0, w1) = bounds
                with T.serial(0, d1 - d0) as d, T.serial(0, h1 - h0) as h, T.serial(0, w1 - w0) as w:
                    tap = (d0 + d) * steps[0] + (h0 + h) * steps[1] + (w0 + w) * steps[2]
                    store(element, 0, vector(source, start + tap, lanes), lanes)
                    for lane in range(lanes):
                        value = math.hold(to_float(element[lane], x.dtype))
                        old = sums[lane]
                        T.buffer_store(sums, math.max(value, old) if maximum else old + value, [lane])
                scale: Any = None
                if not maximum:
                    counts = [
                        axis.padded_taps(o) if problem.count_include_pad else high - low
                        for axis, o, (low, high) in zip(axes, at[2:], bounds, strict=True)
                    ]
                    scale = hold(T.Cast("float32", prod(counts[1:], start=counts[0]) + T.int32(0)), "float32")
                out = local(lanes, y.dtype)
                for lane in range(lanes):
                    value = sums[lane] if scale is None else sums[lane] / scale
                    T.buffer_store(out, from_float(value, y.dtype), [lane])
                offset = sum(
                    (i * s for i, s in zip(at[1:], y.strides[1:], strict=True)), at[0] * y.strides[0]
                )
                store(destination, offset, vector(out, 0, lanes), lanes)
        return (body.function,)
