"""Matrix units in OpenCL C, lane by lane: what a unit's instruction does with the registers of a wave.

Written from the instruction sets' own descriptions, not from `convopt.targets.matrix_units`: a kernel that
reads or writes fragments by a wrong table computes something else here. Lanes exchange their registers
through local memory.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Emulated:
    """C expressions of `lane` and `r` for each operand's row and column; B's row is the output's column."""

    helper: str
    m: int
    n: int
    k: int
    lanes: int
    registers: tuple[int, int, int]  # of a lane: A, B, C
    a: tuple[str, str]
    b: tuple[str, str]
    c: tuple[str, str]
    dtypes: tuple[str, ...] = ("float16", "bfloat16")
    tf32: bool = False  # A and B are rounded to it, halves away from zero
    opaque: bool = False  # loads and stores of fragments are the unit's, by a layout that no kernel knows


EMULATED = {
    # AMD matrix instruction calculator: A[i][k], i = lane % 16, k = 4 * (lane / 16) + register; B likewise;
    # D[i][j], i = 4 * (lane / 16) + register, j = lane % 16.
    "mfma.16x16x16": Emulated(
        "convopt_mfma_16x16x16", 16, 16, 16, 64, (4, 4, 4),
        ("lane % 16", "4 * (lane / 16) + r"), ("lane % 16", "4 * (lane / 16) + r"),
        ("4 * (lane / 16) + r", "lane % 16"),
    ),
    "mfma.32x32x8": Emulated(
        "convopt_mfma_32x32x8", 32, 32, 8, 64, (4, 4, 16),
        ("lane % 32", "4 * (lane / 32) + r"), ("lane % 32", "4 * (lane / 32) + r"),
        ("8 * (r / 4) + 4 * (lane / 32) + r % 4", "lane % 32"),
    ),
    # Public DTK test code of __builtin_hcu_mmac_f32_16x16x16_f16.
    "mmac.16x16x16": Emulated(
        "convopt_mmac_16x16x16", 16, 16, 16, 64, (4, 4, 4),
        ("lane % 16", "4 * (lane / 16) + r"), ("lane % 16", "4 * (lane / 16) + r"),
        ("lane % 16", "lane / 16 + 4 * r"),
    ),
    # AMD matrix instruction calculator: A[i][k], i = lane % 16, k = lane / 16; D as of 16x16x16.
    "mfma.16x16x4": Emulated(
        "convopt_mfma_16x16x4", 16, 16, 4, 64, (1, 1, 4),
        ("lane % 16", "lane / 16"), ("lane % 16", "lane / 16"), ("4 * (lane / 16) + r", "lane % 16"),
        ("float32",),
    ),
    "mfma.32x32x2": Emulated(
        "convopt_mfma_32x32x2", 32, 32, 2, 64, (1, 1, 16),
        ("lane % 32", "lane / 32"), ("lane % 32", "lane / 32"),
        ("8 * (r / 4) + 4 * (lane / 32) + r % 4", "lane % 32"), ("float32",),
    ),
    # Public DTK test code of __builtin_hcu_mmac_16x16x8_f32: k = lane / 16 and 4 beyond.
    "mmac.16x16x8": Emulated(
        "convopt_mmac_16x16x8", 16, 16, 8, 64, (2, 2, 4),
        ("lane % 16", "lane / 16 + 4 * r"), ("lane % 16", "lane / 16 + 4 * r"),
        ("lane % 16", "lane / 16 + 4 * r"), ("float32",),
    ),
    # RDNA3 instruction set guide: 16 halves per lane, lanes 16 to 31 repeat 0 to 15.
    "wmma.gfx11": Emulated(
        "convopt_wmma_gfx11", 16, 16, 16, 32, (16, 16, 8),
        ("lane % 16", "r"), ("lane % 16", "r"), ("2 * r + lane / 16", "lane % 16"),
    ),
    # PTX ISA, "Matrix fragments for mma.m16n8k16 with floating point type".
    "mma.m16n8k16": Emulated(
        "convopt_mma_m16n8k16", 16, 8, 16, 32, (8, 4, 4),
        (
            "((r < 2 || (4 <= r && r < 6)) ? lane / 4 : lane / 4 + 8)",
            "(lane % 4 * 2 + (r & 1) + (r >= 4 ? 8 : 0))",
        ),
        ("lane / 4", "(lane % 4 * 2 + (r & 1) + (r >= 2 ? 8 : 0))"),
        ("(r < 2 ? lane / 4 : lane / 4 + 8)", "(lane % 4 * 2 + (r & 1))"),
    ),
    # PTX ISA, "Matrix fragments for mma.m16n8k8", .tf32.
    "mma.m16n8k8": Emulated(
        "convopt_mma_m16n8k8", 16, 8, 8, 32, (4, 2, 4),
        ("(r == 0 || r == 2 ? lane / 4 : lane / 4 + 8)", "(r < 2 ? lane % 4 : lane % 4 + 4)"),
        ("lane / 4", "(r == 0 ? lane % 4 : lane % 4 + 4)"),
        ("(r < 2 ? lane / 4 : lane / 4 + 8)", "(lane % 4 * 2 + (r & 1))"), ("float32",), tf32=True,
    ),
    # PTX ISA, wmma.m16n16k16: the number of registers is all that is said. The layouts here are made up.
    "wmma.m16n16k16.f16": Emulated(
        "convopt_wmma_m16n16k16_f16", 16, 16, 16, 32, (16, 16, 8),
        ("(5 * lane + 3) % 16", "(r + lane) % 16"), ("(3 * lane + r) % 16", "(r ^ 5)"),
        ("(2 * r + lane / 16) ^ 9", "(7 * lane + r) % 16"), ("float16",), opaque=True,
    ),
    "wmma.m16n16k16.bf16": Emulated(
        "convopt_wmma_m16n16k16_bf16", 16, 16, 16, 32, (8, 8, 8),
        ("(lane % 16) ^ 6", "(2 * r + lane / 16)"), ("(9 * lane + r) % 16", "(r + 8 * (lane / 16)) ^ 3"),
        ("(2 * r + 1 - lane / 16)", "(3 * lane + r) % 16"), ("bfloat16",), opaque=True,
    ),
}  # fmt: skip

