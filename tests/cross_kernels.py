"""Kernels for AArch64, linked into a program by a cross compiler and run by qemu's user mode.

The interface of `tests.fenced_kernels.FencedKernels`: operands come back as the kernel left them.
"""

from __future__ import annotations

import itertools
import shutil
import struct
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from convopt.codegen.cache import KernelCache, symbol_of
from convopt.codegen.link import executor_source
from convopt.codegen.workers import KernelSource, compile_kernels
from convopt.targets import CpuTarget
from convopt.targets.cpu import NEON
from tests.fenced_kernels import MOST_OPERANDS, FencedOperand

COMPILER, EMULATOR = "aarch64-linux-gnu-gcc", "qemu-aarch64"
TIMEOUT = 120.0

# Reads one call from stdin and writes the operands to stdout: int64s, then the bytes of each operand.
_MAIN = """
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

typedef void (*kernel)(int, int, void *, void *, void *, void *, void *, void *, void *, void *, void *);
%(declarations)s
static const kernel kernels[] = {%(table)s};

static int64_t number(void) {
    int64_t value;
    if (fread(&value, sizeof value, 1, stdin) != 1) exit(2);
    return value;
}

int main(void) {
    int64_t which = number(), parts = number(), count = number();
    int64_t begin[16], end[16], size[8], element0[8];
    char *memory[8] = {0};
    for (int64_t i = 0; i < parts; i++) begin[i] = number(), end[i] = number();
    void *scratch = aligned_alloc(64, (size_t)number());
    for (int64_t i = 0; i < count; i++) size[i] = number(), element0[i] = number();
    for (int64_t i = 0; i < count; i++) {
        memory[i] = malloc((size_t)size[i]);
        if (fread(memory[i], 1, (size_t)size[i], stdin) != (size_t)size[i]) exit(3);
    }
    void *p[8];
    for (int i = 0; i < 8; i++) p[i] = i < count ? memory[i] + element0[i] : NULL;
    for (int64_t i = 0; i < parts; i++)
        kernels[which]((int)begin[i], (int)end[i], scratch, p[0], p[1], p[2], p[3], p[4], p[5], p[6], p[7]);
    for (int64_t i = 0; i < count; i++) fwrite(memory[i], 1, (size_t)size[i], stdout);
    return 0;
}
"""


def missing() -> str | None:
    """What is not installed here, None if nothing."""
    absent = [command for command in (COMPILER, EMULATOR) if shutil.which(command) is None]
    return f"no {' and no '.join(absent)}" if absent else None


def compile_executor(folder: Path) -> None:
    """The runtime's C part as the cross compiler sees it; raises CalledProcessError where it refuses."""
    source = folder / "executor.c"
    source.write_text(executor_source())
    command = [COMPILER, "-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-fPIC", "-pthread", "-c"]
    subprocess.run([*command, str(source), "-o", str(folder / "executor.o")], check=True, timeout=TIMEOUT)


@dataclass
class CrossKernels:
    """The kernels of (schedule, problem) pairs, numbered in the order given."""

    pairs: Sequence[tuple[Any, Any]]
    folder: Path
    target: CpuTarget = NEON

    def __post_init__(self) -> None:
        sources = [KernelSource(schedule, problem, self.target) for schedule, problem in self.pairs]
        compiled = compile_kernels(sources, KernelCache())
        assert not compiled.failures, next(iter(compiled.failures.values()))
        objects = []
        for key, code in compiled.objects.items():
            objects.append(self.folder / f"{key}.o")
            objects[-1].write_bytes(code)
        symbols = [symbol_of(source.key) for source in sources]
        declarations = "\n".join(f"extern void {symbol}();" for symbol in dict.fromkeys(symbols))
        table = ", ".join(f"(kernel){symbol}" for symbol in symbols)
        (self.folder / "main.c").write_text(_MAIN % {"declarations": declarations, "table": table})
        self.program = self.folder / "kernels"
        command = [COMPILER, "-O1", "-static", str(self.folder / "main.c"), *map(str, objects)]
        subprocess.run([*command, "-lm", "-o", str(self.program)], check=True, timeout=TIMEOUT)

    def run(
        self, number: int, operands: Sequence[FencedOperand], cuts: Sequence[float] = (0.3, 0.31, 0.8)
    ) -> None:
        """All tasks, cut at these fractions, the last part first; writes into the operands' memory."""
        schedule, problem = self.pairs[number]
        assert len(operands) <= MOST_OPERANDS
        tasks = schedule.tasks(problem, self.target)
        edges = [0, *(int(cut * tasks) for cut in cuts), tasks]
        parts = list(reversed(list(itertools.pairwise(edges))))
        scratch = -(-schedule.scratch_bytes(problem, self.target) // 64) * 64 + 64
        head = [number, len(parts), len(operands), *itertools.chain(*parts), scratch]
        for operand in operands:
            head += [operand.bytes.size, operand.element0]
        data = struct.pack(f"<{len(head)}q", *head) + b"".join(o.bytes.tobytes() for o in operands)
        done = subprocess.run([EMULATOR, str(self.program)], input=data, capture_output=True, timeout=TIMEOUT)
        assert done.returncode == 0, f"{schedule} on {problem}: {done.returncode} {done.stderr.decode()}"
        start = 0
        for operand in operands:
            size = operand.bytes.size
            operand.bytes[...] = np.frombuffer(done.stdout, np.uint8, size, start)
            start += size
        assert start == len(done.stdout)
