"""Device functions to source, binary and launches, for every kind of target; what is refused, in words."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from convopt.codegen import cuda, rocm
from convopt.codegen.cache import KernelCache
from convopt.codegen.device import DeviceCode, device_code
from convopt.codegen.opencl import with_offsets
from convopt.codegen.workers import KernelSource, compile_kernels
from convopt.errors import CompileError
from convopt.runtime.device import open_device
from convopt.runtime.program import Launch
from convopt.schedules.base import row_major
from convopt.targets import find_target
from tests.codegen.device_schedules import BLOCKS, ELEMENTS, THREADS, Reversed


def _code(name: str, dtype: str = "float32") -> DeviceCode:
    target = find_target(name)
    return device_code(Reversed().apply(dtype, target, "kernel"), target)


@pytest.mark.opencl
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-6), ("float16", 1e-3)])
def test_opencl_runs_at_any_offset(dtype: str, tolerance: float) -> None:
    code = _code("opencl", dtype)
    (kernel,) = code.kernels
    device = open_device("opencl")
    rng = np.random.default_rng(0)
    x = rng.uniform(-2, 2, ELEMENTS).astype(dtype)
    memory = device.allocate(1 << 14)
    begin, to = 3 * x.itemsize, 9000 + x.itemsize  # multiples of the element only
    device.write(memory, begin, x.view(np.uint8))
    launch = Launch(kernel.grid, kernel.block, kernel.dynamic_shared)
    device.launch(
        device.kernel(device.load(code.binary), kernel.symbol), launch, [(memory, begin), (memory, to)]
    )
    y, around = np.empty_like(x), np.empty(64, np.uint8)
    device.read(memory, to, y.view(np.uint8))
    threads = THREADS - 1 - np.arange(ELEMENTS) // 4 % THREADS
    expected = np.exp(x.astype(np.float64)) + threads
    assert np.abs(y - expected).max() <= tolerance * np.abs(expected).max()
    device.read(memory, to + x.nbytes, around)
    assert not around.any(), "written beyond the end"


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_code_survives_its_bytes(dtype: str) -> None:
    code = _code("opencl", dtype)
    assert DeviceCode.from_bytes(code.to_bytes()) == code
    (kernel,) = code.kernels
    assert (kernel.symbol, kernel.grid, kernel.block) == ("kernel_0", (BLOCKS, 1, 1), (THREADS, 1, 1))
    assert (kernel.shared, kernel.dynamic_shared) == (4 * THREADS, 0)


def test_opencl_constants_keep_all_bits() -> None:
    """TVM prints 12582912 as 1.258291e+07f, which is another number."""
    from convopt.schedules import pointwise_problem
    from convopt.schedules.gpu_pointwise import GpuPointwise
    from convopt.schedules.primitives.expression import Expression, Op

    view = row_major((7,))
    problem = pointwise_problem.PointwiseProblem(
        (view,), (view,), Expression(1, (Op("sigmoid", (0,)),), (1,))
    )
    target = find_target("opencl")
    source = device_code(GpuPointwise().apply(problem, target, "kernel"), target).source
    bits = int(np.float32(12582912.0).view(np.int32))
    assert f"as_float({bits})" in source and "1.258291e+07f" not in source


def test_opencl_pointers_get_offsets() -> None:
    source = "__kernel void k(__global float* restrict a, __global const half* b, int n) {\n  a[0] = b[n];\n}"
    text = with_offsets(source)
    assert "(__global char* restrict a_base, ulong a_at, __global char* b_base, ulong b_at, int n) {" in text
    assert "__global float* restrict a = (__global float*)(a_base + a_at);" in text


@pytest.mark.compilers
@pytest.mark.parametrize("name", ["cuda:sm_80", "cuda:sm_90"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_cuda_makes_a_cubin_and_tells_its_resources(name: str, dtype: str) -> None:
    code = _code(name, dtype)
    (kernel,) = code.kernels
    assert code.binary.startswith(b"\x7fELF")
    assert "__global__" in code.source
    assert kernel.shared == 4 * THREADS and kernel.spills == 0
    assert kernel.registers is not None and 8 <= kernel.registers <= 64


@pytest.mark.compilers
def test_nvrtc_is_as_good_as_nvcc(monkeypatch: pytest.MonkeyPatch) -> None:
    by_nvcc = _code("cuda:sm_80")
    monkeypatch.setattr(cuda, "find_nvcc", lambda: None)
    by_nvrtc = _code("cuda:sm_80")
    assert by_nvrtc.binary.startswith(b"\x7fELF")
    assert by_nvrtc.kernels[0].shared == by_nvcc.kernels[0].shared
    assert by_nvrtc.kernels[0].spills == 0 and by_nvrtc.kernels[0].registers


@pytest.mark.compilers
@pytest.mark.parametrize("name", ["rocm:gfx90a", "rocm:gfx942", "rocm:gfx1100"])
def test_rocm_makes_a_code_object_and_tells_its_resources(name: str) -> None:
    code = _code(name)
    (kernel,) = code.kernels
    assert code.binary.startswith(b"\x7fELF")
    assert re.search(r"s_barrier", code.source)
    assert kernel.shared == 4 * THREADS and kernel.spills == 0
    assert kernel.registers is not None and 4 <= kernel.registers <= 64


@pytest.mark.compilers
@pytest.mark.parametrize(
    ("name", "arch", "words"),
    [("rocm:gfx90a", "gfx928", "no code generator for gfx928"), ("cuda:sm_90", "sm_5", "sm_5")],
)
def test_an_unknown_chip_is_refused_in_words(name: str, arch: str, words: str, tmp_path: Any) -> None:
    """In a worker: even a compiler that aborts takes nobody along."""
    target = replace(find_target(name), name=f"{name}?", arch=arch)
    source = KernelSource(Reversed(), "float32", target)
    compiled = compile_kernels([source], KernelCache(tmp_path))
    assert not compiled.objects
    assert words in compiled.failures[source.key]


def test_missing_compilers_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "find_nvcc", lambda: None)
    monkeypatch.setattr(cuda.util, "find_spec", lambda name: None)
    with pytest.raises(CompileError, match=r"pip install 'convopt\[cuda\]'"):
        cuda.compile_cubin("", "sm_90")
    monkeypatch.setattr(rocm, "_LIBRARY_FOLDERS", ())
    monkeypatch.delenv("ROCM_PATH", raising=False)
    with pytest.raises(CompileError, match="apt-get install rocm-device-libs"):
        rocm.library_folder()
