"""Functions that kernels call by one name on all devices, defined for each language that is compiled here.

Atomic addition, copies from global to shared memory without registers, ldmatrix and the matrix units, wmma's
loads and stores. Only those that a source calls are put in front of it.
"""

from __future__ import annotations

import re

from convopt.targets.matrix_units import WMMA_BF16, WMMA_F16, MatrixUnit

_DEVICE = "static __device__ __forceinline__ "


def cuda_helpers(source: str) -> str:
    """The definitions of what CUDA source calls."""
    return "".join(text for name, text in _CUDA.items() if re.search(rf"\b{name}\(", source))


def _cuda_copy(size: int) -> str:
    # .cg keeps 16 bytes out of L1, where they would be read once; smaller copies exist with .ca only.
    level = "cg" if size == 16 else "ca"
    return (
        f"{_DEVICE}int convopt_copy_{size}(void* to, const void* from, int count) {{\n"
        "  unsigned int at = static_cast<unsigned int>(__cvta_generic_to_shared(to));\n"
        f'  asm volatile("cp.async.{level}.shared.global [%0], [%1], {size}, %2;"\n'
        '               :: "r"(at), "l"(__cvta_generic_to_global(from)), "r"(count) : "memory");\n'
        "  return 0;\n}\n"
    )


def _cuda_mma(dtype: str, kind: str) -> str:
    return (
        f"{_DEVICE}int convopt_mma_m16n8k16_{dtype}(float* c, const void* a, const void* b) {{\n"
        "  const unsigned int* x = static_cast<const unsigned int*>(a);\n"
        "  const unsigned int* y = static_cast<const unsigned int*>(b);\n"
        f'  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.{kind}.{kind}.f32 "\n'
        '               "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"\n'
        '               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])\n'
        '               : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(y[0]), "r"(y[1]));\n'
        "  return 0;\n}\n"
    )


_CUDA_MMA_TF32 = (
    f"{_DEVICE}int convopt_mma_m16n8k8_float32(float* c, const void* a, const void* b) {{\n"
    "  const float* x = static_cast<const float*>(a);\n"
    "  const float* y = static_cast<const float*>(b);\n"
    "  unsigned int r[6];\n"  # to nearest: the unit by itself would cut bits off
    "  #pragma unroll\n"
    '  for (int i = 0; i < 4; ++i) asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(r[i]) : "f"(x[i]));\n'
    "  #pragma unroll\n"
    '  for (int i = 0; i < 2; ++i) asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(r[4 + i]) : "f"(y[i]));\n'
    '  asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "\n'
    '               "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"\n'
    '               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])\n'
    '               : "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3]), "r"(r[4]), "r"(r[5]));\n'
    "  return 0;\n}\n"
)


def _registers(first: int, count: int) -> str:
    return "{" + ", ".join(f"%{i}" for i in range(first, first + count)) + "}"


def _operands(constraint: str, name: str, count: int) -> str:
    return ", ".join(f'"{constraint}"({name}[{i}])' for i in range(count))


def _wmma(unit: MatrixUnit, kind: str) -> dict[str, str]:
    """Loads from shared memory, the product and the store to shared memory, all by the whole wave.

    Rows lie `stride` elements apart. B lies row by row along the reduction, which wmma calls columns.
    """
    words, sums = unit.a.registers // 2, unit.c.registers
    found = {}
    for operand, layout in (("a", "row"), ("b", "col")):
        name = f"{unit.helper}_load_{operand}"
        found[name] = (
            f"{_DEVICE}int {name}(void* to, const void* from, int stride) {{\n"
            "  unsigned int at = static_cast<unsigned int>(__cvta_generic_to_shared(from));\n"
            "  unsigned int* r = static_cast<unsigned int*>(to);\n"
            f'  asm volatile("wmma.load.{operand}.sync.aligned.{layout}.m16n16k16.shared.{kind} "\n'
            f'               "{_registers(0, words)}, [%{words}], %{words + 1};"\n'
            f"               : {_operands('=r', 'r', words)}\n"
            '               : "r"(at), "r"(stride) : "memory");\n'
            "  return 0;\n}\n"
        )
    name = f"{unit.helper}_{unit.dtypes[0]}"
    types = "f32.f32" if kind == "f16" else f"f32.{kind}.{kind}.f32"
    c, a, b = (_registers(*part) for part in ((0, sums), (sums, words), (sums + words, words)))
    found[name] = (
        f"{_DEVICE}int {name}(float* c, const void* a, const void* b) {{\n"
        "  const unsigned int* x = static_cast<const unsigned int*>(a);\n"
        "  const unsigned int* y = static_cast<const unsigned int*>(b);\n"
        f'  asm volatile("wmma.mma.sync.aligned.row.col.m16n16k16.{types} "\n'
        f'               "{c}, {a}, {b}, {c};"\n'
        f"               : {_operands('+f', 'c', sums)}\n"
        f"               : {_operands('r', 'x', words)},\n"
        f"                 {_operands('r', 'y', words)});\n"
        "  return 0;\n}\n"
    )
    name = f"{unit.helper}_store"
    found[name] = (
        f"{_DEVICE}int {name}(float* to, const float* c, int stride) {{\n"
        "  unsigned int at = static_cast<unsigned int>(__cvta_generic_to_shared(to));\n"
        '  asm volatile("wmma.store.d.sync.aligned.row.m16n16k16.shared.f32 "\n'
        f'               "[%0], {_registers(1, sums)}, %{sums + 1};"\n'
        f'               :: "r"(at), {_operands("f", "c", sums)}, "r"(stride) : "memory");\n'
        "  return 0;\n}\n"
    )
    return found


_CUDA = {
    "atomic_add": f"{_DEVICE}float atomic_add(float* p, float v) {{ return atomicAdd(p, v); }}\n",
    **{f"convopt_copy_{size}": _cuda_copy(size) for size in (4, 8, 16)},
    "convopt_copy_commit": (
        f"{_DEVICE}int convopt_copy_commit() {{\n"
        '  asm volatile("cp.async.commit_group;" ::: "memory");\n  return 0;\n}\n'
    ),
    **{
        f"convopt_copy_wait_{n}": (
            f"{_DEVICE}int convopt_copy_wait_{n}() {{\n"
            f'  asm volatile("cp.async.wait_group {n};" ::: "memory");\n  return 0;\n}}\n'
        )
        for n in range(8)
    },
    "convopt_ldmatrix_x4": (
        f"{_DEVICE}int convopt_ldmatrix_x4(void* out, const void* row) {{\n"
        "  unsigned int at = static_cast<unsigned int>(__cvta_generic_to_shared(row));\n"
        "  unsigned int* r = static_cast<unsigned int*>(out);\n"
        '  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"\n'
        '               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at) : "memory");\n'
        "  return 0;\n}\n"
    ),
    "convopt_mma_m16n8k16_float16": _cuda_mma("float16", "f16"),
    "convopt_mma_m16n8k16_bfloat16": _cuda_mma("bfloat16", "bf16"),
    "convopt_mma_m16n8k8_float32": _CUDA_MMA_TF32,
    **_wmma(WMMA_F16, "f16"),
    **_wmma(WMMA_BF16, "bf16"),
}
