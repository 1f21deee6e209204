"""The engines that bench compares: each makes, from one static ONNX model, a call ready to be timed.

An engine that can't take part says why (`Unavailable`); the run goes on without it and the report names it.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from convopt.bench.cases import Layout

if TYPE_CHECKING:
    import numpy as np
    import onnx

    from convopt.runtime.module import CompiledModule

    Arrays = dict[str, np.ndarray[Any, Any]]


class Unavailable(Exception):
    """The engine can't run this; the text says why."""


@dataclass(frozen=True)
class Settings:
    """What all engines of a run are given alike."""

    threads: int
    precision: str  # fp32, bf16 or fp16: what an engine may compute with inside


@dataclass(frozen=True)
class Prepared:
    """`call()` is what gets timed; `outputs()` copies the last call's results, in the model's order."""

    call: Callable[[], object]
    outputs: Callable[[], list[np.ndarray[Any, Any]]]


class Engine(Protocol):
    """`layouts`: how a single conv's input and output may lie in memory; the faster one counts."""

    name: str
    layouts: tuple[Layout, ...]

    def version(self) -> str:
        """Raises Unavailable where the engine isn't installed."""
        ...

    def prepare(self, model: onnx.ModelProto, inputs: Arrays, settings: Settings) -> Prepared: ...


def _installed_version(package: str) -> str:
    if importlib.util.find_spec(package.replace("-", "_")) is None:
        raise Unavailable(f"{package} is not installed")
    return importlib.metadata.version(package)


class Convopt:
    """This project, through its public interface: numpy in, fresh numpy arrays out."""

    name = "convopt"
    layouts: tuple[Layout, ...] = ("NHWC",)

    def version(self) -> str:
        import convopt

        return convopt.__version__

    def prepare(self, model: onnx.ModelProto, inputs: Arrays, settings: Settings) -> Prepared:
        import convopt

        shapes = {name: array.shape for name, array in inputs.items()}
        module = convopt.optimize(
            model, shapes=shapes, target="cpu", precision=settings.precision, threads=settings.threads
        )
        return module_call(module, inputs)


def module_call(module: CompiledModule, inputs: Arrays) -> Prepared:
    """A compiled module on these inputs."""
    results: dict[str, Any] = {}

    def call() -> None:
        results.update(module.run(inputs))

    return Prepared(call, lambda: [results[info.name].copy() for info in module.outputs])


class OnnxRuntime:
    """onnxruntime's CPU provider, all optimizations, inputs and outputs bound once (io_binding)."""

    name = "onnxruntime"
    layouts: tuple[Layout, ...] = ("NCHW",)

    def version(self) -> str:
        return _installed_version("onnxruntime")

    def prepare(self, model: onnx.ModelProto, inputs: Arrays, settings: Settings) -> Prepared:
        if settings.precision != "fp32":
            raise Unavailable(f"onnxruntime has no {settings.precision} hint for a float32 model on the CPU")
        return onnxruntime_call(model, inputs, settings.threads, optimize=True)


def onnxruntime_call(model: onnx.ModelProto, inputs: Arrays, threads: int, *, optimize: bool) -> Prepared:
    """A bound onnxruntime session; without `optimize` it is the reference of every error."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    level = ort.GraphOptimizationLevel
    options.graph_optimization_level = level.ORT_ENABLE_ALL if optimize else level.ORT_DISABLE_ALL
    try:
        session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        binding = session.io_binding()
        for name, array in inputs.items():
            binding.bind_ortvalue_input(name, ort.OrtValue.ortvalue_from_numpy(array))
        for output in session.get_outputs():
            binding.bind_output(output.name)
        session.run_with_iobinding(binding)
    except Exception as error:  # onnxruntime's errors have no common base of their own
        raise Unavailable(f"onnxruntime refuses the model: {error}") from error
    # Outputs of the first run are bound as buffers: no later call allocates.
    for output, value in zip(session.get_outputs(), binding.get_outputs(), strict=True):
        binding.bind_ortvalue_output(output.name, value)
    return Prepared(
        lambda: session.run_with_iobinding(binding),
        lambda: [value.numpy().copy() for value in binding.get_outputs()],
    )


class OpenVino:
    """OpenVINO's CPU plugin: LATENCY hint, one stream, N threads, precision as a hint."""

    name = "openvino"
    layouts: tuple[Layout, ...] = ("NCHW", "NHWC")

    def version(self) -> str:
        return _installed_version("openvino")

    def prepare(self, model: onnx.ModelProto, inputs: Arrays, settings: Settings) -> Prepared:
        import openvino as ov

        config = {
            "PERFORMANCE_HINT": "LATENCY",
            "NUM_STREAMS": 1,
            "INFERENCE_NUM_THREADS": settings.threads,
            "INFERENCE_PRECISION_HINT": {"fp32": "f32", "bf16": "bf16", "fp16": "f16"}[settings.precision],
        }
        core = ov.Core()
        try:
            network = core.read_model(model.SerializeToString())
            network.reshape({name: list(array.shape) for name, array in inputs.items()})
            request = core.compile_model(network, "CPU", config).create_infer_request()
        except RuntimeError as error:
            raise Unavailable(f"openvino refuses the model: {str(error).strip().splitlines()[-1]}") from error
        for name, array in inputs.items():
            request.set_tensor(name, ov.Tensor(array, shared_memory=True))
        count = len(network.outputs)
        return Prepared(
            request.infer, lambda: [request.get_output_tensor(i).data.copy() for i in range(count)]
        )


class Torch:
    """Eager torch for a single conv: inference_mode, channels_last inside.

    Whole networks would go through inductor with freezing, but torch reads no ONNX files: they are refused.
    """

    name = "torch"
    layouts: tuple[Layout, ...] = ("NHWC",)

    def version(self) -> str:
        return _installed_version("torch")

    def prepare(self, model: onnx.ModelProto, inputs: Arrays, settings: Settings) -> Prepared:
        import numpy as np
        import torch
        from onnx import helper, numpy_helper

        convs = [node for node in model.graph.node if node.op_type != "Transpose"]
        if [node.op_type for node in convs] != ["Conv"] or len(inputs) != 1:
            raise Unavailable("torch reads no ONNX files; it takes part in --conv and --suite only")
        attributes = {a.name: helper.get_attribute_value(a) for a in convs[0].attribute}
        dtype = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[settings.precision]
        torch.set_num_threads(settings.threads)
        weight_array = numpy_helper.to_array(model.graph.initializer[0])
        weight = torch.from_numpy(weight_array.copy()).to(dtype, memory_format=torch.channels_last)
        channels_last_io = len(convs) != len(model.graph.node)
        x = torch.from_numpy(next(iter(inputs.values())))
        if channels_last_io:
            x = x.permute(0, 3, 1, 2)  # a view: N x C x H x W over channels-last memory
        result: list[Any] = [None]

        def call() -> None:
            with torch.inference_mode():
                y = torch.nn.functional.conv2d(
                    x.to(dtype, memory_format=torch.channels_last),
                    weight,
                    stride=attributes["strides"],
                    padding=attributes["pads"][:2],
                    dilation=attributes["dilations"],
                    groups=attributes["group"],
                )
                y = y.float()
                result[0] = y.permute(0, 2, 3, 1) if channels_last_io else y.contiguous()

        return Prepared(call, lambda: [np.ascontiguousarray(result[0].numpy())])


ENGINES: dict[str, Engine] = {e.name: e for e in (Convopt(), OnnxRuntime(), OpenVino(), Torch())}
PEERS: Sequence[str] = tuple(name for name in ENGINES if name != "convopt")
