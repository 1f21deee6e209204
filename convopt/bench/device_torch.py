"""torch on a GPU as bench's peers: cuDNN's and MIOpen's convolutions, and inductor's.

A ROCm build of torch calls its devices cuda too, and MIOpen cudnn.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from convopt.bench.cases import Layout
from convopt.bench.device_engines import batched
from convopt.bench.engine import Prepared, Settings, Unavailable
from convopt.bench.torch_engines import frozen, refusals
from convopt.runtime.device import open_device
from convopt.targets import GPU_TARGETS

if TYPE_CHECKING:
    import onnx
    import torch

    from convopt.bench.engine import Arrays


class DeviceTorch:
    """Eager torch in inference_mode, channels-last tensors, benchmark mode."""

    name = "torch"
    layouts: tuple[Layout, ...] = ("NHWC",)
    packages: tuple[str, ...] = ("torch",)

    def prepare(self, model: onnx.ModelProto, inputs: Arrays, settings: Settings) -> Prepared:
        with refusals(self.name):
            return _prepared(model, inputs, settings, lambda module: module)


class MIOpen:
    """AMD's library through torch; in NCHW nothing is converted for it."""

    name = "miopen"
    layouts: tuple[Layout, ...] = ("NCHW", "NHWC")
    packages: tuple[str, ...] = ("torch",)

    def prepare(self, model: onnx.ModelProto, inputs: Arrays, settings: Settings) -> Prepared:
        if GPU_TARGETS[settings.target].kind not in ("hip", "rocm"):
            raise Unavailable(f"MIOpen is for AMD's and Hygon's devices, not for {settings.target}")
        with refusals(self.name):
            return _prepared(model, inputs, settings, lambda module: module, channels_last=False)


class DeviceInductor:
    """torch.compile with all of its autotuning, and frozen weights."""

    name = "inductor"
    layouts: tuple[Layout, ...] = ("NHWC",)
    packages: tuple[str, ...] = ("torch",)

    def prepare(self, model: onnx.ModelProto, inputs: Arrays, settings: Settings) -> Prepared:
        import torch

        def compiled(module: torch.fx.GraphModule) -> Callable[..., Any]:
            # Without graphs of its own: all engines' launches are captured alike.
            return torch.compile(module, mode="max-autotune-no-cudagraphs")

        with frozen(), refusals(self.name):
            return _prepared(model, inputs, settings, compiled)


def require_device(target: str) -> torch.device:
    """torch's name of the device that convopt computes on. Unavailable: torch can't use it; why."""
    import torch

    kind = GPU_TARGETS[target].kind
    if kind == "opencl":
        raise Unavailable("torch has no OpenCL devices")
    build, made_for = (
        ("CUDA", torch.version.cuda) if kind == "cuda" else ("ROCm", getattr(torch.version, "hip", None))
    )
    if made_for is None:
        raise Unavailable(f"torch {torch.__version__} is built without {build}")
    if not torch.cuda.is_available():
        raise Unavailable(f"torch {torch.__version__} for {build} {made_for} finds no device")
    return torch.device("cuda", open_device(kind).index or 0)


def _prepared(
    model: onnx.ModelProto,
    inputs: Arrays,
    settings: Settings,
    compiled: Callable[[torch.fx.GraphModule], Callable[..., Any]],
    channels_last: bool = True,
) -> Prepared:
    """The module on tensors that lie on the device; its launches as one graph where they can be captured.

    channels_last: 4-D tensors become that first, if they aren't.
    """
    device = require_device(settings.target)
    import torch
    from onnx import helper

    from convopt.bench.torch_graph import Untranslated, torch_module

    torch.backends.cudnn.benchmark = True
    allowed = settings.precision == "tf32"  # fp32 is float32
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = allowed
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(settings.precision, torch.float32)
    try:
        module = torch_module(model, dtype).to(device)
    except Untranslated as reason:
        raise Unavailable(f"torch: {reason}") from reason
    if not channels_last:
        for name, buffer in list(module.named_buffers()):
            module.register_buffer(name, buffer.contiguous())
    function = compiled(module)
    tensors = [torch.from_numpy(inputs[info.name]).to(device) for info in model.graph.input]
    # An NHWC model begins with a Transpose, a view here: its input is channels-last after that.
    starts_nchw = model.graph.node[0].op_type != "Transpose"
    is_converted = [channels_last and t.dim() == 4 and starts_nchw for t in tensors]
    kinds = [
        getattr(torch, helper.tensor_dtype_to_np_dtype(o.type.tensor_type.elem_type).name)
        for o in model.graph.output
    ]
    results: list[Any] = []

    def launch() -> None:
        with torch.inference_mode():
            arguments = (
                x.to(dtype, memory_format=torch.channels_last) if converted else x.to(dtype)
                for x, converted in zip(tensors, is_converted, strict=True)
            )
            found = function(*arguments)
            results[:] = [y.to(kind).contiguous() for y, kind in zip(found, kinds, strict=True)]

    launch = _captured(launch)

    def call() -> None:
        launch()
        torch.cuda.synchronize(device)

    events: Any = torch.cuda.Event

    def seconds(count: int) -> float:
        begin, end = events(enable_timing=True), events(enable_timing=True)
        begin.record()
        for _ in range(count):
            launch()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) * 1e-3

    call()
    return Prepared(call, lambda: [y.cpu().numpy() for y in results], batched(seconds))


def _captured(launch: Callable[[], None]) -> Callable[[], None]:
    """The launches as one graph; themselves where something inside can't be captured."""
    import torch

    streams: Any = torch.cuda.Stream
    aside = streams()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(3):  # algorithms are tried, code is compiled, memory is set aside
            launch()
    torch.cuda.current_stream().wait_stream(aside)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            launch()
    except RuntimeError:
        return launch
    return graph.replay
