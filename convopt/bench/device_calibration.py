"""A GPU's peak of multiply-adds, bandwidth and launch cost, by this project's own kernels and drivers."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from convopt.bench.calibration import Calibration
from convopt.codegen.device import device_code
from convopt.runtime.device import Device, open_device
from convopt.runtime.program import Launch
from convopt.schedules import gpu_pointwise
from convopt.schedules.base import TensorView, row_major
from convopt.schedules.pointwise_problem import PointwiseProblem, copy_problem, moved_bytes
from convopt.schedules.primitives.expression import Expression, Op
from convopt.targets import GpuTarget

COPIED = 32 << 20  # float32 elements, 128 MiB: beyond L2
CHAINED = 1 << 20
CHAIN = 512  # multiply-adds of one element, each waiting for the one before
LAUNCHES = 200
ROUNDS = 5


def calibrate_device(target: GpuTarget) -> tuple[str, Calibration]:
    """(the device's own name, what was measured): of several rounds the best.

    peak: float32 multiply-adds in registers, not on matrix units. bandwidth: a copy through memory, bytes
    read and written. launch: what one more launch adds on the device's stream.

    Raises:
        DeviceMissing: there is no such device here; the text has the remedy.
        CompileError: there is no compiler for it.
    """
    device = open_device(target.kind)
    copied = copy_problem(row_major((COPIED,)), row_major((COPIED,)))
    chained = multiply_adds(CHAINED)
    tiny = copy_problem(row_major((1,)), row_major((1,)))
    copy_seconds = _seconds(device, copied, target)
    chain_seconds = _seconds(device, chained, target)
    launch = (
        _seconds(device, tiny, target, 2 * LAUNCHES) - _seconds(device, tiny, target, LAUNCHES)
    ) / LAUNCHES
    return device.name, Calibration(
        2e-9 * CHAIN * CHAINED / chain_seconds,
        1e-9 * moved_bytes(copied) / copy_seconds,
        max(1e6 * launch, 0.0),
        time.time(),
    )


def multiply_adds(elements: int) -> PointwiseProblem:
    """y = (...((x*a + b)*a + b)...), CHAIN times; a and b are operands, so that nothing folds."""
    ops: list[Op] = []
    value = 0
    for _ in range(CHAIN):
        ops.append(Op("mul", (value, 1)))
        ops.append(Op("add", (3 + len(ops) - 1, 2)))
        value = 3 + len(ops) - 1
    scalar = TensorView((elements,), (0,))
    return PointwiseProblem(
        (row_major((elements,)), scalar, scalar),
        (row_major((elements,)),),
        Expression(3, tuple(ops), (value,)),
    )


def _seconds(device: Device, problem: PointwiseProblem, target: GpuTarget, launches: int = 1) -> float:
    work = _prepared(device, problem, target, launches)
    work()  # first touches of memory, a cold clock
    device.synchronise()
    return min(device.time(work) for _ in range(ROUNDS))


def _prepared(
    device: Device, problem: PointwiseProblem, target: GpuTarget, launches: int
) -> Callable[[], None]:
    schedule = gpu_pointwise.default(problem, target)
    code = device_code(schedule.apply(problem, target, "calibrate"), target)
    module = device.load(code.binary)
    arguments: list[tuple[Any, int]] = [
        (device.allocate(4 * (view.reach + 1)), 0) for view in problem.operands
    ]
    kernels = [
        (device.kernel(module, k.symbol), Launch(k.grid, k.block, k.dynamic_shared)) for k in code.kernels
    ]

    def work() -> None:
        for _ in range(launches):
            for kernel, launch in kernels:
                device.launch(kernel, launch, arguments)

    return work
