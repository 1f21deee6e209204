"""Functions that kernels call by one name on all devices, defined for each language that is compiled here.

Atomic addition, copies from global to shared memory without registers, ldmatrix and the matrix units. Only
those that a source calls are put in front of it.
"""

from __future__ import annotations

import re

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
}
