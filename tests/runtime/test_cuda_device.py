"""The CUDA driver against a libcuda that computes on the host (libcuda_stub.c), in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent

PRELUDE = """
import numpy as np
from convopt.runtime.cuda_device import CudaDevice
from convopt.runtime.program import Launch

def put(device, array):
    memory = device.allocate(array.nbytes)
    device.write(memory, 0, array.view(np.uint8))
    return memory

def get(device, memory, count, offset=0):
    out = np.empty(count, np.float32)
    device.read(memory, offset, out.view(np.uint8))
    return out
"""

MODULE = """
from convopt.runtime.device_program import DeviceProgram, pack_binaries
from convopt.runtime.module import CompiledModule
from convopt.runtime.program import Address, KernelStep, Program, TensorSpec

def step(source, to, shared=0):
    return KernelStep("twice", (source, to), launch=Launch((2, 1, 1), (4, 1, 1), shared), binary="one")

spec = TensorSpec("x", "float32", (8,)), TensorSpec("y", "float32", (8,))
middle = Address("arena", 0, 64)
program = Program((spec[0],), (spec[1],), 128, 96, (
    step(Address("input", 0, 0), middle), step(middle, Address("output", 0, 0), 3),
), (), {"kind": "cuda"})
loaded = DeviceProgram(program, pack_binaries({"one": b"stub"}))
module = CompiledModule([loaded], threads=1, target="cuda:sm_90")
x = np.arange(8, dtype=np.float32)
"""


@pytest.fixture(scope="module")
def stub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("libcuda")
    library = folder / "libcuda.so.1"
    command = ["gcc", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", str(HERE / "libcuda_stub.c"), "-o"]
    subprocess.run([*command, str(library), "-ldl"], check=True)
    return folder


def _run(stub: Path, code: str) -> None:
    environment = {**os.environ, "LD_LIBRARY_PATH": str(stub)}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PRELUDE + code], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr


def test_memory_kernels_and_their_arguments(stub: Path) -> None:
    _run(
        stub,
        """
device = CudaDevice()
assert device.name == "stub"
assert not get(device, device.allocate(32), 8).any(), "memory comes zeroed"
x = np.arange(8, dtype=np.float32)
memory, out = put(device, x), device.allocate(64)
kernel = device.kernel(device.load(b"stub"), "twice")
launch = Launch((1, 1, 1), (7, 1, 1), 5)
assert device.time(lambda: device.launch(kernel, launch, [(memory, 4), (out, 8)])) == 2.5e-3
assert np.array_equal(get(device, out, 8, 8), [*(2 * x[1:] + 5), 0])
large = Launch((1, 1, 1), (1, 1, 1), 100 << 10)  # more than a kernel has without asking
device.launch(kernel, large, [(memory, 0), (out, 0)])
assert get(device, out, 1)[0] == 100 << 10
""",
    )


def test_errors_name_what_the_driver_said(stub: Path) -> None:
    _run(
        stub,
        """
import pytest
from convopt.errors import ExecutionError
device = CudaDevice()
with pytest.raises(ExecutionError, match="compile for its own architecture"):
    device.load(b"another chip's")
with pytest.raises(ExecutionError, match="cuModuleGetFunction: CUDA_ERROR_NOT_FOUND"):
    device.kernel(device.load(b"stub"), "thrice")
with pytest.raises(MemoryError, match="stub can't set aside"):
    device.allocate(1 << 50)
""",
    )


def test_a_program_runs_as_one_graph(stub: Path) -> None:
    _run(
        stub,
        MODULE
        + """
for scale in (1, 3):  # the second run replays what the first has captured
    assert np.array_equal(module(scale * x), 4 * scale * x + 3)
assert [step.seconds for step in module.profile(x, runs=2).steps] == [2.5e-3, 2.5e-3]
""",
    )


def test_nothing_is_left_behind(stub: Path) -> None:
    """Neither by a capture whose work or whose graph fails, nor by modules and Programs that are gone."""
    _run(
        stub,
        MODULE
        + """
