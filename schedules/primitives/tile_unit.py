"""The matrix unit's few words: AMX's instructions, or the same by plain loops where there is no AMX.

Tiles 0 to 3 hold float32 sums (16 rows of 16), 4 and 5 inputs (rows of `chunk` bfloat16), 6 and 7 weights
(chunk/2 rows of 16 pairs). Needs tvm.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import tvm
from tvm.tirx.script.builder import ir as T

from convopt.schedules.primitives.emit import hold, lanes_at, splat, widened

SUMS, INPUTS, WEIGHTS = 0, 4, 6  # the first tile of each kind
ROWS, COLUMNS = 16, 16
PALETTE = 1


class TileUnit(Protocol):
    """Strides and indices in elements of the buffer."""

    def start(self, rows: int, chunk: int) -> None:
        """Configures this thread's tiles; `rows` of sums and inputs."""

    def zero(self, tile: int) -> None: ...

    def load(self, tile: int, buffer: Any, index: Any, stride: Any) -> None: ...

    def store(self, tile: int, buffer: Any, index: Any, stride: int) -> None: ...

    def multiply(self, sums: int, inputs: int, weights: int) -> None:
        """sums += inputs @ weights."""

    def finish(self) -> None:
        """Gives the tiles back, so that the system needn't save them."""


def _instruction(name: str, *arguments: Any) -> None:
    number = tvm.target.codegen.llvm_lookup_intrinsic_id(f"llvm.x86.{name}")
    T.evaluate(T.call_llvm_intrin("void", number, *arguments))


def configuration(rows: int, chunk: int) -> bytes:
    """What LDTILECFG reads (Intel SDM volume 2): palette, bytes of a row and rows for each tile."""
    row_bytes = [64] * 4 + [2 * chunk] * 2 + [64] * 2
    tile_rows = [rows] * 6 + [chunk // 2] * 2
    head = bytes([PALETTE]) + bytes(15)
    columns = b"".join(n.to_bytes(2, "little") for n in row_bytes)
    return (head + columns.ljust(32, b"\0") + bytes(tile_rows)).ljust(64, b"\0")


class AmxUnit:
    """AMX by LLVM's intrinsics with fixed tile numbers."""

    def start(self, rows: int, chunk: int) -> None:
        words = T.alloc_buffer((8,), "int64", scope="global", layout=None)
        data = configuration(rows, chunk)
        for i in range(8):
            value = int.from_bytes(data[8 * i : 8 * i + 8], "little", signed=True)
            T.buffer_store(words, T.int64(value), [i])
        _instruction("ldtilecfg", T.address_of(words[0]))

    def zero(self, tile: int) -> None:
        _instruction("tilezero", T.int8(tile))

    def load(self, tile: int, buffer: Any, index: Any, stride: Any) -> None:
        step = T.Cast("int64", stride) * T.int64(_item_bytes(buffer))
        _instruction("tileloadd64", T.int8(tile), T.address_of(buffer[index]), step)

    def store(self, tile: int, buffer: Any, index: Any, stride: int) -> None:
        step = T.int64(stride * _item_bytes(buffer))
        _instruction("tilestored64", T.int8(tile), T.address_of(buffer[index]), step)

    def multiply(self, sums: int, inputs: int, weights: int) -> None:
        _instruction("tdpbf16ps", T.int8(sums), T.int8(inputs), T.int8(weights))

    def finish(self) -> None:
        _instruction("tilerelease")


def _item_bytes(buffer: Any) -> int:
    return int(tvm.DataType(str(buffer.dtype)).bits) // 8


@dataclass
class EmulatedUnit:
    """The same by plain loops, element by element as the manual's pseudocode has it.

    memory: float32, four tiles of sums from `base` on. Inputs and weights are read from where they were
    loaded when they are multiplied.
    """

    memory: Any
    base: int
    lanes: int
    shape: tuple[int, int] = (0, 0)
    loaded: dict[int, tuple[Any, Any, Any]] = field(default_factory=dict)

    def start(self, rows: int, chunk: int) -> None:
        self.shape = (rows, chunk)

    def _at(self, tile: int, row: Any, vector: int) -> Any:
        return lanes_at(self.base + (tile * ROWS + row) * COLUMNS + vector * self.lanes, self.lanes)

    def _vectors(self) -> range:
        return range(COLUMNS // self.lanes)

    def zero(self, tile: int) -> None:
        with T.serial(0, self.shape[0]) as row:
            for v in self._vectors():
                T.buffer_store(self.memory, splat(T.float32(0), self.lanes), [self._at(tile, row, v)])

    def load(self, tile: int, buffer: Any, index: Any, stride: Any) -> None:
        if tile >= INPUTS:
            self.loaded[tile] = (buffer, index, stride)
            return
        with T.serial(0, self.shape[0]) as row:
            for v in self._vectors():
                value = buffer[lanes_at(index + row * stride + v * self.lanes, self.lanes)]
                T.buffer_store(self.memory, value, [self._at(tile, row, v)])

    def store(self, tile: int, buffer: Any, index: Any, stride: int) -> None:
        with T.serial(0, self.shape[0]) as row:
            for v in self._vectors():
                at = lanes_at(index + row * stride + v * self.lanes, self.lanes)
                T.buffer_store(buffer, self.memory[self._at(tile, row, v)], [at])

    def multiply(self, sums: int, inputs: int, weights: int) -> None:
        rows, chunk = self.shape
        (a, a_at, a_step), (b, b_at, b_step) = self.loaded[inputs], self.loaded[weights]
        with T.serial(0, rows) as m, T.serial(0, chunk // 2) as pair:
            for v in self._vectors():
                total = self.memory[self._at(sums, m, v)]
                for half in range(2):
                    left = widened(splat(a[a_at + m * a_step + 2 * pair + half], self.lanes))
                    at = b_at + pair * b_step + 2 * self.lanes * v + half
                    right = widened(b[lanes_at(at, self.lanes, 2)])
                    total = hold(total + left * right, self.lanes)
                T.buffer_store(self.memory, total, [self._at(sums, m, v)])

    def finish(self) -> None:
        self.loaded.clear()
