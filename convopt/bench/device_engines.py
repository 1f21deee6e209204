"""The engines that bench compares on a GPU: everything in its memory, timed by its own clock.

torch's are in `convopt.bench.device_torch`.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil
from typing import TYPE_CHECKING, Any

import numpy as np

from convopt.bench.bench_device import BenchDevice
from convopt.bench.cases import Layout
from convopt.bench.engine import Engine, Prepared, Settings, Unavailable
from convopt.runtime.device import Device
from convopt.schedules.base import TensorView
from convopt.schedules.conv_problem import ConvProblem
from convopt.schedules.gpu_conv_direct import GpuDirectConv
from convopt.schedules.primitives.expression import identity
from convopt.targets import GPU_TARGETS

if TYPE_CHECKING:
    import onnx

    from convopt.bench.engine import Arrays

SAMPLE_SECONDS = 1e-3  # of calls in a row between two events, so that what starts them does not count
MOST_CALLS = 200


def batched(seconds: Callable[[int], float]) -> Callable[[], float]:
    """A `Prepared.timed` of what measures so many calls in a row: the mean of one."""
    seconds(1)
    once = max(seconds(1), 1e-9)
    count = max(1, min(MOST_CALLS, ceil(SAMPLE_SECONDS / once)))
    return lambda: seconds(count) / count


class DeviceConvopt:
    """This project: a Program's launches, inputs and outputs in the device's memory."""

    name = "convopt"
    layouts: tuple[Layout, ...] = ("NHWC",)
    packages: tuple[str, ...] = ("convopt",)

    def prepare(self, model: onnx.ModelProto, inputs: Arrays, settings: Settings) -> Prepared:
        import convopt
        from convopt.runtime.device_program import DeviceContext, DeviceProgram

        shapes = {name: array.shape for name, array in inputs.items()}
        module = convopt.optimize(
            model,
            shapes=shapes,
            target=settings.target,
            precision=settings.precision,
            cache_dir=settings.cache_dir,
        )
        (loaded,) = module.programs
        assert isinstance(loaded, DeviceProgram)  # the target is a GPU
        context = DeviceContext(loaded, settings.threads)
        context.put([np.ascontiguousarray(inputs[spec.name]) for spec in loaded.program.inputs])
        on_host: list[Any] = []

        def launch() -> None:
            on_host[:] = context.launch()

        return _prepared(context.device, launch, lambda: context.fetch(on_host))


class Direct:
    """One thread per output, NCHW, no tiling: the contest's yardstick."""

    name = "direct"
    layouts: tuple[Layout, ...] = ("NCHW",)
    packages: tuple[str, ...] = ("convopt",)

    def prepare(self, model: onnx.ModelProto, inputs: Arrays, settings: Settings) -> Prepared:
        from onnx import numpy_helper

        if [node.op_type for node in model.graph.node] != ["Conv"]:
            raise Unavailable("direct takes single convolutions in NCHW")
        (x,) = inputs.values()
        weight = numpy_helper.to_array(model.graph.initializer[0])
        problem = _nchw_problem(model.graph, x, weight)
        bench = BenchDevice.open(GPU_TARGETS[settings.target], settings.cache_dir)
        schedule = GpuDirectConv()
        g = problem.groups
        normal = weight.astype(np.float32).reshape(g, -1, weight.shape[1], 1, *weight.shape[2:])
        packed = schedule.pack(problem, bench.target, normal, None)
        n, k, (h, w) = x.shape[0], weight.shape[0], problem.y.shape[3:5]
        y = np.zeros((n, k, h, w), x.dtype)
        launch, memory = bench.prepared(bench.code(schedule, problem), [x, *packed], [y])

        def outputs() -> list[np.ndarray[Any, Any]]:
            found = np.empty_like(y)
            bench.device.read(memory[-1], 0, found.reshape(-1).view(np.uint8))
            return [found]

        return _prepared(bench.device, launch, outputs)


def _prepared(
    device: Device, launch: Callable[[], None], outputs: Callable[[], list[np.ndarray[Any, Any]]]
) -> Prepared:
    def call() -> None:
        launch()
        device.synchronise()

    def seconds(count: int) -> float:
        def calls() -> None:
            for _ in range(count):
                launch()

        return device.time(calls)

    call()
    return Prepared(call, outputs, batched(seconds))


def _nchw_problem(
    graph: onnx.GraphProto, x: np.ndarray[Any, Any], weight: np.ndarray[Any, Any]
) -> ConvProblem:
    """The graph's one Conv as schedules see it, in NCHW."""
    from onnx import helper

    a = {attribute.name: helper.get_attribute_value(attribute) for attribute in graph.node[0].attribute}
    g = a["group"]
    n, k, h, w = (dim.dim_value for dim in graph.output[0].type.tensor_type.shape.dim)

    def view(channels: int, height: int, width: int) -> TensorView:
        image, per_group = height * width, channels // g
        strides = (per_group * image, channels * image, 0, width, 1, image)
        return TensorView((g, n, 1, height, width, per_group), strides, str(x.dtype))

    strides, dilations, pads = (
        (f, *a[name][:2]) for f, name in ((1, "strides"), (1, "dilations"), (0, "pads"))
    )
    kernel = (1, *weight.shape[2:])
    return ConvProblem(
        view(*x.shape[1:]), view(k, h, w), kernel, strides, dilations, pads, identity(), bias=False
    )


def device_engines() -> dict[str, Engine]:
    """By name; convopt is the first."""
    from convopt.bench.device_torch import DeviceInductor, DeviceTorch, MIOpen

    engines: tuple[Engine, ...] = (DeviceConvopt(), Direct(), DeviceTorch(), DeviceInductor(), MIOpen())
    return {engine.name: engine for engine in engines}