import ctypes, gc
import pytest
from convopt.errors import ExecutionError
library = ctypes.CDLL("libcuda.so.1")
def alive():  # memory, modules, graphs, executable graphs, events, streams
    gc.collect()
    return [library.stub_alive(kind) for kind in range(6)]

device = CudaDevice()
before = alive()
def fails():
    raise RuntimeError("of the caller's")
with pytest.raises(RuntimeError, match="of the caller's"):
    device.capture(fails)
assert alive() == before and not library.stub_capturing()
kernel, memory = device.kernel(device.load(b"stub"), "twice"), device.allocate(8)
places = [(memory, 0), (memory, 4)]
with pytest.raises(ExecutionError, match="cuLaunchKernel: CUDA_ERROR_INVALID_VALUE"):
    device.capture(lambda: device.launch(kernel, Launch((1, 2, 1), (1, 1, 1), 0), places))
del kernel, memory, places
assert alive() == before and not library.stub_capturing()
library.stub_fail_instantiate(1)
with pytest.raises(ExecutionError, match="cuGraphInstantiate: CUDA_ERROR_OUT_OF_MEMORY"):
    device.capture(lambda: None)
library.stub_fail_instantiate(0)
assert alive() == before
with pytest.raises(ExecutionError, match="cuModuleGetFunction"):
    device.kernel(device.load(b"stub"), "thrice")
assert alive() == before

def kept():  # by nothing but the device itself
    assert np.array_equal(CompiledModule([loaded], threads=1, target="cuda:sm_90")(x), 4 * x + 3)
kept()
loaded._resident = None
assert alive() == before
replay = device.capture(lambda: None)
assert alive()[2:4] == [0, 1]
del replay
assert alive() == before
""",
    )


ISLAND = """
import ctypes, logging
import onnxruntime
from convopt.runtime.program import IslandStep
library = ctypes.CDLL("libcuda.so.1")
vector = TensorSpec("v", "float32", (8,))
other = Address("arena", 0, 0)
program = Program((spec[0],), (spec[1],), 128, 96, (
    step(Address("input", 0, 0), middle),
    IslandStep(0, ((vector, middle),), ((TensorSpec("w", "float32", (8,)), other),), ("cum",), "onnxruntime"),
    step(other, Address("output", 0, 0), 3),
), (), {"kind": "cuda"})

class Session:  # of a CUDA build: it adds 1 on the device, which is the host's memory here
    works = True
    def __init__(self, model, options, providers):
        assert providers[0] == ("CUDAExecutionProvider", {"device_id": 0})
    def get_providers(self):
        return ["CUDAExecutionProvider", "CPUExecutionProvider"][not self.works:]
    def io_binding(self):
        return Binding()
    def run_with_iobinding(self, binding):
        binding.arrays["w"][:] = binding.arrays["v"] + 1

class Binding:
    def __init__(self):
        self.arrays = {}
    def bind_input(self, name, device, number, dtype, shape, pointer):
        assert (device, number, dtype, shape) == ("cuda", 0, np.float32, [8])
        self.arrays[name] = np.ctypeslib.as_array((ctypes.c_float * 8).from_address(pointer))
    bind_output = bind_input
    def synchronize_outputs(self):
        pass

class OnTheCpu:
    def __init__(self, model, options, providers):
        assert providers == ["CPUExecutionProvider"]
    def run(self, names, feeds):
        assert names == ["w"]
        return [feeds["v"] + 1]

def sessions(model, options, providers):
    return (OnTheCpu if providers == ["CPUExecutionProvider"] else Session)(model, options, providers)

onnxruntime.get_available_providers = lambda: ["CUDAExecutionProvider", "CPUExecutionProvider"]
onnxruntime.InferenceSession = sessions

def ran():  # the copies of a run, and what the summary says
    loaded = DeviceProgram(program, pack_binaries({"one": b"stub"}), b"", (b"model",))
    module = CompiledModule([loaded], threads=1, target="cuda:sm_90")
    module(x)
    before = library.stub_copies()
    assert np.array_equal(module(x), 2 * (2 * x + 1) + 3)
    return library.stub_copies() - before, module.summary()
