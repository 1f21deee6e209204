"""The target that runs where the tensors are. No GPU: torch's properties of one are made up."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from convopt.errors import InputError
from convopt.runtime.device_arrays import DeviceArray
from convopt.runtime.execution import ContextPool
from convopt.torch_backend import devices
from convopt.torch_backend.devices import target_for
from convopt.torch_backend.part import CompiledPart
from tests.torch.support import compiled

CHIPS = {"cuda:0": (9, "NVIDIA H100"), "cuda:1": (9, "gfx90a:sramecc+:xnack-"), "cuda:2": (3, "Tesla K80")}


@pytest.fixture(autouse=True)
def _gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    def properties(device: torch.device) -> Any:
        major, name = CHIPS[str(device)]
        return SimpleNamespace(major=major, minor=0, gcnArchName=name)

    monkeypatch.setattr(torch.cuda, "get_device_properties", properties)
    # What compiles for a chip need not be here.
    monkeypatch.setattr("convopt.arguments.why_no_compiler", lambda target: None)


def on(*names: str, shape: tuple[int, ...] = (2,)) -> list[torch.Tensor]:
    with FakeTensorMode():
        return [torch.empty(shape, device=name) for name in names]


def test_the_target_follows_the_tensors() -> None:
    assert target_for(on("cpu", "cpu"), None) == target_for([], None) == "cpu"
    assert target_for(on("cuda:0"), None) == "cuda:sm_90"
    assert target_for(on("cuda:1"), None) == "hip:gfx90a"
    assert target_for(on("cuda:0"), "cuda:h200") == "cuda:h200"  # the same instructions
    assert target_for([*on("cpu", shape=()), *on("cuda:0")], None) == "cuda:sm_90"


@pytest.mark.parametrize(
    "names, given, words",
    [
        (["cpu"], "cuda:sm_90", "a tensor on cpu, the target is 'cuda:sm_90'"),
        (["cuda:0"], "cpu", "on cuda:0, a sm_90; the target is 'cpu'"),
        (["cuda:0"], "rocm:gfx90a", "on cuda:0, a sm_90; the target is 'rocm:gfx90a'"),
        (["cuda:0"], "nonsense", "target 'nonsense' is not known"),
        (["cuda:0", "cuda:1"], None, "tensors on cuda:0 and cuda:1"),
        (["cpu", "cuda:0"], None, "tensors on cpu and cuda:0"),
        (["cuda:2"], None, "no target of cuda is a sm_30"),
        (["meta"], None, "a tensor on meta, the target is 'cpu'"),
    ],
)
def test_a_target_that_is_elsewhere_is_an_error(names: list[str], given: str | None, words: str) -> None:
    with pytest.raises(InputError, match=words):
        target_for(on(*names), given)


def test_a_part_on_a_device_passes_pointers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tensors' own memory goes in, dense; what comes back has eager's strides. Computed here by torch."""
    conv = nn.Conv2d(3, 5, 3).eval()
    seen: list[DeviceArray] = []

    def run_on_device(pool: ContextPool, loaded: Any, inputs: list[DeviceArray]) -> list[torch.Tensor]:
        seen.extend(inputs)
        return [conv(inputs[0].value).contiguous(memory_format=torch.channels_last)]

    monkeypatch.setattr(ContextPool, "run_on_device", run_on_device)
    make = CompiledPart.__init__

    def init(part: CompiledPart, *args: Any) -> None:
        make(part, *args)
        part.on_device = True

    monkeypatch.setattr(CompiledPart, "__init__", init)
    x = torch.randn(1, 3, 6, 7).contiguous(memory_format=torch.channels_last)
    call, _ = compiled(conv)
    with torch.no_grad():
        have, want = call(x), conv(x)
    assert [(a.pointer, a.shape, a.nbytes) for a in seen] == [(x.data_ptr(), (1, 3, 6, 7), 4 * 126)]
    torch.testing.assert_close(have, want)
    assert have.stride() == want.stride()


@pytest.mark.gpu
def test_tensors_on_a_gpu_stay_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 1)).eval().cuda()
    x = torch.randn(2, 3, 9, 11, device="cuda")
    call, reports = compiled(net)
    stream = torch.cuda.Stream()
    with torch.no_grad(), torch.cuda.stream(stream):
        have, want = call(x).sort(-1).values, net(x).sort(-1).values
    stream.synchronize()
    torch.testing.assert_close(have, want, rtol=1e-3, atol=1e-4)
    assert reports[0].fallbacks == ()
    assert reports[0].programs[0].meta["target"] == devices.target_for([x], None)
