"""From accumulators to the output: bias, further operands and activation, then vector stores. Needs tvm.

`through_shared`: accumulators go to a strip of shared memory, and threads read it back in rows, so that a
thread has neighbouring channels and stores 16 bytes. `direct`: every thread stores what it has, one by one.
Sums that are not final yet (split-K) go to float32 partials, without bias or activation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm.tirx.script.builder import ir as T

from convopt.schedules.base import TensorView
from convopt.schedules.conv_problem import ConvProblem
from convopt.schedules.primitives import vector_math
from convopt.schedules.primitives.gpu_emit import (
    barrier,
    from_float,
    hold,
    local,
    store,
    to_float,
    unrolled,
    vector,
    when,
)
from convopt.schedules.primitives.gpu_nest import indices_of
from convopt.schedules.primitives.matrix_tile import MatrixTile
from convopt.schedules.primitives.store_order import store_position
from convopt.schedules.primitives.vector_width import access_width
from convopt.targets import GpuTarget


def pixel_offset(view: TensorView, group: Any, m: Any) -> Any:
    """Elements from element 0 to channel 0 of output pixel m; pixels in one run cost one multiplication."""
    extents, strides = [view.shape[1]], [view.strides[1]]
    for extent, stride in zip(view.shape[2:5], view.strides[2:5], strict=True):
        if strides[-1] == stride * extent or extents[-1] == 1:
            extents[-1], strides[-1] = extents[-1] * extent, stride
        elif extent != 1:
            extents.append(extent)
            strides.append(stride)
    offset = group * view.strides[0] if view.shape[0] > 1 and view.strides[0] else 0
    for index, stride in zip(indices_of(m, extents), strides, strict=True):
        offset = offset + index * stride
    return offset


@dataclass(frozen=True)
class FinalOutput:
    """Sums to y: epilogue(sum + bias, others...)."""

    problem: ConvProblem
    target: GpuTarget
    bias: Any  # buffer, or None
    others: tuple[Any, ...]
    y: Any
    features: int  # of a group, padded: the bias's row length

    @property
    def lanes(self) -> int:
        """Neighbouring channels that one store of up to 16 bytes takes."""
        return access_width(self.problem.y, 5)

    def put(self, sums: Any, start: Any, group: Any, m: Any, n: Any, lanes: int) -> None:
        """Stores `lanes` channels from n of pixel m, whose sums are sums[start], sums[start + 1], ..."""
        p = self.problem
        gathered = [
            self._gather(buffer, view, group, m, n, lanes)
            for buffer, view in zip(self.others, p.others, strict=True)
        ]
        out = local(lanes, p.y.dtype)
        with unrolled(self.target, lanes) as lane:
            value = sums[start + lane]
            if self.bias is not None:
                value = value + self.bias[group * self.features + n + lane]
            arguments = [hold(value, "float32"), *(read(lane) for read in gathered)]
            (result,) = vector_math.emit(p.epilogue, arguments, 1, "local")
            T.buffer_store(out, from_float(result, p.y.dtype), [lane])
        offset = pixel_offset(p.y, group, m) + n * p.y.strides[5]
        store(self.y, offset, vector(out, 0, lanes), lanes)

    def _gather(self, buffer: Any, view: TensorView, group: Any, m: Any, n: Any, lanes: int) -> Any:
        """A function of the lane: this operand's value as float32."""
        offset = pixel_offset(view, group, m) + n * view.strides[5]
        if lanes > 1 and access_width(view, 5) % lanes == 0:
            values = local(lanes, view.dtype)
            store(values, 0, vector(buffer, offset, lanes), lanes)
            return lambda lane: to_float(values[lane], view.dtype)
        start = hold(offset)
        return lambda lane: to_float(buffer[start + lane * view.strides[5]], view.dtype)


@dataclass(frozen=True)
class PartialOutput:
    """Sums to float32 partials (parts, groups, pixels, features): stored per part, or added to one."""

    problem: ConvProblem
    target: GpuTarget
    workspace: Any
    part: Any  # None: atomic
    lanes: int

    def put(self, sums: Any, start: Any, group: Any, m: Any, n: Any, lanes: int) -> None:
        p = self.problem
        offset = (group * p.pixels + m) * p.features + n
        if self.part is None:
            place = T.address_of(self.workspace[offset])
            assert lanes == 1
            if self.target.kind == "rocm":  # TVM's LLVM has an operation for it, and no library does
                T.evaluate(tvm.tirx.call_intrin("float32", "tirx.atomic_add", place, sums[start]))
            else:
                T.evaluate(T.call_extern("float32", "atomic_add", place, sums[start]))
            return
        offset = offset + self.part * (p.groups * p.pixels * p.features)
        store(self.workspace, offset, vector(sums, start, lanes), lanes)


Output = FinalOutput | PartialOutput


@dataclass(frozen=True)
class TileEpilogue:
    """Where a block's tile goes: pixels from first_m, channels from first_n of a group."""

    problem: ConvProblem
    target: GpuTarget
    output: Output
    group: Any
    first_m: Any
    first_n: Any
    thread: Any

    def _put(
        self, sums: Any, start: Any, row: Any, column: Any, lanes: int, exact: tuple[bool, bool]
    ) -> None:
        m, n = self.first_m + row, self.first_n + column
        conditions = [] if exact[0] else [m < self.problem.pixels]
        if not exact[1]:
            conditions.append(n < self.problem.features)
        inside: Any = conditions[0] if conditions else None
        if len(conditions) == 2:
            inside = T.And(*conditions)
        with when(inside):
            self.output.put(sums, start, self.group, m, n, lanes)

    def direct(self, tile: Any, sums: Any, exact: tuple[bool, bool]) -> None:
        for strip in range(tile.strips):
            for index, row, column in tile.strip_elements(self.thread, strip):
                self._put(sums, index, tile.strip_row(strip, row), column, 1, exact)

    def through_shared(
        self, tile: Any, sums: Any, strip_buffer: Any, stride: int, exact: tuple[bool, bool]
    ) -> None:
        """strip_buffer: float32, tile.strip_rows rows of `stride` elements, free when this begins."""
        lanes = self.output.lanes
        across = tile.block_n // lanes
        units = tile.strip_rows * across
        values = local(lanes)
        with unrolled(self.target, tile.strips) as strip:
            _write_strip(tile, sums, strip, self.thread, strip_buffer, stride)
            barrier()
            for first in range(0, units, tile.threads):
                unit = self.thread + first
                row, column = store_position(unit, tile.strip_rows, across, lanes, self.by_rows)
                with when(unit < units if first + tile.threads > units else None):
                    for part in range(0, lanes, 4):
                        width = min(4, lanes)
                        start = row * stride + column + part
                        store(values, part, vector(strip_buffer, start, width), width)
                    self._put(values, 0, tile.strip_row(strip, row), column, lanes, exact)
            barrier()

    @property
    def by_rows(self) -> bool:
        """Neighbouring threads store neighbouring channels; else, where channels lie apart, pixels."""
        return isinstance(self.output, PartialOutput) or self.problem.y.strides[5] == 1


def _write_strip(tile: Any, sums: Any, strip: Any, thread: Any, buffer: Any, stride: int) -> None:
    """A thread's accumulators to the strip in shared memory, those of an opaque layout by the unit itself."""
    if not (isinstance(tile, MatrixTile) and tile.unit.opaque):
        for index, row, column in tile.strip_elements(thread, strip):
            T.buffer_store(buffer, sums[index], [row * stride + column])
        return
    for index, row, column in tile.strip_fragments(thread, strip):
        places = T.address_of(buffer[row * stride + column]), T.address_of(sums[index])
        T.evaluate(T.call_extern("int32", f"{tile.unit.helper}_store", *places, stride))


def operands_of(problem: ConvProblem, buffers: Sequence[Any], workspace: bool) -> tuple[Any, ...]:
    """(x, weight, bias or None, others, workspace or None, y) of a kernel's buffers in the call's order."""
    rest = list(buffers[2:])
    bias = rest.pop(0) if problem.bias else None
    others = tuple(rest[: len(problem.others)])
    partials = rest[len(problem.others)] if workspace else None
    return buffers[0], buffers[1], bias, others, partials, buffers[-1]
