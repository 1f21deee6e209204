"""torch as a peer: eager on channels-last tensors, and inductor with freezing.

Both take the ONNX models that `convopt.bench.torch_graph` translates: the suites' convolutions, the networks,
and files that hold only their operators.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from convopt.bench.cases import Layout
from convopt.bench.engine import Prepared, Settings, Unavailable

if TYPE_CHECKING:
    import onnx
    import torch

    from convopt.bench.engine import Arrays


class Torch:
    """Eager torch in inference_mode; 4-D inputs become channels-last in each call, outputs float32 again."""

    name = "torch"
    layouts: tuple[Layout, ...] = ("NHWC",)
    packages: tuple[str, ...] = ("torch",)

    def prepare(self, model: onnx.ModelProto, inputs: Arrays, settings: Settings) -> Prepared:
        return _prepared(model, inputs, settings, lambda module: module)


class Inductor:
    """torch.compile with frozen weights, which folds normalizations and packs weights for oneDNN.

    A single convolution gains nothing that its minute of compiling is worth: whole models only.
    """

    name = "inductor"
    layouts: tuple[Layout, ...] = ("NHWC",)
    packages: tuple[str, ...] = ("torch",)

    def prepare(self, model: onnx.ModelProto, inputs: Arrays, settings: Settings) -> Prepared:
        import torch

        if sum(node.op_type != "Transpose" for node in model.graph.node) == 1:
            raise Unavailable("inductor takes part with whole models only; torch runs single convolutions")
        with frozen(), refusals("inductor"):
            return _prepared(model, inputs, settings, torch.compile)


@contextlib.contextmanager
def refusals(name: str) -> Iterator[None]:
    """What torch raises inside is an Unavailable of the engine outside."""
    try:
        yield
    except Exception as error:  # dynamo's, inductor's and the C++ compiler's have no common base
        if isinstance(error, Unavailable):
            raise
        raise Unavailable(f"{name} refuses the model: {_last_line(error)}") from error


def _last_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[-1]


@contextlib.contextmanager
def frozen(**more: Any) -> Iterator[None]:
    """Inductor treats weights as constants inside. more: other settings of it."""
    import torch._inductor.config as config

    with config.patch(freezing=True, **more):
        yield


def _prepared(
    model: onnx.ModelProto,
    inputs: Arrays,
    settings: Settings,
    compiled: Callable[[torch.fx.GraphModule], Callable[..., Any]],
) -> Prepared:
    """One call runs the module on the inputs, which compiles what compiles at its first call: now."""
    import numpy as np
    import torch

    from convopt.bench.torch_graph import Untranslated, torch_module

    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[settings.precision]
    torch.set_num_threads(settings.threads)
    try:
        module = torch_module(model, dtype)
    except Untranslated as reason:
        raise Unavailable(f"torch: {reason}") from reason
    function = compiled(module)
    tensors = [torch.from_numpy(inputs[info.name]) for info in model.graph.input]
    # An NHWC model begins with a Transpose, a view here: its input is channels-last after that.
    is_nchw = [t.dim() == 4 and model.graph.node[0].op_type != "Transpose" for t in tensors]
    results: list[Any] = []

    def call() -> None:
        with torch.inference_mode():
            arguments = (
                x.to(dtype, memory_format=torch.channels_last) if last else x.to(dtype)
                for x, last in zip(tensors, is_nchw, strict=True)
            )
            results[:] = [y.float().contiguous() for y in function(*arguments)]

    call()
    return Prepared(call, lambda: [np.array(y.numpy()) for y in results])
