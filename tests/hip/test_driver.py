"""The HIP driver against a runtime library without a device: every call, every error, nothing left over."""

from __future__ import annotations

import functools
import gc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from convopt.errors import CompileError, ExecutionError
from convopt.runtime import hip_device, hip_library, hipcc
from convopt.runtime.device import open_device
from convopt.runtime.hip_device import HipDevice
from convopt.runtime.program import Launch
from tests.hip.stub_device import FOLDER, Stub

pytestmark = pytest.mark.hip

SOURCE = """// offload-arch: gfx928
#include <hip/hip_runtime.h>

extern "C" __global__ void __launch_bounds__(64)
add(float* __restrict__ p0, float* __restrict__ p1, float* __restrict__ p2) {
  p2[blockIdx.x * 64 + threadIdx.x] = p0[blockIdx.x * 64 + threadIdx.x] + 10.0f * p1[threadIdx.x];
}
"""
LAUNCH = Launch((3, 1, 1), (64, 1, 1))


def _add(device: HipDevice, kernel: Any) -> np.ndarray[Any, Any]:
    """Runs the kernel at offsets into one block of memory; what it computed."""
    x, y = np.arange(192, dtype=np.float32), np.arange(64, dtype=np.float32)
    memory = device.allocate(4096)
    device.write(memory, 64, x.view(np.uint8))
    device.write(memory, 1024, y.view(np.uint8))
    device.launch(kernel, LAUNCH, [(memory, 64), (memory, 1024), (memory, 2048)])
    out = np.empty(192, np.float32)
    device.read(memory, 2048, out.view(np.uint8))
    return out


EXPECTED = np.arange(192) + 10.0 * np.tile(np.arange(64), 3)


def test_memory_kernels_streams_and_their_end(stub: Stub) -> None:
    before = stub.live
    device = open_device("hip")
    assert isinstance(device, HipDevice) and device.name == "Stub DCU" and device.arch == "gfx928"
    module = device.load(SOURCE.encode())
    kernel = device.kernel(module, "add")
    del module  # the kernel keeps it
    np.testing.assert_array_equal(_add(device, kernel), EXPECTED)
    calls = stub.calls()
    assert "launch 3,1,1 64,1,1 shared 0 arguments 3" in calls
    assert [c for c in calls if c.startswith("copy")] == [
        "copy to device 768", "copy to device 256", "copy from device 768",
    ]  # fmt: skip
    assert device.time(lambda: None) == pytest.approx(0.25e-3)
    del device, kernel
    gc.collect()
    assert stub.live == before
    assert stub.calls()[-1] == "unload module"


def test_memory_is_zeroed(stub: Stub) -> None:
    device = HipDevice()
    out = np.ones(1000, np.uint8)
    device.read(device.allocate(1000), 0, out)
    assert not out.any()


def test_a_callers_stream_and_memory(stub: Stub) -> None:
    device, caller = HipDevice(), HipDevice()
    kernel = device.kernel(device.load(SOURCE.encode()), "add")
    theirs, ours = caller.allocate(2048), device.allocate(2048)
    caller.write(theirs, 0, np.full(192, 3.0, np.float32).view(np.uint8))
    live = stub.live
    stub.calls()
    with device.on_stream(caller._own):
        device.copy(ours, theirs.pointer, 768)
        device.launch(kernel, LAUNCH, [(ours, 0), (ours, 1024), (ours, 1024)])
        device.copy(theirs.pointer, ours, 768)
    assert [c.partition(" shared")[0] for c in stub.calls()] == [
        "wait for event", "copy on device 768", "launch 3,1,1 64,1,1", "copy on device 768", "wait for event",
    ]  # fmt: skip
    assert stub.live == live
    out = np.empty(192, np.float32)
    device.read(ours, 1024, out.view(np.uint8))
    np.testing.assert_array_equal(out[:64], 3.0)


def test_a_graph_repeats_what_was_captured(stub: Stub) -> None:
    before = stub.live
    device = HipDevice()
    kernel = device.kernel(device.load(SOURCE.encode()), "add")
    memory = device.allocate(4096)
    record = functools.partial(device.launch, kernel, LAUNCH, [(memory, 0), (memory, 1024), (memory, 2048)])
    graph = device.capture(record)
    out = np.empty(192, np.float32)
    device.read(memory, 2048, out.view(np.uint8))
    assert not out.any(), "a captured launch does not run"
    for value in (1.0, 2.0):
        device.write(memory, 0, np.full(192, value, np.float32).view(np.uint8))
        graph()
        device.read(memory, 2048, out.view(np.uint8))
        np.testing.assert_array_equal(out, value)
    del device, kernel, memory, graph, record
    gc.collect()
    assert stub.live == before


def test_a_failing_capture_leaves_the_stream_usable(stub: Stub) -> None:
    device, before = HipDevice(), stub.live

    def fails() -> None:
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        device.capture(fails)
    assert stub.live == before
    kernel = device.kernel(device.load(SOURCE.encode()), "add")
    np.testing.assert_array_equal(_add(device, kernel), EXPECTED)


def test_too_little_memory(stub: Stub) -> None:
    stub.configure(memory=10_000)
    device = HipDevice()
    live = stub.live
    with pytest.raises(MemoryError, match=r"Stub DCU can't set aside 20000 bytes: .*out of memory"):
        device.allocate(20_000)
    assert stub.live == live


