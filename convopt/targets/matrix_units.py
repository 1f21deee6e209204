"""Matrix units: shapes, types and which lane holds which element, as values.

Sources: NVIDIA's PTX ISA (mma, wmma), AMD's matrix instruction calculator and the CDNA and RDNA3
instruction set guides (MFMA, WMMA), public DTK test code and HYGON's kernels (MMAC: the accumulator is
transposed and strided against MFMA). A kernel reads and writes fragments by these tables only; of a unit that
keeps its layout to itself, by the unit's own loads and stores.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from convopt.errors import InputError


@dataclass(frozen=True)
class Term:
    """source // divide % modulo * multiply; modulo 0 leaves it whole. source: "lane" or "register"."""

    source: str
    divide: int
    modulo: int
    multiply: int

    def value(self, lane: Any, register: Any) -> Any:
        x = lane if self.source == "lane" else register
        if self.divide != 1:
            x = x // self.divide
        if self.modulo:
            x = x % self.modulo
        return x * self.multiply


def lane(divide: int, modulo: int, multiply: int) -> Term:
    return Term("lane", divide, modulo, multiply)


def register(divide: int, modulo: int, multiply: int) -> Term:
    return Term("register", divide, modulo, multiply)


@dataclass(frozen=True)
class Layout:
    """Where a lane's register lies in a fragment: two sums of terms. `registers`: elements of a lane.

    Without terms it is opaque: only the unit knows where they lie.
    """

    registers: int
    row: tuple[Term, ...] = ()
    column: tuple[Term, ...] = ()

    @property
    def opaque(self) -> bool:
        return not self.row

    @cached_property
    def run(self) -> int:
        """Registers from an aligned one on that are neighbours along the reduction."""
        run = 1
        while run < self.registers:
            wider = 2 * run
            for first in range(0, self.registers, wider):
                row, column = self.at(0, first)
                if any(self.at(0, first + i) != (row, column + i) for i in range(wider)):
                    return run
            run = wider
        return run

    def at(self, lane: Any, register: Any) -> tuple[Any, Any]:
        """(row, column), for numbers and for TIR."""
        if self.opaque:
            raise ValueError("an opaque layout has no places")
        row, column = (
            sum((t.value(lane, register) for t in terms[1:]), start=terms[0].value(lane, register))
            for terms in (self.row, self.column)
        )
        return row, column


@dataclass(frozen=True)
class MatrixUnit:
    """D[m, n] = A[m, k] @ B[n, k].T + C, f32 accumulators, by `lanes` lanes together.

    a, b: (row or column of the output, position in the reduction); c: (row, column). instruction: what a
    compiler's assembly must show. llvm: the intrinsic per input type, where LLVM has one. ldmatrix: fragments
    are read from shared memory by ldmatrix, whose layout is the unit's. replicas: lanes that hold the same
    element of A and B. arithmetic: "tf32" where A and B are rounded to it first, float32 with 10 bits behind
    the point: what does not ask for it does not get the unit.
    """

    name: str
    m: int
    n: int
    k: int
    lanes: int
    a: Layout
    b: Layout
    c: Layout
    dtypes: tuple[str, ...]
    instruction: str
    llvm: tuple[tuple[str, str], ...] = ()
    ldmatrix: bool = False
    replicas: int = 1
    arithmetic: Literal["exact", "tf32"] = "exact"

    def __hash__(self) -> int:
        """Of the name: tiles with their units are keys of caches, and tables are long."""
        return hash(self.name)

    def __post_init__(self) -> None:
        if self.opaque:
            return
        for layout, rows, columns in ((self.a, self.m, self.k), (self.b, self.n, self.k)):
            self._cover(layout, rows, columns, self.replicas)
        self._cover(self.c, self.m, self.n, 1)

    def _cover(self, layout: Layout, rows: int, columns: int, replicas: int) -> None:
        """Raises ValueError unless every element is held exactly `replicas` times."""
        held = [layout.at(lane, r) for lane in range(self.lanes) for r in range(layout.registers)]
        wanted = {(i, j) for i in range(rows) for j in range(columns)}
        if set(held) != wanted or len(held) != replicas * len(wanted):
            raise ValueError(f"{self.name}: {layout} does not hold a {rows}x{columns} fragment")

    @property
    def opaque(self) -> bool:
        """Whether fragments are loaded, multiplied and stored by the unit's own operations alone."""
        return self.c.opaque

    def takes(self, dtype: str, arithmetic: str) -> bool:
        """Whether it multiplies elements of the type; arithmetic: what a `ConvProblem` allows."""
        return dtype in self.dtypes and self.arithmetic in ("exact", arithmetic)

    @property
    def itemsize(self) -> int:
        """Bytes of an element of A and B."""
        return 4 if "float32" in self.dtypes else 2

    @property
    def helper(self) -> str:
        """The function that kernels call; the prelude of each target defines it, plus the input type."""
        return "convopt_" + self.name.replace(".", "_")


