"""Runs one GPU schedule on an OpenCL device; operands lie inside larger memory whose rest is a pattern."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from convopt.codegen.device import device_code
from convopt.runtime.device import open_device
from convopt.runtime.program import Launch
from convopt.schedules.base import TensorView
from convopt.targets import find_target
from tests.kernel_harness import Operand

OPENCL = find_target("opencl")


def run_gpu_kernel(
    schedule: Any,
    problem: Any,
    inputs: Sequence[tuple[TensorView, np.ndarray[Any, Any]]],
    outputs: Sequence[TensorView],
) -> list[np.ndarray[Any, Any]]:
    """Copies of the outputs. Fails where the kernel refuses, writes to an input or outside an output."""
    refusal = schedule.why_not(problem, OPENCL)
    assert refusal is None, refusal
    code = device_code(schedule.apply(problem, OPENCL, "kernel"), OPENCL)
    assert max(k.shared for k in code.kernels) == schedule.shared_bytes(problem, OPENCL)
    operands = []
    for view, array in inputs:
        operands.append(Operand.make(view, misalign=0))
        operands[-1].array[...] = array
    operands += [Operand.make(view, misalign=0) for view in outputs]
    device = open_device("opencl")
    module = device.load(code.binary)
    pointers = []
    for operand in operands:
        memory = device.allocate(operand.buffer.nbytes)
        device.write(memory, 0, operand.buffer)
        pointers.append((memory, operand.start))
    for kernel in code.kernels:
        launch = Launch(kernel.grid, kernel.block, kernel.dynamic_shared)
        device.launch(device.kernel(module, kernel.symbol), launch, pointers)
    for index, (operand, (memory, _)) in enumerate(zip(operands, pointers, strict=True)):
        before, around = operand.buffer.copy(), operand.outside()
        device.read(memory, 0, operand.buffer)
        if index < len(inputs):
            assert np.array_equal(operand.buffer, before), "the kernel wrote to an input"
        else:
            assert np.array_equal(operand.outside(), around), "the kernel wrote outside its output"
    return [operand.array.copy() for operand in operands[len(inputs) :]]
