"""Graphs for inference are traced once where that says it all, and by AOTAutograd where not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._dynamo.backends.common import aot_autograd
from torch.fx import GraphModule

from convopt.torch_backend.decompositions import whole_upsampling
from convopt.torch_backend.inference import Declined, static_inputs, traced

pytestmark = pytest.mark.slow

Function = Callable[..., Any]
IMAGE = (2, 3, 8, 7)


def outcome(function: Function, *inputs: Any, **how: Any) -> GraphModule | str:
    """The graph, or why there is none; what is called then is the graph that dynamo traced."""
    found: list[GraphModule | str] = []

    def backend(module: GraphModule, given: Sequence[Any]) -> Function:
        try:
            with whole_upsampling():
                found.append(traced(module, given))
        except Declined as why:
            found.append(str(why))
        return module

    torch._dynamo.reset()
    torch.compile(function, backend=backend, fullgraph=True, **how)(*inputs)
    return found[0]


def by_autograd(function: Function, *inputs: Any) -> GraphModule:
    """What AOTAutograd makes of the function."""
    found: list[GraphModule] = []

    def keep(module: GraphModule, given: Sequence[Any]) -> Function:
        found.append(module)
        return module.forward

    torch._dynamo.reset()
    with whole_upsampling():
        torch.compile(function, backend=aot_autograd(fw_compiler=keep), fullgraph=True)(*inputs)
    return found[0]


def operators(module: GraphModule) -> list[tuple[str, Any]]:
    """Each operator with its result's shape and strides."""
    return [
        (str(node.target), [(v.shape, v.stride(), v.dtype) for v in _flat(node.meta["val"]) if v is not None])
        for node in module.graph.nodes
        if node.op == "call_function"
    ]


def _flat(value: Any) -> Sequence[Any]:
    return value if isinstance(value, (tuple, list)) else [value]


class Net(nn.Module):
    """In-place operators, also on views, beside those that torch has several forms of."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.heads, self.last = nn.MultiheadAttention(4, 2, batch_first=True), nn.Linear(4, 5)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = F.relu(self.norm(self.conv(x)), inplace=True)
        y += 1.5
        y[:, 1:3].mul_(y[:, :2])
        y = F.interpolate(y, scale_factor=2.0, mode="bilinear") + F.dropout(y.sum(), 0.5, False)
        tokens = y.flatten(2).transpose(1, 2)
        attended, _ = self.heads(tokens, tokens, tokens, need_weights=False)
        return F.adaptive_avg_pool2d(y, 1), self.last(attended.mean(1)).clamp_(max=0.5)


def test_the_graph_is_that_of_autograd() -> None:
    module = Net().eval()
    for x in (torch.randn(IMAGE), torch.randn(IMAGE).to(memory_format=torch.channels_last)):
        with torch.no_grad():
            graph = outcome(module, x)
            assert isinstance(graph, GraphModule), graph
            assert operators(graph) == operators(by_autograd(module, x))


def test_casts_of_autocast_are_in_the_graph() -> None:
    module, x = Net().eval(), torch.randn(IMAGE)
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        graph = outcome(module, x)
        assert isinstance(graph, GraphModule), graph
        assert operators(graph) == operators(by_autograd(module, x))


class Counter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1  # type: ignore[operator]
        return x * self.calls


def _cast_inside(x: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return x.flatten(1) @ x.flatten(1).t()


def _with_gradients_inside(x: torch.Tensor) -> torch.Tensor:
    with torch.enable_grad():
        return x * 2


DECLINED: dict[str, tuple[Function, str]] = {
    "a changed input": (lambda x: x.mul_(2) + 1, "changes an input"),
    "a changed view of an input": (lambda x: x[:, 1:].zero_().sum(), "changes an input"),
    "an updated buffer": (Counter(), "changes an input"),
    "batch statistics": (nn.BatchNorm2d(3).train(), "changes an input"),
    "a view of an input": (lambda x: x.flatten(1), "lies in memory"),
    "an input that needs no copy": (lambda x: x.contiguous().to(torch.float32), "lies in memory"),
    "results in one memory": (lambda x: (lambda y: (y, y[:, :2]))(x + 1), "lies in memory"),
    "a constant": (lambda x: x + torch.tensor([1.0, 2, 3]).view(3, 1, 1), "tensor of its own"),
    "autocast inside": (_cast_inside, "does not give tensors"),
    "gradients inside": (_with_gradients_inside, "does not give tensors"),
    "a map over a dim": (torch.vmap(lambda x: x.sum(0)), "does not give tensors"),
    "an extent as number": (lambda x: x * x.sum().item(), "does not give tensors"),
    "a branch": (lambda x: torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)), "does not give tensors"),
}


@pytest.mark.parametrize("case", DECLINED)
def test_what_a_trace_of_operators_does_not_say_is_declined(case: str) -> None:
    function, words = DECLINED[case]
    with torch.no_grad(), torch._dynamo.config.patch(capture_scalar_outputs=True):
        why = outcome(function, torch.randn(IMAGE))
    assert isinstance(why, str), case
    assert words in why


def test_the_surroundings_may_decline() -> None:
    """Wanted gradients, other extents to come, other classes than torch's own."""
    x, module = torch.randn(IMAGE), nn.Conv2d(3, 4, 3)
    assert "gradients" in str(outcome(module, x))
    with torch.no_grad():
        assert "SymInt" in str(outcome(module, x, dynamic=True))
        assert isinstance(outcome(module, x), GraphModule)
    for parameter in module.parameters():
        parameter.requires_grad_(False)
    assert isinstance(outcome(module, x), GraphModule)
    assert "gradients" in str(outcome(module, x.requires_grad_()))


def test_parameters_and_buffers_are_known() -> None:
    found: list[list[int]] = []

    def backend(module: GraphModule, given: Sequence[Any]) -> Function:
        found.append(static_inputs(module))
        assert all(isinstance(given[i], torch.Tensor) for i in found[0])
        return module

    torch._dynamo.reset()
    module, x = Net().eval(), torch.randn(IMAGE)
    with torch.no_grad():
        torch.compile(module, backend=backend)(x)
    # Of a BatchNorm the count of batches is not read.
    assert len(found[0]) == len([*module.parameters(), *module.buffers()]) - 1
