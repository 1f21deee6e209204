"""Runs one kernel on numpy arrays: TIR to an object file, gcc to a library, ctypes to call it.

Operands lie inside larger buffers whose other bytes are a pattern, checked after the call: a kernel that
writes outside its view fails the test.
"""

from __future__ import annotations

import ctypes
import itertools
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from convopt.codegen.cpu import object_code
from convopt.schedules.base import TensorView
from convopt.targets import CpuTarget, host_cpu

GUARD = 192  # bytes of pattern on either side of what a view spans
PATTERN = 0xA5


@dataclass
class Operand:
    """A buffer with room for `view`, and the window of it that the view addresses."""

    view: TensorView
    buffer: np.ndarray[Any, Any]  # uint8
    start: int  # byte of element 0

    @classmethod
    def make(cls, view: TensorView, misalign: int = 1) -> Operand:
        """`misalign`: element 0 is this many elements off a 64-byte boundary."""
        item = np.dtype(view.dtype).itemsize
        steps = [(n - 1) * s for n, s in zip(view.shape, view.strides, strict=True)] if view.size else []
        low, high = sum(min(s, 0) for s in steps), sum(max(s, 0) for s in steps)
        buffer = np.full((high - low + 1) * item + 2 * GUARD + 128, PATTERN, np.uint8)
        start = GUARD - low * item
        start += (misalign * item - (buffer.ctypes.data + start)) % 64
        return cls(view, buffer, start)

    @property
    def array(self) -> np.ndarray[Any, Any]:
        """The elements, in the view's shape and strides; writable unless broadcast."""
        item = np.dtype(self.view.dtype).itemsize
        strides = tuple(s * item for s in self.view.strides)
        return np.ndarray(self.view.shape, self.view.dtype, self.buffer, self.start, strides)

    def outside(self) -> np.ndarray[Any, Any]:
        """A copy of the buffer with the view's own elements zeroed."""
        rest = self.buffer.copy()
        item = np.dtype(self.view.dtype).itemsize
        strides = tuple(s * item for s in self.view.strides)
        if self.view.size:
            np.ndarray(self.view.shape, self.view.dtype, rest, self.start, strides)[...] = 0
        return rest


def compile_kernel(schedule: Any, problem: Any, folder: Path, target: CpuTarget | None = None) -> Any:
    """The C function of the schedule's kernel, to be called as (begin, end, scratch, pointers...)."""
    target = target or host_cpu()
    refusal = schedule.why_not(problem, target)
    assert refusal is None, refusal
    symbol = "kernel"
    code = object_code(schedule.apply(problem, target, symbol), target)
    number = len(list(folder.glob("*.so")))
    (folder / f"{number}.o").write_bytes(code)
    library = folder / f"{number}.so"
    subprocess.run(["gcc", "-shared", "-o", library, folder / f"{number}.o", "-lm"], check=True)
    function = ctypes.CDLL(str(library))[symbol]
    function.restype = None
    return function


def run_kernel(
    schedule: Any,
    problem: Any,
    inputs: Sequence[tuple[TensorView, np.ndarray[Any, Any]]],
    outputs: Sequence[TensorView],
    folder: Path,
    splits: Sequence[float] = (0.3, 0.31, 0.8),
    outputs_before: Sequence[np.ndarray[Any, Any]] | None = None,
) -> list[np.ndarray[Any, Any]]:
    """Runs all tasks, cut at these fractions, the last part first; returns copies of the outputs.

    Arguments are passed inputs first, then outputs. outputs_before: contents that the kernel may keep.
    """
    target = host_cpu()
    function = compile_kernel(schedule, problem, folder, target)
    operands = []
    for view, array in inputs:
        operand = Operand.make(view)
        operand.array[...] = array
        operands.append(operand)
    results = [Operand.make(view, misalign=3) for view in outputs]
    for operand, before in zip(results, outputs_before or (), strict=bool(outputs_before)):
        operand.array[...] = before
    originals = [operand.buffer.copy() for operand in operands]
    around = [operand.outside() for operand in results]
    tasks = schedule.tasks(problem, target)
    scratch = np.full(schedule.scratch_bytes(problem, target) + 64, PATTERN, np.uint8)
    aligned = scratch.ctypes.data + -scratch.ctypes.data % 64
    pointers = [ctypes.c_void_p(o.buffer.ctypes.data + o.start) for o in (*operands, *results)]
    cuts = [0, *(int(s * tasks) for s in splits), tasks]
    for begin, end in reversed(list(itertools.pairwise(cuts))):
        function(ctypes.c_int32(begin), ctypes.c_int32(end), ctypes.c_void_p(aligned), *pointers)
    for operand, original in zip(operands, originals, strict=True):
        assert np.array_equal(operand.buffer, original), "the kernel wrote to an input"
    for operand, before in zip(results, around, strict=True):
        assert np.array_equal(operand.outside(), before), "the kernel wrote outside its output"
    return [operand.array.copy() for operand in results]
