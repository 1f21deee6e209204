"""HIP source of a convolution: run by the driver on the stub device, compiled for the chips of AMD."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import numpy as np

from convopt.codegen.device import DeviceCode, device_code
from convopt.runtime.device import Device
from convopt.runtime.program import Launch
from convopt.schedules.base import TensorView
from convopt.schedules.conv_problem import ConvProblem
from convopt.schedules.gpu_implicit_gemm import ImplicitGemm
from convopt.schedules.primitives.expression import unary
from convopt.targets import GpuTarget, find_target

Array = np.ndarray[Any, Any]
K100_AI = find_target("dcu:k100-ai")
# Library files of the device functions; the chips' own only fix hardware tricks of some.
LIBRARIES = Path("/usr/lib/x86_64-linux-gnu/amdgcn/bitcode")


def problem(dtype: str, features: int = 27) -> ConvProblem:
    """3x3 on 2 images of 9x7 pixels and 16 channels: tails in pixels, channels and the reduction."""
    n, h, w, c, k = 2, 9, 7, 16, features
    x = TensorView((1, n, 1, h, w, c), (0, h * w * c, h * w * c, w * c, c, 1), dtype)
    y = TensorView((1, n, 1, h, w, k), (0, h * w * k, h * w * k, w * k, k, 1), dtype)
    return ConvProblem(x, y, (1, 3, 3), (1, 1, 1), (1, 1, 1), (0, 1, 1), unary("relu"))


def source_of(
    schedule: Any, conv: ConvProblem, target: GpuTarget = K100_AI, symbol: str = "conv"
) -> DeviceCode:
    refusal = schedule.why_not(conv, target)
    assert refusal is None, refusal
    return device_code(schedule.apply(conv, target, symbol), target)


def run_conv(
    device: Device, code: DeviceCode, schedule: Any, conv: ConvProblem, target: GpuTarget = K100_AI
) -> float:
    """The largest error against float64, relative to the largest value."""
    rng = np.random.default_rng(0)
    n, h, w, c = (conv.x.shape[i] for i in (1, 3, 4, 5))
    k, dtype = conv.features, conv.x.dtype
    x = _stored(rng.uniform(-1, 1, (n, h, w, c)), dtype)
    weight = rng.uniform(-1, 1, (k, c, 3, 3)).astype(np.float32)
    bias = rng.uniform(-1, 1, k).astype(np.float32)
    packed = schedule.pack(conv, target, weight.reshape(1, k, c, 1, 3, 3), bias.reshape(1, k))
    memory = [_put(device, array) for array in (x, *packed)]
    if workspace := schedule.workspace_bytes(conv, target):
        memory.append(_put(device, np.full(workspace // 4, np.nan, np.float32)))
    out = np.empty((n, h, w, k), x.dtype)
    memory.append(device.allocate(out.nbytes))
    module = device.load(code.binary)
    for kernel in code.kernels:
        launch = Launch(kernel.grid, kernel.block, kernel.dynamic_shared)
        device.launch(device.kernel(module, kernel.symbol), launch, [(m, 0) for m in memory])
    device.read(memory[-1], 0, out.reshape(-1).view(np.uint8))
    padded = np.pad(_float64(x, dtype), ((0, 0), (1, 1), (1, 1), (0, 0)))
    held = _float64(_stored(weight, dtype), dtype)
    expected = np.zeros(out.shape) + bias
    for i in range(3):
        for j in range(3):
            expected += padded[:, i : i + h, j : j + w] @ held[:, :, i, j].T
    expected = np.maximum(expected, 0)
    return float(np.abs(_float64(out, dtype) - expected).max() / expected.max())


def _put(device: Device, array: Array) -> Any:
    memory = device.allocate(array.nbytes)
    device.write(memory, 0, np.ascontiguousarray(array).reshape(-1).view(np.uint8))
    return memory


def _stored(array: Array, dtype: str) -> Array:
    if dtype != "bfloat16":
        return array.astype(dtype)
    bits = array.astype(np.float32).view(np.uint32)
    rounded: Array = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return rounded


def _float64(array: Array, dtype: str) -> Array:
    if dtype == "bfloat16":
        array = (array.astype(np.uint32) << 16).view(np.float32)
    return array.astype(np.float64)


def assembly(source: str, arch: str, folder: Path, *extra: str) -> str:
    """clang 19's assembly with HIP's own headers and AMD's device library."""
    text, out = folder / "kernels.hip", folder / f"{arch}.s"
    text.write_text(source)
    command = [
        "clang-19", "-x", "hip", "--cuda-device-only", "-O3", "-std=c++17", "-fno-strict-aliasing",
        f"--offload-arch={arch}", "--rocm-path=/usr", "-nogpulib", "-D__HIP_PLATFORM_AMD__", *extra,
        "-Xclang", "-mlink-builtin-bitcode", "-Xclang", str(LIBRARIES / "ocml.bc"),
        "-S", str(text), "-o", str(out),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return out.read_text()


def spills(text: str) -> int:
    found = re.findall(r"\.[sv]gpr_spill_count:\s*(\d+)|\.private_segment_fixed_size: (\d+)", text)
    assert found
    return sum(int(a or b) for a, b in found)


SIMT = ImplicitGemm(64, 32, 16, 4, 2, stages=2)
MATRIX = ImplicitGemm(64, 32, 32, 32, 16, stages=2, unit="mmac.16x16x16")
