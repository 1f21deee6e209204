"""Whole models on a device: the same groups and Program, fallback islands with copies, artifacts."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper, parser

import convopt
from convopt.bench.real_models import MODELS, fetch
from convopt.errors import ArtifactError, DeviceMissing, ExecutionError, InputError
from convopt.runtime.device_program import DeviceProgram, islands_on_cpu, pack_binaries
from convopt.runtime.program import IslandStep, KernelStep
from convopt.runtime.program_json import from_json, to_json

SHAPE = (2, 3, 9, 10)


def _model(with_island: bool = False) -> onnx.ModelProto:
    """Convolutions, pools, a concatenation, a softmax, a matrix product, a resize; every kind of kernel.

    with_island: an operator without a kernel between two that have one.
    """
    rng = np.random.default_rng(0)
    constants = {
        "w1": rng.normal(size=(6, 3, 3, 3)) * 0.3,
        "b1": rng.normal(size=6),
        "w2": rng.normal(size=(5, 6, 1, 1)),
        "w3": rng.normal(size=(11, 1, 3, 3)),
        "m": rng.normal(size=(20, 7)),
        "scales": np.array([1, 1, 2, 2]),
    }
    node = helper.make_node
    nodes = [
        node("Conv", ["x", "w1", "b1"], ["a"], name="conv1", pads=[1, 1, 1, 1]),
        node("Relu", ["a"], ["b"], name="relu"),
        node("MaxPool", ["b"], ["c"], name="pool", kernel_shape=[2, 2], strides=[2, 2]),
        node("Conv", ["c", "w2"], ["d"], name="conv2"),
        node(
            "CumSum" if with_island else "Sigmoid",
            ["d", *(["axis"] if with_island else [])],
            ["e"],
            name="middle",
        ),
        node("Concat", ["c", "e"], ["f"], name="concat", axis=1),
        node("Conv", ["f", "w3"], ["depthwise"], name="conv3", group=11, pads=[1, 1, 1, 1]),
        node("GlobalAveragePool", ["depthwise"], ["pooled"], name="global"),
        node("Softmax", ["e"], ["s"], name="softmax", axis=1),
        node("Resize", ["e", "", "scales"], ["large"], name="resize", mode="linear"),
        node("Reshape", ["e", "rows"], ["flat"], name="reshape"),
        node("MatMul", ["flat", "m"], ["product"], name="matmul"),
        node("Transpose", ["flat"], ["turned"], name="transpose", perm=[0, 2, 1]),
        node("MatMul", ["flat", "turned"], ["gram"], name="gram_matrix"),
    ]
    initializers = [numpy_helper.from_array(a.astype(np.float32), n) for n, a in constants.items()]
    initializers.append(numpy_helper.from_array(np.array([2, 5, 20]), "rows"))
    if with_island:
        initializers.append(numpy_helper.from_array(np.array(1), "axis"))
    outputs = ("pooled", "s", "large", "product", "gram")
    graph = helper.make_graph(
        nodes,
        "every_kind",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, SHAPE)],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        initializers,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _input(seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).uniform(-1, 1, SHAPE).astype(np.float32)


def _expected(model: onnx.ModelProto, x: np.ndarray[Any, Any]) -> list[np.ndarray[Any, Any]]:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    results: list[np.ndarray[Any, Any]] = session.run(None, {"x": x})
    return results


def _close(found: Any, expected: Any, tolerance: float = 1e-5) -> None:
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype and one.shape == other.shape
        assert np.abs(one - other).max() <= tolerance * max(1.0, float(np.abs(other).max()))


@pytest.fixture(scope="module")
def compiled() -> convopt.CompiledModule:
    return convopt.optimize(_model(), target="opencl")


@pytest.mark.opencl
def test_every_kind_of_kernel_equals_onnxruntime(compiled: convopt.CompiledModule) -> None:
    for seed in (0, 1):  # the arena is not zeroed between
        _close(compiled(_input(seed)), _expected(_model(), _input(seed)))
    assert {place.where for place in compiled.placement} <= {"compiled", "view"}
    assert "on opencl" in compiled.summary() and " 0 islands" in compiled.summary()


@pytest.mark.opencl
def test_threads_have_a_context_each(compiled: convopt.CompiledModule) -> None:
    inputs = [_input(seed) for seed in range(4)]
    expected = [compiled(x) for x in inputs]
    with ThreadPoolExecutor(4) as pool:
        for found, wanted in zip(pool.map(compiled, inputs * 2), expected * 2, strict=True):
            assert all(np.array_equal(a, b) for a, b in zip(found, wanted, strict=True))


@pytest.mark.opencl
def test_an_artifact_runs_as_what_it_was_saved_from(compiled: convopt.CompiledModule, tmp_path: Path) -> None:
    compiled.save(tmp_path / "m.convopt")
    loaded = convopt.load(tmp_path / "m.convopt")
    assert loaded.target == "opencl"
    assert all(np.array_equal(a, b) for a, b in zip(loaded(_input()), compiled(_input()), strict=True))
    profile = loaded.profile(_input(), runs=1)
    assert len(profile.steps) == len(loaded.programs[0].program.steps)
    assert all(step.seconds > 0 for step in profile.steps)


@pytest.mark.opencl
def test_islands_run_on_the_cpu_and_their_copies_are_counted() -> None:
    model = _model(with_island=True)
    module = convopt.optimize(model, target="opencl", verify="raise")
    _close(module(_input()), _expected(model, _input()))
    (loaded,) = module.programs
    islands = [step for step in loaded.program.steps if isinstance(step, IslandStep)]
    assert [step.nodes for step in islands] == [("middle",)]
    assert isinstance(loaded, DeviceProgram) and islands_on_cpu(loaded) == islands
    assert "1 islands on the CPU, 2 copies between it and the device" in module.summary()
    assert all(step.seconds > 0 for step in module.profile(_input(), runs=1).steps)


@pytest.mark.opencl
@pytest.mark.parametrize(
    ("precision", "tolerance"), [("fp16", 4e-3), pytest.param("bf16", 3e-2, marks=pytest.mark.slow)]
)
def test_sixteen_bits_are_half_the_arena(
    compiled: convopt.CompiledModule, precision: str, tolerance: float
) -> None:
    module = convopt.optimize(_model(), target="opencl", precision=precision)
    _close(module(_input()), _expected(_model(), _input()), tolerance)
    narrow, wide = (m.programs[0].program.arena_bytes for m in (module, compiled))
    assert narrow < 0.75 * wide


def _two_kernels() -> onnx.ModelProto:
    """A convolution and a product of computed matrices: each takes seconds to compile for a GPU."""
    weight = np.random.default_rng(0).normal(size=(8, 3, 3, 3)).astype(np.float32)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], name="conv"),
        helper.make_node("Relu", ["c"], ["y"], name="relu"),
        helper.make_node("MatMul", ["x", "z"], ["product"], name="matmul"),
    ]
    infos = {"x": SHAPE, "z": (*SHAPE[:2], SHAPE[3], 7), "y": None, "product": None}
    x, z, *outputs = (helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in infos.items())
    graph = helper.make_graph(nodes, "small", [x, z], outputs, [numpy_helper.from_array(weight, "w")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.compilers
@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("target", ["cuda:sm_90", "rocm:gfx90a"])
def test_every_kind_of_kernel_is_compiled_for_a_gpu(target: str, precision: str) -> None:
    module = convopt.optimize(_model(), target=target, precision=precision)
    assert {place.where for place in module.placement} <= {"compiled", "view"}


@pytest.mark.compilers
@pytest.mark.parametrize("target", ["cuda:sm_90", "rocm:gfx90a"])
def test_an_artifact_for_a_gpu_is_made_without_one(target: str, tmp_path: Path) -> None:
    module = convopt.optimize(_two_kernels(), target=target, verify=True)
    kind = target.partition(":")[0]
    if "not verified" not in module.summary():
        pytest.skip(f"there is a {kind} device here")
    module.save(tmp_path / "m.convopt")
    loaded = convopt.load(tmp_path / "m.convopt")
    assert repr(loaded) == repr(module) and f"on {target}" in loaded.summary()
    with pytest.raises(ExecutionError):
        loaded(_input(), np.zeros((2, 3, 10, 7), np.float32))
    with pytest.raises(DeviceMissing, match="can't verify"):
        convopt.optimize(_two_kernels(), target=target, verify="raise")


@pytest.mark.gpu
@pytest.mark.parametrize(("precision", "tolerance"), [("fp32", 1e-5), ("fp16", 4e-3), ("bf16", 3e-2)])
def test_cuda_equals_onnxruntime(precision: str, tolerance: float) -> None:
    from convopt.runtime.cuda_device import this_gpu

    module = convopt.optimize(_model(), target=this_gpu(), precision=precision)
    for seed in (0, 1):
        _close(module(_input(seed)), _expected(_model(), _input(seed)), tolerance)


@pytest.mark.gpu
def test_torch_tensors_stay_on_the_gpu() -> None:
    torch = pytest.importorskip("torch")
    from convopt.runtime.cuda_device import this_gpu

    module = convopt.optimize(_model(), target=this_gpu())
    results = module(torch.from_numpy(_input()).cuda())
    assert all(r.is_cuda for r in results)
    _close([r.cpu().numpy() for r in results], _expected(_model(), _input()))


@pytest.mark.compilers
def test_tf32_is_for_all_products_but_those_that_keep_float32() -> None:
    units: dict[str, str] = {}

    def observe(calls: Any) -> None:
        units.update({c.call.label: c.call.schedule.unit for c in calls if hasattr(c.call.schedule, "unit")})

    rng = np.random.default_rng(0)
    model = parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
        net (float[4,128,28,28] x) => (float[4,96,26,26] y) { a = Conv(x, v)  y = Conv(a, w) }""")
    for name, shape in {"v": (192, 128, 1, 1), "w": (96, 192, 3, 3)}.items():
        model.graph.initializer.append(numpy_helper.from_array(rng.normal(size=shape).astype("f"), name))
    model.graph.node[1].name = "second"
    options = {"target": "cuda:sm_80", "precision": "tf32", "keep_fp32": ["second"], "verify": False}
    convopt.optimize(model, observe=observe, **options)
    assert sorted(units.values()) == ["mma.m16n8k8", "simt"]
    (kept,) = (label for label, unit in units.items() if unit == "simt")
    assert "192->96" in kept


def test_wrong_targets_and_options_are_said() -> None:
    with pytest.raises(InputError, match="target 'tpu' is not known; expected cpu, cuda, rocm, hip, dcu"):
        convopt.optimize(_model(), target="tpu")
    for target in ("opencl", "cpu"):
        with pytest.raises(InputError, match=r'"tf32": .* has no matrix unit that multiplies in it'):
            convopt.optimize(_model(), target=target, precision="tf32")
    with pytest.raises(DeviceMissing, match=r"tune measures on this machine: no HIP .* `convopt worker`"):
        convopt.optimize(_model(), target="dcu:k100-ai", tune=1.0)


@pytest.mark.opencl
def test_a_program_survives_json_and_damage_is_noticed(compiled: convopt.CompiledModule) -> None:
    (loaded,) = compiled.programs
    program = loaded.program
    assert from_json(to_json(program)) == program
    assert all(isinstance(s, KernelStep) and s.launch is not None for s in program.steps)
    with pytest.raises(ArtifactError, match="has no code for a device"):
        DeviceProgram(program, pack_binaries({}), loaded.weights)
    with pytest.raises(ArtifactError, match="device code is damaged"):
        DeviceProgram(program, b"no archive", loaded.weights)


@pytest.mark.opencl
@pytest.mark.slow
@pytest.mark.parametrize("name", ["pnet", "rnet", "onet", "cls"])
def test_real_models_equal_onnxruntime(name: str) -> None:
    path, shapes = fetch(name), MODELS[name].shapes[0]
    module = convopt.optimize(path, shapes, target="opencl")
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(0)
    feeds = {n: rng.uniform(-1, 1, shape).astype(np.float32) for n, shape in shapes.items()}
    expected = session.run([info.name for info in module.outputs], feeds)
    _close(module.run(feeds).values(), expected)
    assert not [place for place in module.placement if place.where == "fallback"]
