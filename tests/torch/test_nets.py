"""Whole networks behind torch.compile: equal to eager, gradients, dynamic batches, changed parameters."""

from __future__ import annotations

import logging
import warnings

import pytest
import torch
from torch import nn

from tests.torch.nets import NETS, made
from tests.torch.support import compiled, same_strides


@pytest.mark.parametrize("name", NETS)
def test_nets_equal_eager(name: str) -> None:
    net, x = made(name)
    call, reports = compiled(net)
    with torch.no_grad():
        want, have = net(x), call(x)
    assert (want - have).abs().max() <= 1e-4 * want.abs().max()
    assert same_strides(want, have)
    assert reports[0].fallbacks == ()


def test_autocast() -> None:
    net, x = made("resnet")
    call, reports = compiled(net)
    for dtype, bound in ((torch.bfloat16, 4e-2), (torch.float16, 1e-2)):
        with torch.no_grad(), torch.autocast("cpu", dtype):
            want, have = net(x), call(x)
        assert have.dtype == want.dtype == dtype
        assert (want - have).abs().max() <= bound * want.abs().max()
        assert reports[-1].fallbacks == ()


def test_gradients() -> None:
    """gradcheck in float32, with wider differences: float64 would be left to torch."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), nn.Tanh(), nn.ConvTranspose2d(3, 2, 2, groups=1))
    call, reports = compiled(net)
    x = torch.randn(1, 2, 4, 5, requires_grad=True)
    parameters = tuple(net.parameters())

    def loss(call: object) -> tuple[torch.Tensor, ...]:
        return torch.autograd.grad(call(x).square().sum(), (x, *parameters))  # type: ignore[operator]

    for want, have in zip(loss(net), loss(call), strict=True):
        torch.testing.assert_close(have, want, rtol=1e-4, atol=1e-5)
    assert any(
        place.op == "aten.convolution.default" and place.where == "compiled" for place in reports[0].placement
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it is not float64
        assert torch.autograd.gradcheck(call, (x,), eps=1e-2, atol=1e-2, rtol=1e-2)


def test_a_step_of_training() -> None:
    """Batch statistics stay in torch, and running ones change as in eager."""
    net, x = made("resnet")
    twin, _ = made("resnet")
    net.train(), twin.train()
    call, reports = compiled(net)
    call(x).sum().backward(), twin(x).sum().backward()
    for a, b in zip(net.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-3, atol=1e-3)
    for a, b in zip(net.buffers(), twin.buffers(), strict=True):
        torch.testing.assert_close(a, b)
    assert "no translation" in next(p.detail for p in reports[0].fallbacks if "batch_norm" in p.op)


def test_parameters_that_change_are_noticed() -> None:
    conv = nn.Conv2d(3, 4, 3)
    x = torch.randn(1, 3, 6, 7)
    call, reports = compiled(conv)
    with torch.no_grad():
        for change in (
            lambda: None,
            lambda: conv.weight.mul_(2),
            lambda: setattr(conv.weight, "data", torch.randn(4, 3, 3, 3)),
            lambda: conv.load_state_dict(nn.Conv2d(3, 4, 3).state_dict()),
            lambda: setattr(conv, "bias", nn.Parameter(torch.randn(4))),
        ):
            change()
            call(x)
            torch.testing.assert_close(call(x), conv(x))
    assert len(reports) == 5  # once for each change, never for a call


def test_a_parameter_that_changes_while_its_graph_is_compiled_is_noticed() -> None:
    conv = nn.Conv2d(3, 4, 3)
    changes = [2.0]

    def change(report: object) -> None:
        """Stands for another thread: the kernels have been made, the call is still to come."""
        while changes:
            conv.bias.add_(changes.pop())

    call, _ = compiled(conv, report=change)
    with torch.no_grad():
        x = torch.randn(1, 3, 8, 8)
        call(x)
        torch.testing.assert_close(call(x), conv(x))


def test_parameters_that_change_at_every_call_are_left_to_torch(caplog: pytest.LogCaptureFixture) -> None:
    conv = nn.Conv2d(3, 4, 3)
    x = torch.randn(1, 3, 6, 7)
    call, reports = compiled(conv)
    with torch.no_grad(), caplog.at_level(logging.WARNING):
        for _ in range(6):
            conv.weight.mul_(1.5)
            torch.testing.assert_close(call(x), conv(x))
    assert len(reports) == 3
    assert "parameters change from call to call" in caplog.text


@pytest.mark.parametrize("marked", [True, False])
def test_dynamic_batches(marked: bool) -> None:
    """One graph of torch's, one Program for each extent, of which the last few are kept."""
    net, x = made("resnet")
    call, reports = compiled(net, max_programs=2)
    if marked:
        torch._dynamo.mark_dynamic(x, 0)
    torch._dynamo.utils.counters.clear()
    with torch.no_grad():
        for batch in (2, 3, 5, 3, 5, 2):
            y = x[:1].repeat(batch, 1, 1, 1) if batch != 2 else x
            torch.testing.assert_close(call(y), net(y), rtol=1e-4, atol=1e-5)
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    assert graphs == (1 if marked else 2)
    assert len(reports) == 4  # 2, 3, 5, and 2 again: it had made room, or belonged to the first graph


def test_threads_are_torchs() -> None:
    conv, x = nn.Conv2d(3, 4, 3), torch.randn(1, 3, 6, 7)
    call, reports = compiled(conv)
    before = torch.get_num_threads()
    try:
        with torch.no_grad():
            for threads in (1, 2):
                torch.set_num_threads(threads)
                call(x)
    finally:
        torch.set_num_threads(before)
    assert [report.programs[0].meta["threads"] for report in reports] == [1, 2]
