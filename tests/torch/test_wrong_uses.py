"""Uses that torch.compile meets in the wild: equal to eager, or an error that says what to do."""

from __future__ import annotations

import copy
import threading

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from convopt.torch_backend import backend
from tests.torch.support import compiled


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def net() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(3, 5, 3, padding=1), nn.ReLU(), nn.Conv2d(5, 4, 1)).eval()


def test_control_flow_by_data_breaks_the_graph() -> None:
    class Branch(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = net()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.body(x)
            return F.relu(y) if y.sum() > 0 else torch.tanh(-y)

    module = Branch()
    call, reports = compiled(module, fullgraph=False)
    x = torch.randn(1, 3, 6, 7)
    with torch.no_grad():
        for sign in (1.0, -1.0):
            module.body[2].bias.fill_(sign * 10)
            torch.testing.assert_close(call(x), module(x))
    assert len(reports) >= 3  # before the branch, and each side of it
    with torch.no_grad(), pytest.raises(torch._dynamo.exc.Unsupported):
        compiled(module)[0](x)


def test_several_threads_call_at_once() -> None:
    """The first call too, which torch may trace in each thread; each gets its own result."""
    module = net()
    call, reports = compiled(module)
    inputs = [torch.randn(1, 3, 6, 7) for _ in range(4)]
    found: dict[int, list[torch.Tensor]] = {}

    def run(index: int) -> None:
        with torch.no_grad():
            found[index] = [call(inputs[index]) for _ in range(20)]

    threads = [threading.Thread(target=run, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with torch.no_grad():
        for index, x in enumerate(inputs):
            assert len(found[index]) == 20
            for result in found[index]:
                torch.testing.assert_close(result, module(x))
    assert 1 <= len(reports) <= 4


def test_results_belong_to_the_caller() -> None:
    call, _ = compiled(net())
    x = torch.randn(1, 3, 6, 7)
    with torch.no_grad():
        first = call(x)
        kept = first.clone()
        call(x + 1).zero_()
    torch.testing.assert_close(first, kept)


def test_copies_of_a_compiled_module_have_their_own_weights() -> None:
    module = net()
    torch._dynamo.reset()
    call = torch.compile(module, backend=backend)
    x = torch.randn(1, 3, 6, 7)
    with torch.no_grad():
        call(x)
        other = copy.deepcopy(call)
        copied = other._orig_mod
        copied[0].weight.mul_(2)
        torch.testing.assert_close(other(x), copied(x))
        torch.testing.assert_close(call(x), module(x))
        assert not torch.allclose(call(x), other(x))


def test_an_input_that_the_module_changes() -> None:
    """The caller sees the change, and a view of what is returned shares memory as in eager."""

    class InPlace(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            x.mul_(2)
            y = self.conv(x).relu_()
            return y, y[:, :2]

    module = InPlace()
    call, _ = compiled(module)
    x = torch.randn(1, 3, 6, 7)
    a, b = x.clone(), x.clone()
    with torch.no_grad():
        (y, part), (want, want_part) = call(a), module(b)
        torch.testing.assert_close(a, b)
        torch.testing.assert_close(y, want)
        torch.testing.assert_close(part, want_part)
        assert (part.data_ptr() == y.data_ptr()) == (want_part.data_ptr() == want.data_ptr())


def test_unusual_inputs() -> None:
    """Not dense, overlapping, negative views, integers, empty, a Python number: eager's results."""

    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = net()

        def forward(self, x: torch.Tensor, scale: float) -> torch.Tensor:
            return self.body(x.to(torch.float32)) * scale

    module = Scaled()
    call, _ = compiled(module)
    base = torch.randn(2, 3, 12, 14)
    with torch.no_grad():
        for x in (
            base[:, :, ::2, ::2],
            base[:1, :1, :6, :7].expand(2, 3, 6, 7),
            base.transpose(2, 3),
            base[..., 3:10].flip(1),
            torch.view_as_complex(base.reshape(2, 3, 12, 7, 2)).conj().imag,
            torch._neg_view(base),
            (base * 10).to(torch.uint8),
            base[:0],
        ):
            torch.testing.assert_close(call(x, 0.5), module(x, 0.5), rtol=1e-4, atol=1e-5)


def test_a_shared_and_a_replaced_parameter() -> None:
    conv = nn.Conv2d(3, 3, 1)
    module = nn.Sequential(conv, nn.ReLU(), conv)
    call, _ = compiled(module)
    x = torch.randn(1, 3, 5, 6)
    with torch.no_grad():
        torch.testing.assert_close(call(x), module(x))
        conv.weight.copy_(torch.randn(3, 3, 1, 1))
        torch.testing.assert_close(call(x), module(x))
        module[0] = nn.Conv2d(3, 3, 1)
        torch.testing.assert_close(call(x), module(x))


def test_what_is_computed_of_parameters_beforehand_follows_them() -> None:
    """Also where torch reads it: in place, by another tensor, and by new memory."""

    class Bins(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.edges = net(), nn.Parameter(torch.randn(6))

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            y = self.body(x)
            return y, torch.bucketize(y, (self.edges * 2).sort().values)

    module = Bins()
    call, reports = compiled(module)
    x = torch.randn(1, 3, 6, 7)
    with torch.no_grad():
        torch.testing.assert_close(call(x), module(x))
        assert {place.op for place in reports[0].fallbacks} == {"aten.bucketize.Tensor"}
        for change in (
            lambda: module.edges.mul_(-0.3).add_(0.1),
            lambda: setattr(module.edges, "data", torch.randn(6)),
            lambda: module.load_state_dict({**module.state_dict(), "edges": torch.randn(6)}),
        ):
            call(x), change()
            torch.testing.assert_close(call(x), module(x))


def test_inference_mode_and_gradients_in_turn() -> None:
    """One module, called without gradients, with them, and on inference tensors."""
    module = net()
    call, _ = compiled(module)
    x = torch.randn(1, 3, 6, 7)
    with torch.inference_mode():
        torch.testing.assert_close(call(x), module(x))
        torch.testing.assert_close(call(x * 1), module(x))
    loss = call(x).square().sum()
    loss.backward()
    have = [p.grad.clone() for p in module.parameters()]
    module.zero_grad()
    module(x).square().sum().backward()
    for a, p in zip(have, module.parameters(), strict=True):
        torch.testing.assert_close(a, p.grad, rtol=1e-4, atol=1e-5)
    with torch.no_grad():
        torch.testing.assert_close(call(x), module(x))


def test_dynamic_height_and_width() -> None:
    module = net()
    call, reports = compiled(module)
    with torch.no_grad():
        for h, w in ((6, 7), (9, 5), (8, 11), (6, 7)):
            x = torch.randn(2, 3, h, w)
            torch.testing.assert_close(call(x), module(x), rtol=1e-4, atol=1e-5)
    assert len(reports) <= 4