_TO_FLOAT = {
    "float16": ("half", "(float)({})"), "bfloat16": ("ushort", "as_float((uint)({}) << 16)"),
    "float32": ("float", "({})"),
}  # fmt: skip
LID = "(get_local_id(0))"


def emulation(unit: Emulated, dtype: str) -> str:
    """The helper's definition; kernels that call it need `with_scratch`."""
    kind, to_float = _TO_FLOAT[dtype]
    if unit.tf32:
        to_float = "as_float((as_uint({}) + 0x1000u) & 0xffffe000u)"
    ra, rb, rc = unit.registers
    name = f"{unit.helper}_{dtype}"
    lines = [
        f"static int emulated_{name}(",
        f"    float *c, const {kind} *a, const {kind} *b, __local float *s, int lane) {{",
        f"  __local float *t = s + {unit.m * unit.k};",
        f"  for (int r = 0; r < {ra}; ++r)",
        f"    s[({unit.a[0]}) * {unit.k} + {unit.a[1]}] = {to_float.format('a[r]')};",
        f"  for (int r = 0; r < {rb}; ++r)",
        f"    t[({unit.b[0]}) * {unit.k} + {unit.b[1]}] = {to_float.format('b[r]')};",
        "  barrier(CLK_LOCAL_MEM_FENCE);",
        f"  for (int r = 0; r < {rc}; ++r) {{",
        f"    float sum = c[r]; const int row = {unit.c[0]}, column = {unit.c[1]};",
        f"    for (int k = 0; k < {unit.k}; ++k) sum += s[row * {unit.k} + k] * t[column * {unit.k} + k];",
        "    c[r] = sum;",
        "  }",
        "  barrier(CLK_LOCAL_MEM_FENCE);",
        "  return 0;",
        "}",
        f"#define {name}(c, a, b) emulated_{name}(c, a, b, "
        f"scratch + {LID} / {unit.lanes} * {SCRATCH}, {LID} % {unit.lanes})",
    ]
    return "\n".join(lines) + "\n"