_FLOATS = ("float16", "bfloat16")
_ROW_OF_16 = (lane(1, 16, 1),)
_FOUR_ALONG_K = (lane(16, 0, 4), register(1, 0, 1))
MFMA_16 = MatrixUnit(
    "mfma.16x16x16", 16, 16, 16, 64,
    a=Layout(4, _ROW_OF_16, _FOUR_ALONG_K),
    b=Layout(4, _ROW_OF_16, _FOUR_ALONG_K),
    c=Layout(4, (lane(16, 0, 4), register(1, 0, 1)), (lane(1, 16, 1),)),
    dtypes=_FLOATS, instruction="v_mfma_f32_16x16x16",
    llvm=(
        ("float16", "llvm.amdgcn.mfma.f32.16x16x16f16"),
        ("bfloat16", "llvm.amdgcn.mfma.f32.16x16x16bf16.1k"),
    ),
)  # fmt: skip
MFMA_32 = MatrixUnit(
    "mfma.32x32x8", 32, 32, 8, 64,
    a=Layout(4, (lane(1, 32, 1),), (lane(32, 0, 4), register(1, 0, 1))),
    b=Layout(4, (lane(1, 32, 1),), (lane(32, 0, 4), register(1, 0, 1))),
    c=Layout(16, (register(4, 0, 8), lane(32, 0, 4), register(1, 4, 1)), (lane(1, 32, 1),)),
    dtypes=_FLOATS, instruction="v_mfma_f32_32x32x8",
    llvm=(
        ("float16", "llvm.amdgcn.mfma.f32.32x32x8f16"),
        ("bfloat16", "llvm.amdgcn.mfma.f32.32x32x8bf16.1k"),
    ),
)  # fmt: skip
# One element of a lane each: products and sums are float32's own.
_ONE_ALONG_K_OF_16 = Layout(1, _ROW_OF_16, (lane(16, 0, 1),))
MFMA_16_F32 = MatrixUnit(
    "mfma.16x16x4", 16, 16, 4, 64,
    a=_ONE_ALONG_K_OF_16, b=_ONE_ALONG_K_OF_16, c=MFMA_16.c,
    dtypes=("float32",), instruction="v_mfma_f32_16x16x4",
    llvm=(("float32", "llvm.amdgcn.mfma.f32.16x16x4f32"),),
)  # fmt: skip
_ONE_ALONG_K_OF_32 = Layout(1, (lane(1, 32, 1),), (lane(32, 0, 1),))
MFMA_32_F32 = MatrixUnit(
    "mfma.32x32x2", 32, 32, 2, 64,
    a=_ONE_ALONG_K_OF_32, b=_ONE_ALONG_K_OF_32, c=MFMA_32.c,
    dtypes=("float32",), instruction="v_mfma_f32_32x32x2",
    llvm=(("float32", "llvm.amdgcn.mfma.f32.32x32x2f32"),),
)  # fmt: skip
MMAC_16 = MatrixUnit(
    "mmac.16x16x16", 16, 16, 16, 64,
    a=Layout(4, _ROW_OF_16, _FOUR_ALONG_K),
    b=Layout(4, _ROW_OF_16, _FOUR_ALONG_K),
    c=Layout(4, (lane(1, 16, 1),), (lane(16, 0, 1), register(1, 0, 4))),
    dtypes=_FLOATS, instruction="v_mmac_f32_16x16x16",
)  # fmt: skip
# gfx928 and 936. HYGON's cute traits have a lane's two elements next to each other; which positions of the
# reduction they are is nothing to the result, as long as A and B agree.
_TWO_ALONG_K = Layout(2, _ROW_OF_16, (lane(16, 0, 2), register(1, 0, 1)))
MMAC_16_F32 = MatrixUnit(
    "mmac.16x16x8", 16, 16, 8, 64,
    a=_TWO_ALONG_K, b=_TWO_ALONG_K, c=MMAC_16.c,
    dtypes=("float32",), instruction="v_mmac_16x16x8_f32",
)  # fmt: skip
WMMA_GFX11 = MatrixUnit(
    "wmma.gfx11", 16, 16, 16, 32,
    a=Layout(16, _ROW_OF_16, (register(1, 0, 1),)),
    b=Layout(16, _ROW_OF_16, (register(1, 0, 1),)),
    c=Layout(8, (register(1, 0, 2), lane(16, 0, 1)), (lane(1, 16, 1),)),
    dtypes=_FLOATS, instruction="v_wmma_f32_16x16x16",
    llvm=(
        ("float16", "llvm.amdgcn.wmma.f32.16x16x16.f16.v8f32.v16f16"),
        ("bfloat16", "llvm.amdgcn.wmma.f32.16x16x16.bf16.v8f32.v16i16"),
    ),
    replicas=2,
)  # fmt: skip
_MMA_A = Layout(
    8,
    (lane(4, 0, 1), register(2, 2, 8)),
    (lane(1, 4, 2), register(1, 2, 1), register(4, 0, 8)),
)
_MMA_C = Layout(4, (lane(4, 0, 1), register(2, 0, 8)), (lane(1, 4, 2), register(1, 2, 1)))
MMA_M16N8K16 = MatrixUnit(
    "mma.m16n8k16", 16, 8, 16, 32,
    a=_MMA_A,
    b=Layout(4, (lane(4, 0, 1),), (lane(1, 4, 2), register(1, 2, 1), register(2, 0, 8))),
    c=_MMA_C, dtypes=_FLOATS, instruction="HMMA.16816", ldmatrix=True,
)  # fmt: skip
MMA_M16N8K8 = MatrixUnit(
    "mma.m16n8k8", 16, 8, 8, 32,
    a=Layout(4, (lane(4, 0, 1), register(1, 2, 8)), (lane(1, 4, 1), register(2, 0, 4))),
    b=Layout(2, (lane(4, 0, 1),), (lane(1, 4, 1), register(1, 0, 4))),
    c=_MMA_C, dtypes=("float32",), instruction="HMMA.1688.F32.TF32", ldmatrix=True, arithmetic="tf32",
)  # fmt: skip
# PTX's wmma.m16n16k16: eight registers of two halves for A and B, four of two bfloat16s, eight sums. Which
# elements they are is not said, and differs from chip to chip.
WMMA_F16 = MatrixUnit(
    "wmma.m16n16k16.f16", 16, 16, 16, 32, Layout(16), Layout(16), Layout(8), ("float16",), "HMMA"
)
WMMA_BF16 = MatrixUnit(
    "wmma.m16n16k16.bf16", 16, 16, 16, 32, Layout(8), Layout(8), Layout(8), ("bfloat16",), "HMMA"
)

_ALL = (
    MMA_M16N8K16, MMA_M16N8K8, WMMA_F16, WMMA_BF16, MFMA_16, MFMA_32, MFMA_16_F32, MFMA_32_F32, MMAC_16,
    MMAC_16_F32, WMMA_GFX11,
)  # fmt: skip
MATRIX_UNITS = {unit.name: unit for unit in _ALL}


def use_layout(path: str | os.PathLike[str]) -> str:
    """Takes a unit's layout of C from a file that `convopt selftest` wrote; the unit's name.

    InputError: there is no such file, or it is another one.
    """
    try:
        document = json.loads(Path(path).read_text())
        row, column = (tuple(Term(**term) for term in document["c"][axis]) for axis in ("row", "column"))
        unit = MATRIX_UNITS[document["unit"]]
        MATRIX_UNITS[unit.name] = replace(unit, c=Layout(document["c"]["registers"], row, column))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path}: no layout that convopt selftest wrote ({error})") from error
    return unit.name


# Compilers' processes are given it in this way, and so are all commands.
if os.environ.get("CONVOPT_LAYOUT_FROM"):
    use_layout(os.environ["CONVOPT_LAYOUT_FROM"])
