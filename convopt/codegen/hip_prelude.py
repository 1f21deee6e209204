"""What stands in front of the kernels of a `.hip` file: types, helpers and the layer of matrix functions.

Only what the kernels use is put there. A matrix function works on the registers of a lane: `c` gets the
product of `a` and `b` added. Which builtin computes it, the compiler decides when it compiles: MFMA and WMMA
on AMD, MMAC on DCU under the names that DTK's versions gave it, and where it has none of them, multiply-adds
on registers that the lanes exchange by the table of `convopt.targets.matrix_units`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from convopt.targets.matrix_units import MATRIX_UNITS, Layout, MatrixUnit, Term

_FUNCTION = "static __device__ __forceinline__ "
_SCALARS = {
    "f16": "_Float16", "u32": "unsigned int", "i16": "short", "u16": "unsigned short", "i8": "signed char",
    "u8": "unsigned char", "i64": "long long",
}  # fmt: skip


def _buffer_load(words: int) -> str:
    """Words from p on, zeros unless `inside`: the memory unit checks the range, and there is no branch.

    The resource's last word is that of raw buffers in AMD's composable_kernel, for gfx9 and gfx11. LLVM's
    intrinsic goes by its name, since not every compiler has a builtin for it.
    """
    kind, suffix = ("u32", "i32") if words == 1 else (f"u32x{words}", f"v{words}i32")
    name = f"convopt_raw_buffer_load_{words}"
    return f"""#ifdef __AMDGCN__
typedef int resource_{words} __attribute__((ext_vector_type(4)));
__device__ {kind} {name}(resource_{words}, int, int, int) __asm("llvm.amdgcn.raw.buffer.load.{suffix}");
#endif
{_FUNCTION}{kind} convopt_buffer_load_{4 * words}(const void* p, int bytes, int offset, bool inside) {{
#ifdef __AMDGCN__
  const unsigned long long at = reinterpret_cast<unsigned long long>(p);
#if defined(__GFX11__) || defined(__gfx1100__)
  const int format = 0x31004000;
#else
  const int format = 0x00020000;
#endif
  const resource_{words} memory = {{(int)at, (int)(at >> 32) & 0xffff, bytes, format}};
  return {name}(memory, inside ? offset : -2147483647 - 1, 0, 0);
#else
  return inside ? *reinterpret_cast<const {kind}*>(static_cast<const char*>(p) + offset) : {kind}{{}};
#endif
}}
"""


_BITS = {"f32": 32, "f16": 16, "i32": 32, "u32": 32, "i16": 16, "u16": 16, "i8": 8, "u8": 8, "i64": 64}
_HELPERS = {
    "f16_min": f"{_FUNCTION}f16 f16_min(f16 a, f16 b) {{ return a < b ? a : b; }}\n",
    "f16_max": f"{_FUNCTION}f16 f16_max(f16 a, f16 b) {{ return a > b ? a : b; }}\n",
    "int_min": f"{_FUNCTION}int int_min(int a, int b) {{ return a < b ? a : b; }}\n",
    "int_max": f"{_FUNCTION}int int_max(int a, int b) {{ return a > b ? a : b; }}\n",
    **{f"convopt_buffer_load_{4 * words}": _buffer_load(words) for words in (1, 2, 4)},
    "wave_size": f"{_FUNCTION}int wave_size() {{ return warpSize; }}\n",
    "atomic_add": f"{_FUNCTION}float atomic_add(float* p, float v) {{ return atomicAdd(p, v); }}\n",
}


@dataclass(frozen=True)
class Builtin:
    """A compiler's builtin for a unit and input type; `{a}`, `{b}` and `{c}` stand for the operands."""

    name: str
    call: str


def _plain(name: str, rest: str = "") -> Builtin:
    return Builtin(name, f"{name}({{a}}, {{b}}, {{c}}{rest})")


