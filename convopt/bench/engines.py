"""The engines that bench compares.

An engine that can't take part says why (`Unavailable`); the run goes on without it and the report names it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from convopt.bench.cases import Layout
from convopt.bench.engine import Engine, Prepared, Settings, Unavailable
from convopt.bench.torch_engines import Inductor, Torch

if TYPE_CHECKING:
    import onnx

    from convopt.bench.engine import Arrays
    from convopt.runtime.module import CompiledModule


class Convopt:
    """This project, through its public interface: numpy in, fresh numpy arrays out."""

    name = "convopt"
    layouts: tuple[Layout, ...] = ("NHWC",)
    packages: tuple[str, ...] = ("convopt",)

    def prepare(self, model: onnx.ModelProto, inputs: Arrays, settings: Settings) -> Prepared:
        import convopt

        shapes = {name: array.shape for name, array in inputs.items()}
        module = convopt.optimize(
            model,
            shapes=shapes,
            target="cpu",
            precision=settings.precision,
            threads=settings.threads,
            cache_dir=settings.cache_dir,
        )
        return module_call(module, inputs)


def module_call(module: CompiledModule, inputs: Arrays) -> Prepared:
    """A compiled module on these inputs."""
    results: dict[str, Any] = {}

    def call() -> None:
        results.clear()  # the outputs before are freed, as the peers' are written over
        results.update(module.run(inputs))

    return Prepared(call, lambda: [results[info.name].copy() for info in module.outputs])


class OnnxRuntime:
    """onnxruntime's CPU provider, all optimizations, inputs and outputs bound once (io_binding)."""

    name = "onnxruntime"
    layouts: tuple[Layout, ...] = ("NCHW",)
    packages: tuple[str, ...] = ("onnxruntime",)

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
    packages: tuple[str, ...] = ("openvino",)

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


ENGINES: dict[str, Engine] = {e.name: e for e in (Convopt(), OnnxRuntime(), OpenVino(), Torch(), Inductor())}
PEERS: Sequence[str] = tuple(name for name in ENGINES if name != "convopt")