SCRATCH = 512  # floats of a wave


def fragment_moves(unit: Emulated, dtype: str) -> str:
    """An opaque unit's loads from and stores to shared memory: every lane finds its elements for itself."""
    kind, _ = _TO_FLOAT[dtype]
    lines = []
    for operand, (row, column), registers in zip("ab", (unit.a, unit.b), unit.registers, strict=False):
        name = f"{unit.helper}_load_{operand}"
        lines += [
            f"static int emulated_{name}({kind} *out, __local const {kind} *from, int stride, int lane) {{",
            f"  for (int r = 0; r < {registers}; ++r) out[r] = from[({row}) * stride + {column}];",
            "  return 0;",
            "}",
            f"#define {name}(out, from, stride) emulated_{name}(out, from, stride, {LID} % {unit.lanes})",
        ]
    (row, column), name = unit.c, f"{unit.helper}_store"
    lines += [
        f"static int emulated_{name}(__local float *to, const float *c, int stride, int lane) {{",
        f"  for (int r = 0; r < {unit.registers[2]}; ++r) to[({row}) * stride + {column}] = c[r];",
        "  return 0;",
        "}",
        f"#define {name}(to, c, stride) emulated_{name}(to, c, stride, {LID} % {unit.lanes})",
    ]
    return "\n".join(lines) + "\n"


def ldmatrix(dtype: str) -> str:
    """ldmatrix.x4: lane 8j + i has the address of row i of matrix j; a lane gets 32 bits of row lane / 4 of
    each.
    """
    kind, _ = _TO_FLOAT[dtype]
    word = 1 if dtype == "float32" else 2
    return f"""
static int emulated_ldmatrix({kind} *out, __local const {kind} *row, __local ulong *s, int lane) {{
  s[lane] = (ulong)row;
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int j = 0; j < 4; ++j)
    for (int i = 0; i < {word}; ++i)
      out[{word} * j + i] = ((__local const {kind} *)s[8 * j + lane / 4])[lane % 4 * {word} + i];
  barrier(CLK_LOCAL_MEM_FENCE);
  return 0;
}}
#define convopt_ldmatrix_x4(out, row) \\
  emulated_ldmatrix(out, row, (__local ulong *)(scratch + {LID} / 32 * {SCRATCH}), {LID} % 32)
"""


def copies() -> str:
    """Copies from global to shared memory: done at once, so that waiting has nothing to do."""
    lines = ["typedef uint __attribute__((may_alias)) word;"]
    for n in (4, 8, 16):
        lines.append(
            f"static int convopt_copy_{n}(__local void *to, const __global void *from, int count) {{"
            f" for (int i = 0; i < {n // 4}; ++i)"
            " ((__local word *)to)[i] = 4 * i < count ? ((const __global word *)from)[i] : 0;"
            " return 0; }"
        )
    for name in ("commit", "wait_0", "wait_1", "wait_2", "wait_3"):
        lines.append(f"static int convopt_copy_{name}(void) {{ return 0; }}")
    return "\n".join(lines) + "\n"


def with_scratch(source: str, waves: int) -> str:
    """Local memory for the emulation, at the start of every kernel's body."""
    declaration = f"\n  __local float scratch[{SCRATCH * waves}] __attribute__((aligned(8)));"
    return re.sub(r"(__kernel void[^{};]*\{)", lambda found: found.group(1) + declaration, source)
