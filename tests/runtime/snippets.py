"""Tiny Programs for the runtime's tests: kernels from C snippets, put together by hand."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

import numpy as np

from convopt.codegen.link import c_compiler, link
from convopt.runtime.loaded import LoadedProgram
from convopt.runtime.program import Address, KernelStep, Program, TensorSpec

KERNELS = r"""
#include <stdint.h>
#include <string.h>
#define ROW 8
/* Tasks are rows of ROW floats. */
void k_scale(int32_t begin, int32_t end, void *scratch, float *y, const float *x) {
    for (int32_t i = begin * ROW; i < end * ROW; i++) y[i] = 2.0f * x[i];
}
void k_add(int32_t begin, int32_t end, void *scratch, float *y, const float *a, const float *b) {
    for (int32_t i = begin * ROW; i < end * ROW; i++) y[i] = a[i] + b[i];
}
/* Reverses each row by way of the scratch memory: wrong if two threads share it. */
void k_reverse(int32_t begin, int32_t end, void *scratch, float *y, const float *x) {
    float *row = scratch;
    for (int32_t r = begin; r < end; r++) {
        memcpy(row, x + r * ROW, sizeof(float) * ROW);
        for (int32_t i = 0; i < ROW; i++) y[r * ROW + i] = row[ROW - 1 - i];
    }
}
/* y[0] = 1 if the scratch is 64-byte aligned, for every task. */
void k_aligned(int32_t begin, int32_t end, void *scratch, float *y) {
    for (int32_t i = begin; i < end; i++) y[i] = (uintptr_t)scratch % 64 == 0;
}
/* The sum of sixteen pointers' first elements, weighted by position. */
void k_sixteen(int32_t begin, int32_t end, void *scratch, float *y, float *a, float *b, float *c, float *d,
               float *e, float *f, float *g, float *h, float *i, float *j, float *k, float *l, float *m,
               float *n, float *o) {
    *y = *a + 2 * *b + 3 * *c + 4 * *d + 5 * *e + 6 * *f + 7 * *g + 8 * *h + 9 * *i + 10 * *j + 11 * *k
       + 12 * *l + 13 * *m + 14 * *n + 15 * *o;
}
void k_empty(int32_t begin, int32_t end, void *scratch, float *y) {}
"""

_image: list[bytes] = []


def image() -> bytes:
    """The shared object of all snippets, built once per process."""
    if not _image:
        with tempfile.TemporaryDirectory() as folder:
            source, out = Path(folder, "k.c"), Path(folder, "k.o")
            source.write_text(KERNELS)
            subprocess.run([*c_compiler(), "-O1", "-fPIC", "-c", str(source), "-o", str(out)], check=True)
            _image.append(link([out]))
    return _image[0]


def at(space: str, index: int = 0, offset: int = 0) -> Address:
    return Address(space, index, offset)  # type: ignore[arg-type]


def floats(name: str, *shape: int) -> TensorSpec:
    return TensorSpec(name, "float32", shape)


def chain(rows: int, length: int = 1) -> LoadedProgram:
    """y = reverse(scale^length(x) + w), x of (rows, 8), w = 0, 1, 2, ...; uses arena, weights and scratch."""
    shape = (rows, 8)
    size = rows * 8 * 4
    steps = [
        KernelStep("k_scale", (at("arena", 0, size * (i % 2)), at("arena", 0, size * ((i + 1) % 2))), rows)
        for i in range(1, length)
    ]
    first = KernelStep("k_scale", (at("arena"), at("input")), rows, nodes=("first",), label="scale first")
    last = size * ((length - 1) % 2)
    total = size * 2
    add = KernelStep("k_add", (at("arena", 0, total), at("arena", 0, last), at("weights", 0, 64)), rows)
    reverse = KernelStep("k_reverse", (at("output"), at("arena", 0, total)), rows, scratch=32)
    program = Program(
        (floats("x", *shape),), (floats("y", *shape),), size * 3, size * 2, (first, *steps, add, reverse)
    )
    weights = np.concatenate([np.full(16, np.nan, np.float32), np.arange(rows * 8, dtype=np.float32)])
    return LoadedProgram(program, image(), weights.tobytes())


def chain_expected(x: np.ndarray, length: int = 1) -> np.ndarray:
    w = np.arange(x.size, dtype=np.float64).reshape(x.shape)
    return (x.astype(np.float64) * 2.0**length + w)[:, ::-1]
