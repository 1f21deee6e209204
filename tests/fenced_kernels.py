"""Many kernels in one library, called on memory that ends or begins at a page that can't be touched.

A kernel that reads or writes one element too far faults; the fault is caught and fails the test with the
operand's name. What lies inside an output's memory and isn't the output keeps a pattern, checked afterwards.
"""

from __future__ import annotations

import ctypes
import itertools
import mmap
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401  numpy knows bfloat16 by name from then on
import numpy as np

from convopt.codegen.cache import KernelCache, symbol_of
from convopt.codegen.link import c_compiler
from convopt.codegen.workers import KernelSource, compile_kernels
from convopt.schedules.base import TensorView
from convopt.targets import CpuTarget

Array = np.ndarray[Any, Any]

PATTERN = 0xA5
MOST_OPERANDS = 8

_CALLER = """
#include <setjmp.h>
#include <signal.h>
#include <stddef.h>

typedef void (*kernel)(int, int, void *, void *, void *, void *, void *, void *, void *, void *, void *);
static sigjmp_buf escape;
static void *volatile address;

static void on_fault(int number, siginfo_t *info, void *context) {
    (void)number, (void)context;
    address = info->si_addr;
    siglongjmp(escape, 1);
}

/* The address that the kernel could not touch, NULL if it returned. Operands beyond its own are ignored. */
void *fenced_call(kernel f, int begin, int end, void *scratch, void **p) {
    struct sigaction action = {.sa_flags = SA_SIGINFO}, before;
    action.sa_sigaction = on_fault;
    sigaction(SIGSEGV, &action, &before);
    address = NULL;
    if (!sigsetjmp(escape, 1)) f(begin, end, scratch, p[0], p[1], p[2], p[3], p[4], p[5], p[6], p[7]);
    sigaction(SIGSEGV, &before, NULL);
    return address;
}
"""

_libc = ctypes.CDLL(None, use_errno=True)


class FencedOperand:
    """Elements `low` to `high` (exclusive, counted from element 0 of the view) and not one more on one side.

    at_end: the memory ends at a page without access; otherwise it begins behind one.
    """

    def __init__(self, view: TensorView, low: int, high: int, at_end: bool) -> None:
        self.view, self.item = view, np.dtype(view.dtype).itemsize
        size, page = (high - low) * self.item, mmap.PAGESIZE
        inner = -(-size // page) * page
        self.map = mmap.mmap(-1, inner + 2 * page)
        base = ctypes.addressof(ctypes.c_char.from_buffer(self.map))
        for fence in (base, base + page + inner):
            if _libc.mprotect(ctypes.c_void_p(fence), page, 0):
                raise OSError(ctypes.get_errno(), "mprotect")
        self.start = base + page + (inner - size if at_end else 0)
        self.bytes = np.frombuffer(self.map, np.uint8, size, self.start - base)
        self.bytes[...] = PATTERN
        self.element0 = -low * self.item
        self.fences = (base, base + page, base + page + inner, base + 2 * page + inner)

    @classmethod
    def tight(cls, view: TensorView, at_end: bool, halo: Sequence[tuple[int, int]] = ()) -> FencedOperand:
        """Memory from the view's first to its last element, `halo` (before, after) per dim included."""
        halo = halo or [(0, 0)] * len(view.shape)
        low = sum(-before * abs(s) for s, (before, _) in zip(view.strides, halo, strict=True))
        dims = zip(view.shape, view.strides, halo, strict=True)
        high = sum((e - 1 + after) * s for e, s, (_, after) in dims)
        return cls(view, low, high + 1, at_end)

    @property
    def pointer(self) -> int:
        return self.start + self.element0

    @property
    def array(self) -> Array:
        """The view's elements."""
        strides = tuple(s * self.item for s in self.view.strides)
        return np.ndarray(self.view.shape, self.view.dtype, self.bytes.data, self.element0, strides)

    def outside(self) -> bytes:
        """The bytes of the memory with the view's own zeroed."""
        rest = self.bytes.copy()
        strides = tuple(s * self.item for s in self.view.strides)
        np.ndarray(self.view.shape, self.view.dtype, rest.data, self.element0, strides)[...] = 0
        return rest.tobytes()

    def holds(self, address: int) -> bool:
        """Whether the address is on this operand's fences."""
        a, b, c, d = self.fences
        return a <= address < b or c <= address < d


@dataclass
class FencedKernels:
    """The kernels of (schedule, problem) pairs, numbered in the order given."""

    pairs: Sequence[tuple[Any, Any]]
    target: CpuTarget
    folder: Path

    def __post_init__(self) -> None:
        sources = [KernelSource(schedule, problem, self.target) for schedule, problem in self.pairs]
        compiled = compile_kernels(sources, KernelCache())
        assert not compiled.failures, next(iter(compiled.failures.values()))
        files = []
        for key, code in compiled.objects.items():
            files.append(self.folder / f"{key}.o")
            files[-1].write_bytes(code)
        (self.folder / "caller.c").write_text(_CALLER)
        out = self.folder / "kernels.so"
        command = [*c_compiler(), "-shared", "-fPIC", "-O1", str(self.folder / "caller.c"), *map(str, files)]
        subprocess.run([*command, "-o", str(out), "-lm"], check=True)
        self.library = ctypes.CDLL(str(out))
        self.symbols = [symbol_of(source.key) for source in sources]
        self.library.fenced_call.restype = ctypes.c_void_p

    def run(
        self, number: int, operands: Sequence[FencedOperand], cuts: Sequence[float] = (0.3, 0.31, 0.8)
    ) -> None:
        """All tasks, cut at these fractions, the last part first; fails where a fence was touched."""
        schedule, problem = self.pairs[number]
        tasks = schedule.tasks(problem, self.target)
        scratch = np.full(schedule.scratch_bytes(problem, self.target) + 64, PATTERN, np.uint8)
        aligned = ctypes.c_void_p(scratch.ctypes.data + -scratch.ctypes.data % 64)
        assert len(operands) <= MOST_OPERANDS
        pointers = (ctypes.c_void_p * MOST_OPERANDS)(*(o.pointer for o in operands))
        edges = [0, *(int(cut * tasks) for cut in cuts), tasks]
        kernel = ctypes.cast(self.library[self.symbols[number]], ctypes.c_void_p)
        for begin, end in reversed(list(itertools.pairwise(edges))):
            fault = self.library.fenced_call(kernel, begin, end, aligned, pointers)
            if fault is not None:
                where = [i for i, o in enumerate(operands) if o.holds(fault)]
                raise AssertionError(
                    f"{schedule} on {problem} left the memory of operand {where or 'unknown'}"
                )


def flat(array: Array, at_end: bool) -> FencedOperand:
    """A packed constant, whole."""
    operand = FencedOperand.tight(TensorView((array.size,), (1,), array.dtype.name), at_end)
    operand.array[...] = array.reshape(-1)
    return operand