# Public DTK code: newer versions spell it hcu, 24 and 25 amdgcn; later chips have _lit_lts forms, whose two
# flags choose other layouts (0, 0: this one). Where both are known hcu comes first, as some versions of DTK
# declare the amdgcn names without an instruction behind them.
BUILTINS: dict[tuple[str, str], tuple[Builtin, ...]] = {
    ("mfma.16x16x16", "float16"): (_plain("__builtin_amdgcn_mfma_f32_16x16x16f16", ", 0, 0, 0"),),
    ("mfma.16x16x16", "bfloat16"): (_plain("__builtin_amdgcn_mfma_f32_16x16x16bf16_1k", ", 0, 0, 0"),),
    ("mfma.32x32x8", "float16"): (_plain("__builtin_amdgcn_mfma_f32_32x32x8f16", ", 0, 0, 0"),),
    ("mfma.32x32x8", "bfloat16"): (_plain("__builtin_amdgcn_mfma_f32_32x32x8bf16_1k", ", 0, 0, 0"),),
    ("mfma.16x16x4", "float32"): (_plain("__builtin_amdgcn_mfma_f32_16x16x4f32", ", 0, 0, 0"),),
    ("mfma.32x32x2", "float32"): (_plain("__builtin_amdgcn_mfma_f32_32x32x2f32", ", 0, 0, 0"),),
    ("mmac.16x16x8", "float32"): (
        _plain("__builtin_hcu_mmac_16x16x8_f32"),
        _plain("__builtin_hcu_mmac_16x16x8_f32_lit_lts", ", false, false"),
        _plain("__builtin_amdgcn_mmac_f32_16x16x8f32"),
    ),
    ("mmac.16x16x16", "float16"): (
        _plain("__builtin_hcu_mmac_f32_16x16x16_f16"),
        _plain("__builtin_hcu_mmac_f32_16x16x16_f16_lit_lts", ", false, false"),
        _plain("__builtin_amdgcn_mmac_f32_16x16x16f16"),
    ),
    ("mmac.16x16x16", "bfloat16"): (
        _plain("__builtin_hcu_mmac_f32_16x16x16_bf16"),
        _plain("__builtin_hcu_mmac_f32_16x16x16_bf16_lit_lts", ", false, false"),
        _plain("__builtin_amdgcn_mmac_f32_16x16x16bf16"),
    ),
    ("wmma.gfx11", "float16"): (_plain("__builtin_amdgcn_wmma_f32_16x16x16_f16_w32"),),
    ("wmma.gfx11", "bfloat16"): (_plain("__builtin_amdgcn_wmma_f32_16x16x16_bf16_w32"),),
}  # fmt: skip


def prelude(kernels: str) -> str:
    """What the text of `kernels` needs before it."""
    units = "".join(matrix_function(unit, dtype) for unit, dtype in _units_in(kernels))
    text = units + kernels
    parts = ["#include <hip/hip_runtime.h>\n"]
    parts += [f"typedef {kind} {name};\n" for name, kind in _SCALARS.items() if _has(name, text)]
    for name, lanes in sorted(set(re.findall(r"\b([fiu]\d+)x(\d+)\b", text))):
        scalar = {"f32": "float", "i32": "int"}.get(name, name)
        if name in _SCALARS and not _has(name, text):
            parts.append(f"typedef {_SCALARS[name]} {name};\n")
        align = min(16, _BITS[name] * int(lanes) // 8)  # what kernels promise of a pointer
        parts.append(
            f"typedef {scalar} {name}x{lanes} __attribute__((ext_vector_type({lanes}), aligned({align})));\n"
        )
    parts += [definition for name, definition in _HELPERS.items() if _has(name, text)]
    return "".join(parts) + units


def _has(name: str, text: str) -> bool:
    return re.search(rf"\b{name}\b", text) is not None


def _units_in(kernels: str) -> Iterator[tuple[MatrixUnit, str]]:
    for unit in MATRIX_UNITS.values():
        for dtype in unit.dtypes:
            if _has(f"{unit.helper}_{dtype}", kernels):
                yield unit, dtype


def matrix_function(unit: MatrixUnit, dtype: str) -> str:
    """`int HELPER_DTYPE(float* c, const void* a, const void* b)`, called by all lanes of a wave together."""
    accumulator = f"f32x{unit.c.registers}"
    nbytes = unit.itemsize * unit.a.registers
    a, b = (f"lane_bits<{nbytes}>{{{operand}}}" for operand in "ab")
    lines = [_LANE_BITS, f"// {unit.instruction}: {unit.m}x{unit.n}x{unit.k}, {dtype} in, float32 out"]
    lines.append(f"{_FUNCTION}int {unit.helper}_{dtype}(float* c, const void* a, const void* b) {{")
    keyword = "#if"
    for builtin in BUILTINS.get((unit.name, dtype), ()):
        call = builtin.call.format(a=a, b=b, c=f"*({accumulator}*)c")
        lines += [f"{keyword} __has_builtin({builtin.name})", f"  *({accumulator}*)c = {call};"]
        keyword = "#elif"
    lines += ["#else", *_by_multiply_adds(unit, dtype), "#endif", "  return 0;", "}"]
    return "\n".join(lines) + "\n"


_KINDS = {"float16": "f16", "bfloat16": "u16", "float32": "float"}
# Builtins of one name take half, short or bfloat vectors, depending on the compiler: the registers' bits
# become whatever the parameter is.
_LANE_BITS = """#ifndef CONVOPT_LANE_BITS
#define CONVOPT_LANE_BITS
template <int BYTES> struct lane_bits {
  const void* registers;
  template <class V> __device__ __forceinline__ operator V() const {
    static_assert(sizeof(V) == BYTES, "the builtin takes another number of registers");
    V value;
    __builtin_memcpy(&value, registers, BYTES);
    return value;
  }
};
#endif"""


def _by_multiply_adds(unit: MatrixUnit, dtype: str) -> list[str]:
    kind = _KINDS[dtype]
    lines = [f"  constexpr int lane_of[{unit.k}] = {{{_list(p[0] for p in _holders(unit, unit.a))}}};"]
    lines.append(
        f"  constexpr int register_of[{unit.k}] = {{{_list(p[1] for p in _holders(unit, unit.a))}}};"
    )
    if _holders(unit, unit.a) != _holders(unit, unit.b):
        raise ValueError(f"{unit.name}: A and B lie differently along the reduction")
    lines += [
        f"  const int lane = __lane_id() % {unit.lanes};",
        "  #pragma unroll",
        f"  for (int k = 0; k < {unit.k}; ++k) {{",
        f"    const float x = {_widened(kind, 'a')}, y = {_widened(kind, 'b')};",
        "    #pragma unroll",
        f"    for (int r = 0; r < {unit.c.registers}; ++r) {{",
        f"      const int row = {_sum(unit.c.row)}, column = {_sum(unit.c.column)};",
        f"      c[r] += __shfl(x, row + lane_of[k], {unit.lanes})"
        f" * __shfl(y, column + lane_of[k], {unit.lanes});",
        "    }",
        "  }",
    ]
    return lines


def _holders(unit: MatrixUnit, layout: Layout) -> list[tuple[int, int]]:
    """(lane of row 0, register) that holds each position along the reduction; row i lies i lanes further."""
    held = {}
    for lane in reversed(range(unit.lanes)):
        for register in range(layout.registers):
            held[layout.at(lane, register)] = (lane, register)
    rows = max(row for row, _ in held) + 1
    for (row, k), (lane, register) in held.items():
        if held[0, k] != (lane - row, register):
            raise ValueError(f"{unit.name}: rows 0 and {row} of {rows} lie differently at {k}")
    return [held[0, k] for k in range(unit.k)]


def _widened(kind: str, operand: str) -> str:
    value = f"((const {kind}*){operand})[register_of[k]]"
    return f"__builtin_bit_cast(float, (u32){value} << 16)" if kind == "u16" else f"(float){value}"


def _sum(terms: tuple[Term, ...]) -> str:
    texts = []
    for term in terms:
        text = "lane" if term.source == "lane" else "r"
        text += f" / {term.divide}" if term.divide != 1 else ""
        text += f" % {term.modulo}" if term.modulo else ""
        texts.append(text + (f" * {term.multiply}" if term.multiply != 1 else ""))
    return " + ".join(texts)


def _list(numbers: Iterator[int]) -> str:
    return ", ".join(map(str, numbers))