def test_a_missing_symbol(stub: Stub) -> None:
    device = HipDevice()
    module = device.load(SOURCE.encode())
    with pytest.raises(ExecutionError, match="the code object has no kernel 'subtract'"):
        device.kernel(module, "subtract")


def test_source_for_another_chip(stub: Stub) -> None:
    stub.configure(arch="gfx906:sramecc+")
    with pytest.raises(
        ExecutionError, match="is a gfx906, the kernels are for gfx928: compile the model for"
    ):
        HipDevice().load(SOURCE.encode())


def test_a_code_object_for_another_chip(stub: Stub) -> None:
    code, _ = hipcc.compile_source(SOURCE, hipcc.find_hipcc())
    HipDevice().load(code)
    stub.configure(arch="gfx936")
    with pytest.raises(
        ExecutionError, match=r"its code object is for another chip than gfx936: .* no kernel image"
    ):
        HipDevice().load(code)


def test_a_damaged_code_object(stub: Stub) -> None:
    with pytest.raises(ExecutionError, match="device kernel image is invalid"):
        HipDevice().load(b"__CLANG_OFFLOAD_BUNDLE__ and no more")


def test_a_failed_launch_tells_and_the_device_goes_on(stub: Stub) -> None:
    device = HipDevice()
    kernel = device.kernel(device.load(SOURCE.encode()), "add")
    stub.fail_next_launch()
    with pytest.raises(ExecutionError, match=r"Stub DCU: hipModuleLaunchKernel: unspecified launch failure"):
        _add(device, kernel)
    np.testing.assert_array_equal(_add(device, kernel), EXPECTED)


def test_no_device(stub: Stub) -> None:
    stub.configure(devices=0)
    with pytest.raises(ExecutionError, match=r"no HIP device found: .*hy-smi"):
        open_device("hip")


def test_the_device_is_chosen_by_number(stub: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    stub.configure(devices=2)
    monkeypatch.setenv("CONVOPT_HIP_DEVICE", "1")
    device = HipDevice()
    device.allocate(16)
    calls = stub.calls()
    assert calls[calls.index("malloc 16") - 1] == "set device 1"
    for wrong in ("2", "first"):
        monkeypatch.setenv("CONVOPT_HIP_DEVICE", wrong)
        with pytest.raises(ExecutionError, match=f"CONVOPT_HIP_DEVICE={wrong}: there are 2 devices"):
            HipDevice()


def test_libraries_that_are_none(stub: Stub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CONVOPT_HIP_LIBRARY", str(tmp_path / "libamdhip64.so"))
    with pytest.raises(ExecutionError, match=r"CONVOPT_HIP_LIBRARY: .*cannot open"):
        open_device("hip")
    monkeypatch.setenv("CONVOPT_HIP_LIBRARY", "libm.so.6")
    with pytest.raises(ExecutionError, match=r"has no hip.*: it is no HIP runtime library"):
        open_device("hip")
    monkeypatch.delenv("CONVOPT_HIP_LIBRARY")
    monkeypatch.setattr(hip_library, "NAMES", ("libnothing.so",))
    hip_library._find.cache_clear()
    with pytest.raises(ExecutionError, match=r"no HIP runtime library found .* set ROCM_PATH"):
        open_device("hip")
    hip_library._find.cache_clear()


def test_code_objects_are_cached_by_source_flags_and_compiler(
    stub: Stub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CONVOPT_CACHE", str(tmp_path))
    compiler = hipcc.find_hipcc()
    assert compiler.version == "HIP version: 5.2.0-stub"
    first, compiled = hipcc.compile_source(SOURCE, compiler)
    assert compiled and hipcc.compile_source(SOURCE, compiler) == (first, False)
    other = hipcc.Hipcc(compiler.path, "6.0")
    paths = {hipcc.cached_path(s, c) for s in (SOURCE, SOURCE + "\n") for c in (compiler, other)}
    assert len(paths) == 4
    assert not list(hipcc.cached_path(SOURCE, compiler).parent.glob(".new-*"))


def test_compile_errors_name_the_kernel(stub: Stub) -> None:
    second = SOURCE[SOURCE.index("extern") :].replace("add(", "broken(").replace("10.0f", "ten")
    with pytest.raises(CompileError, match=r"^kernel broken: .*undeclared identifier 'ten'"):
        hipcc.compile_source(SOURCE + second, hipcc.find_hipcc())
    with pytest.raises(CompileError, match="does not say which chip"):
        hipcc.compile_source("int x;", hipcc.find_hipcc())


def test_a_toolkit_without_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(CompileError, match=f"no hipcc found: .*none in {tmp_path}"):
        hipcc.find_hipcc(tmp_path)
    monkeypatch.setenv("ROCM_PATH", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(hipcc, "TOOLKITS", ())
    with pytest.raises(CompileError, match="name the toolkit's folder by ROCM_PATH or --toolkit"):
        hipcc.find_hipcc()


def test_the_stub_is_called_as_the_vendors_compiler() -> None:
    line = hipcc.command("hipcc", "gfx928", "kernels.hip", "kernels.co")
    assert " ".join(line) == (
        "hipcc --genco -O3 -std=c++17 -fno-strict-aliasing --offload-arch=gfx928 kernels.hip -o kernels.co"
    )
    assert (FOLDER / "hipcc").is_file() and hip_device.is_code_object(b"\x7fELF")
