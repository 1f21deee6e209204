"""torch modules through torch.compile: convopt as its backend, inductor, and eager torch beside them.

Tensors in, tensors out: the input is channels-last, outputs stay as they come.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from convopt.bench.cases import Layout
from convopt.bench.engine import Prepared, Settings
from convopt.bench.torch_engines import frozen, refusals

if TYPE_CHECKING:
    import torch

    Compile = Callable[[torch.nn.Module, Settings], Callable[..., Any]]


@dataclass(frozen=True)
class ModuleEngine:
    """What `compile_module` makes of a module, called in inference_mode. Frozen: see `torch_engines`."""

    name: str
    compile_module: Compile
    layouts: tuple[Layout, ...] = ("NHWC",)
    packages: tuple[str, ...] = ("torch",)

    def prepare(
        self, module: torch.nn.Module, inputs: Mapping[str, torch.Tensor], settings: Settings
    ) -> Prepared:
        """The module is not changed. The first call, which compiles, takes place here."""
        import copy

        import torch

        dtype = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[settings.precision]
        torch.set_num_threads(settings.threads)
        function = self.compile_module(copy.deepcopy(module).to(dtype), settings)
        arguments = [x.to(dtype) for x in inputs.values()]
        results: list[Any] = []

        def call() -> None:
            with torch.inference_mode():
                results[:] = [function(*arguments)]

        with frozen(), refusals(self.name):
            call()
        return Prepared(call, lambda: arrays(results[0]))


def arrays(result: Any) -> list[Any]:
    """A module's result, a tensor or a tuple of them, as float32 arrays."""
    tensors = result if isinstance(result, (tuple, list)) else [result]
    return [tensor.float().contiguous().numpy().copy() for tensor in tensors]


def _eager(module: torch.nn.Module, settings: Settings) -> Callable[..., Any]:
    del settings
    return module


def _inductor(module: torch.nn.Module, settings: Settings) -> Callable[..., Any]:
    import torch

    del settings
    compiled: Callable[..., Any] = torch.compile(module)
    return compiled


def _convopt(module: torch.nn.Module, settings: Settings) -> Callable[..., Any]:
    return compiled_module(module, {} if settings.cache_dir is None else {"cache_dir": settings.cache_dir})


def compiled_module(module: torch.nn.Module, options: Mapping[str, Any]) -> Callable[..., Any]:
    """torch.compile with this project's backend, installed by name or not."""
    import torch

    from convopt.torch_backend import backend

    compiled: Callable[..., Any] = torch.compile(module, backend=backend, options=dict(options))
    return compiled


MODULE_ENGINES = {
    "convopt": ModuleEngine("convopt", _convopt, packages=("convopt", "torch")),
    "torch": ModuleEngine("torch", _eager),
    "inductor": ModuleEngine("inductor", _inductor),
}
