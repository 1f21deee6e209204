"""Elementwise kernels and copies on GPUs: a thread takes neighbouring elements of the output.

Loads and stores are vectors of up to 16 bytes where the operand is contiguous and aligned along the output's
innermost loop; the arithmetic between is per element, in float32.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from convopt.schedules.base import Estimate
from convopt.schedules.pointwise_problem import ITEM_BYTES, PointwiseProblem, moved_bytes, why_no_kernel
from convopt.schedules.primitives.gpu_nest import THREADS, blocks_of, offsets_of, steps_of
from convopt.schedules.primitives.nest import Loop
from convopt.targets import GpuTarget

MOST_BYTES = 16
WIDTHS = (8, 4, 2, 1)


def default(problem: PointwiseProblem, target: GpuTarget) -> GpuPointwise:
    """The widest vectors that the operands allow."""
    return next(s for s in map(GpuPointwise, WIDTHS) if s.vector == 1 or s.why_not(problem, target) is None)


@dataclass(frozen=True)
class GpuPointwise:
    """`vector` elements along the output's innermost loop per thread."""

    name: ClassVar[str] = "gpu-pointwise"
    vector: int = 1

    def why_not(self, problem: PointwiseProblem, target: GpuTarget) -> str | None:
        if refusal := why_no_kernel(problem):
            return refusal
        if self.vector == 1:
            return None
        inner = problem.nest[-1]
        if inner.extent % self.vector:
            return f"{inner.extent} elements in a row, not a multiple of {self.vector}"
        for index, view in enumerate(problem.operands):
            if inner.strides[index] == 0 and index < len(problem.inputs):
                continue
            nbytes = self.vector * ITEM_BYTES[view.dtype]
            if nbytes > MOST_BYTES or (self.vector > 4 and ITEM_BYTES[view.dtype] != 2):
                return f"vectors of {self.vector} {view.dtype}"
            steps = [loop.strides[index] for loop in problem.nest[:-1]]
            if inner.strides[index] != 1 or any(s % self.vector for s in steps) or view.alignment % nbytes:
                return f"operand {index} has no aligned vectors of {self.vector}"
        return None

    def cost(self, problem: PointwiseProblem, target: GpuTarget) -> Estimate:
        work = (problem.expression.cost + len(problem.operands)) * problem.outputs[0].size
        rate = target.vector_flops / 2 * target.compute_units * target.clock
        return Estimate(compute=work / rate, memory=moved_bytes(problem) / target.memory_rate)

    def workspace_bytes(self, problem: PointwiseProblem, target: GpuTarget) -> int:
        return 0

    def shared_bytes(self, problem: PointwiseProblem, target: GpuTarget) -> int:
        return 0

    def apply(self, problem: PointwiseProblem, target: GpuTarget, symbol: str) -> tuple[Any, ...]:
        from tvm.tirx.script.builder import ir as T

        from convopt.schedules.primitives.gpu_emit import device_kernel, hold_multiple, when

        *outer, inner = problem.nest
        pieces = [*outer, Loop(inner.extent // self.vector, tuple(s * self.vector for s in inner.strides))]
        threads = steps_of(pieces)
        with device_kernel(f"{symbol}_0", problem.storage(), blocks_of(threads), THREADS) as body:
            flat = body.block[0] * THREADS + body.thread
            with when(flat < threads if threads % THREADS else None):
                found = offsets_of(pieces, flat, len(problem.operands))
                offsets = [
                    hold_multiple(o + T.int32(0), self.vector if stride == 1 else 1)
                    for o, stride in zip(found, inner.strides, strict=True)
                ]
                self._elements(problem, inner, body.buffers, offsets)
        return (body.function,)

    def _elements(
        self, problem: PointwiseProblem, inner: Loop, buffers: list[Any], offsets: list[Any]
    ) -> None:
        """`self.vector` elements of every operand, from these offsets on."""
        from tvm.tirx.script.builder import ir as T

        from convopt.schedules.primitives import vector_math
        from convopt.schedules.primitives.gpu_emit import from_float, local, store, to_float, vector

        lanes, kinds, count = self.vector, [v.dtype for v in problem.storage()], len(problem.inputs)
        loaded: list[Any] = []
        for buffer, offset, kind, stride in zip(buffers, offsets, kinds, inner.strides, strict=True):
            values = local(1 if stride == 0 else lanes, kind)
            if len(loaded) < count:
                width = 1 if stride == 0 else lanes
                store(values, 0, vector(buffer, offset, width), width)
            loaded.append(values)
        for lane in range(lanes):
            inputs = [loaded[i][0 if inner.strides[i] == 0 else lane] for i in range(count)]
            if problem.moves_bits:
                results = [inputs[r] for r in problem.expression.results]
            else:
                floats = [to_float(value, kinds[i]) for i, value in enumerate(inputs)]
                results = vector_math.emit(problem.expression, floats, 1, "local")
                results = [from_float(r, kinds[count + i]) for i, r in enumerate(results)]
            for i, result in enumerate(results):
                T.buffer_store(loaded[count + i], result, [lane])
        for i in range(count, len(buffers)):
            store(buffers[i], offsets[i], vector(loaded[i], 0, lanes), lanes)
