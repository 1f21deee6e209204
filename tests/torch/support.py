"""What the torch tests share."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from convopt.torch_backend import backend
from convopt.torch_backend.report import GraphReport


class Calls(torch.nn.Module):
    """Several calls as one module: a list of results of a list of inputs, so that one graph holds them all.

    calls: a module for each input.
    """

    def __init__(self, calls: Iterable[torch.nn.Module]) -> None:
        super().__init__()
        self.calls = torch.nn.ModuleList(calls)

    def forward(self, inputs: list[torch.Tensor]) -> list[Any]:
        return [call(x) for call, x in zip(self.calls, inputs, strict=True)]


class Call(torch.nn.Module):
    """function(input, *args, **kwargs), the tensors among the arguments held as buffers."""

    def __init__(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        super().__init__()
        self.function, self.args, self.kwargs = function, list(args), dict(kwargs)
        for key, value in [*enumerate(args), *kwargs.items()]:
            if isinstance(value, torch.Tensor):
                self.register_buffer(f"held_{key}", value)

    def forward(self, x: torch.Tensor) -> Any:
        args = [getattr(self, f"held_{i}", value) for i, value in enumerate(self.args)]
        kwargs = {key: getattr(self, f"held_{key}", value) for key, value in self.kwargs.items()}
        return self.function(x, *args, **kwargs)


def compiled(
    module: torch.nn.Module, fullgraph: bool = True, **options: Any
) -> tuple[Callable[..., Any], list[GraphReport]]:
    """The module behind torch.compile with our backend, and the reports that its calls will make."""
    torch._dynamo.reset()
    reports: list[GraphReport] = []
    return torch.compile(
        module, backend=backend, fullgraph=fullgraph, options={"report": reports.append, **options}
    ), reports


def same_strides(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Strides of dims of one element say nothing."""
    return a.shape == b.shape and all(
        x == y for x, y, extent in zip(a.stride(), b.stride(), a.shape, strict=True) if extent > 1
    )