"""


def test_islands_run_in_the_devices_provider(stub: Path) -> None:
    """Input and output of the module are copied, nothing for the island."""
    _run(
        stub,
        MODULE
        + ISLAND
        + """
copies, text = ran()
assert copies == 2 and "1 islands in CUDAExecutionProvider without copies" in text, (copies, text)
""",
    )


def test_islands_run_on_the_cpu_where_the_provider_does_not_start(stub: Path) -> None:
    _run(
        stub,
        MODULE
        + ISLAND
        + """
Session.works = False
copies, text = ran()
assert copies == 4 and "1 islands on the CPU, 2 copies between it and the device" in text, (copies, text)
""",
    )


def test_arrays_on_the_device_stay_there(stub: Path) -> None:
    """A library with cupy's name, whose arrays lie in the host's memory as the stub's do."""
    _run(
        stub,
        MODULE
        + """
import contextlib, sys, types
import pytest
from convopt.errors import InputError

class Device(contextlib.nullcontext):
    id = 0

class Array:
    device = Device()
    def __init__(self, array):
        self.array = array
    @property
    def __cuda_array_interface__(self):
        return {**self.array.__array_interface__, "version": 3}

Array.__module__ = "cupy"
cupy = types.ModuleType("cupy")
cupy.empty = lambda shape, dtype: Array(np.empty(shape, dtype))
cupy.ascontiguousarray = lambda a: Array(np.ascontiguousarray(a.array))
stream = types.SimpleNamespace(ptr=0)  # the default stream, which can't be captured
runtime = types.SimpleNamespace(getDeviceProperties=lambda number: {"name": b"stub", "major": 9, "minor": 0})
cupy.cuda = types.SimpleNamespace(get_current_stream=lambda: stream, runtime=runtime)
sys.modules["cupy"] = cupy

for scale in (1, 3):
    result = module(Array(scale * x))
    assert isinstance(result, Array) and np.array_equal(result.array, 4 * scale * x + 3)
strided = np.zeros((8, 2), np.float32)
strided[:, 0] = x
assert np.array_equal(module(Array(strided[:, 0])).array, 4 * x + 3)
with pytest.raises(InputError, match="expected dtype float32, got float64"):
    module(Array(x.astype(np.float64)))
with pytest.raises(InputError, match="expected rank 1"):
    module(Array(x[None]))
from convopt.arguments import target_of
assert target_of(Array(x)) == "cuda:sm_90" and target_of(x) is None
Device.id = 1
with pytest.raises(InputError, match="an input is on device 1, .* set CONVOPT_CUDA_DEVICE"):
    module(Array(x))
""",
    )


def test_torch_tensors_by_their_pointers(stub: Path) -> None:
    """CPU tensors, whose memory is the stub's device's, taken for tensors on it."""
    pytest.importorskip("torch")
    _run(
        stub,
        MODULE
        + """
import warnings
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import torch
import pytest
from convopt.errors import InputError
from convopt.runtime import device_arrays, device_program, module as modules
for place in (device_arrays, modules):
    place.lives_on_device = lambda value: isinstance(value, torch.Tensor)
device_program.device_number = lambda value: 0
device_program.current_stream = lambda value: 0

t = torch.from_numpy(x.copy())
result = module(t)
assert isinstance(result, torch.Tensor) and torch.equal(result, 4 * t + 3)
assert torch.equal(module(torch.stack([t, -t], 1)[:, 0]), 4 * t + 3), "strided"
with pytest.raises(InputError, match="wants a gradient, which no output has: give x.detach"):
    module(t.clone().requires_grad_())
with pytest.raises(InputError, match="expected dtype float32, got bfloat16"):
    module(t.bfloat16())
with pytest.raises(InputError, match="expected rank 1"):
    module(t[None])
""",
    )


def test_without_a_driver_the_remedy_is_said() -> None:
    code = """
import pytest
from convopt.errors import ExecutionError
with pytest.raises(ExecutionError, match="no NVIDIA GPU can be used here"):
    CudaDevice()
"""
    environment = {**os.environ, "CONVOPT_CUDA_DEVICE": "99"}  # also where there is a GPU
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + code], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr
