"""Modules that other importers got wrong, against torch itself."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.torch.support import Calls, compiled, same_strides

MODULES: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "upsample to odd sizes": (nn.Upsample(size=(17, 19)), (1, 3, 12, 12)),
    "upsample by 1.5": (nn.Upsample(scale_factor=1.5, mode="bilinear"), (1, 3, 5, 7)),
    "upsample to aligned corners": (
        nn.Upsample(size=(9, 11), mode="bilinear", align_corners=True),
        (1, 2, 5, 7),
    ),
    "selu": (nn.SELU(), (2, 3, 5)),
    "maxima and indices": (nn.MaxPool2d(3, 2, 1, return_indices=True), (2, 3, 9, 11)),
    "adaptive maxima and indices": (nn.AdaptiveMaxPool2d((5, 3), return_indices=True), (2, 3, 12, 7)),
    "maxima, ceil": (nn.MaxPool2d(2, 2, ceil_mode=True), (1, 2, 5, 7)),
    "averages, ceil, pads": (nn.AvgPool2d(3, 2, 1, ceil_mode=True), (1, 2, 6, 9)),
    "averages, divisor": (nn.AvgPool2d(3, 2, 1, divisor_override=5), (1, 2, 6, 9)),
    "adaptive averages": (nn.AdaptiveAvgPool2d((5, 3)), (1, 2, 12, 7)),
    "transposed conv": (nn.ConvTranspose2d(4, 6, 3, 2, 1, output_padding=1, groups=2), (1, 4, 5, 7)),
    "transposed conv, 3 dims": (nn.ConvTranspose3d(3, 5, 3, stride=2, padding=1), (1, 3, 4, 5, 3)),
    "circular padding": (nn.Conv2d(3, 5, 3, padding=1, padding_mode="circular"), (1, 3, 7, 9)),
    "reflected padding": (nn.ReflectionPad2d((1, 2, 0, 3)), (1, 3, 7, 9)),
    "instance norm": (nn.InstanceNorm2d(3, affine=True), (2, 3, 7, 9)),
    "group norm": (nn.GroupNorm(2, 6), (2, 6, 5, 7)),
    "layer norm": (nn.LayerNorm([5, 7]), (2, 3, 5, 7)),
    "same padding": (nn.Conv2d(3, 5, 4, padding="same"), (1, 3, 7, 9)),
    "no batch": (nn.Conv2d(3, 5, 3), (3, 7, 9)),
    "weight norm": (nn.utils.parametrizations.weight_norm(nn.Conv2d(3, 5, 3)), (1, 3, 7, 9)),
    "prelu": (nn.PReLU(3), (2, 3, 5, 7)),
    "shuffle": (nn.Sequential(nn.PixelUnshuffle(2), nn.ChannelShuffle(3), nn.PixelShuffle(2)), (1, 3, 4, 6)),
}


class Pieces(nn.Module):
    """What has no module of its own."""

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        a, b = x.chunk(2, 1)
        grid = F.affine_grid(torch.eye(2, 3)[None], [1, 4, 5, 7], align_corners=False)
        return [
            torch.cat([b, a], 1) * x.mean((2, 3), keepdim=True),
            torch.roll(x, (1, -2), (2, 3)) + 1,
            F.conv1d(x[0].transpose(1, 2), torch.ones(7, 1, 3), groups=7, padding=1),
            F.grid_sample(x.relu(), grid, align_corners=False).sigmoid(),
            x[:, 1:3, ::2].clamp(-0.5, 0.5),
            F.softmax(x, 1),
        ]


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def test_modules_equal_torch() -> None:
    modules = [module.eval() for module, _ in MODULES.values()]
    inputs = [torch.randn(shape) for _, shape in MODULES.values()]
    whole = Calls(modules)
    call, reports = compiled(whole, verify="raise")
    with torch.no_grad():
        for name, want, have in zip(MODULES, whole(inputs), call(inputs), strict=True):
            pairs = zip(want, have, strict=True) if isinstance(want, tuple) else [(want, have)]
            for a, b in pairs:
                torch.testing.assert_close(b, a, msg=lambda text, name=name: f"{name}: {text}")
                assert same_strides(a, b), f"{name}: strides {b.stride()}, torch's {a.stride()}"
    assert reports[0].fallbacks == ()


def test_what_has_no_translation_stays_in_torch() -> None:
    x = torch.randn(1, 4, 5, 7)
    call, reports = compiled(Pieces())
    with torch.no_grad():
        for want, have in zip(Pieces()(x), call(x), strict=True):
            torch.testing.assert_close(have, want)
            assert same_strides(want, have)
    reasons = {place.op: place.detail for place in reports[0].fallbacks}
    assert "no translation of aten.grid_sampler_2d.default" in reasons["aten.grid_sampler_2d.default"]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_conv_with_bias_in_other_types(dtype: torch.dtype) -> None:
    """Accumulated in float32, rounded once; float64 is torch's."""
    conv = nn.Conv2d(5, 7, 3, padding=1).to(dtype)
    x = torch.randn(2, 5, 6, 9, dtype=dtype)
    call, reports = compiled(conv)
    with torch.no_grad():
        have, want = call(x), F.conv2d(x.double(), conv.weight.double(), conv.bias.double(), padding=1)
    assert have.dtype == dtype
    error = (have.double() - want).abs().max() / want.abs().max()
    assert error <= torch.finfo(dtype).eps
    assert bool(reports[0].fallbacks) == (dtype == torch.float64)


@pytest.mark.parametrize("last", [False, True])
def test_strides_and_layouts_are_torchs(last: bool) -> None:
    """channels_last in, channels_last out, and no copy on the way but into the zero border."""
    net = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)).eval()
    x = torch.randn(2, 8, 8, 10)
    if last:
        net, x = net.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)
    call, reports = compiled(net)
    with torch.no_grad():
        have, want = call(x), net(x)
    torch.testing.assert_close(have, want)
    assert have.stride() == want.stride()
    labels = [step.label for step in reports[0].programs[0].steps]
    assert labels.count("copy") == (1 if last else 2), labels


def test_pooled_channels_last_features_are_one_graph() -> None:
    """torch asks for an as_strided between 1 x 1 pixels of two layouts: nothing of it stays in torch."""
    net = nn.Sequential(nn.Conv2d(3, 6, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 4)).eval()
    x = torch.randn(2, 3, 8, 9).to(memory_format=torch.channels_last)
    call, reports = compiled(net)
    with torch.no_grad():
        torch.testing.assert_close(call(x), net(x))
    assert len(reports[0].programs) == 1
    assert reports[0].fallbacks == ()


def test_another_view_of_the_memory_stays_in_torch() -> None:
    """Its offset counts from the begin of the storage, behind which the rows lie that it is made of."""

    class Windows(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            rows = x.sigmoid()[1:]
            return rows.as_strided((2, 4), (3, 1), 1).tanh(), rows.exp()

    x = torch.randn(3, 4)
    call, _ = compiled(Windows())
    with torch.no_grad():
        for have, want in zip(call(x), Windows()(x), strict=True):
            torch.testing.assert_close(have, want)


def test_reductions_over_dims() -> None:
    """The dims by position as ATen passes them; a scalar has dim 0 in torch, which squares in float64."""

    class Reduced(nn.Module):
        def forward(self, x: torch.Tensor, scalar: torch.Tensor, wide: torch.Tensor) -> list[torch.Tensor]:
            scalar = scalar * 2
            return [
                *(wide.sign(), wide.std(1), wide.var(1, keepdim=True), *torch.std_mean(wide, 1)),
                *torch.var_mean(x, (0, 2), correction=2, keepdim=True),
                *(x.std(1), x.std(), x.std((0, 2), keepdim=True), x.std(-1, correction=0)),
                *(x.var(1, correction=2), x.var((1, 2))),
                *(scalar.max(0).values, scalar.min(-1).values, scalar.amax(0), scalar.mean(0)),
                *(scalar.var(0, correction=0), scalar.std(0, correction=0)),
            ]

    module = Reduced()
    call, reports = compiled(module)
    nan, x = float("nan"), torch.randn(3, 5, 4)
    rows = [[1e38, 3.1e38, -2e38], [2e-30, 3e-30, 5e-30], [1.4e19, 2e19, -0.0], [nan, 1.0, 2.0], [0, 0, 0]]
    inputs = x, torch.tensor(1.5), torch.tensor(rows)
    with torch.no_grad():
        torch.testing.assert_close(call(*inputs), module(*inputs), rtol=1e-5, atol=0, equal_nan=True)
    reasons = [place.detail for place in reports[0].fallbacks]
    assert reasons == ["a variance of a scalar"] * 2


def test_an_extent_of_0_is_refused_as_torch_refuses_it() -> None:
    with torch.no_grad(), pytest.raises(RuntimeError, match=r"[Kk]ernel size can't be greater"):
        compiled(nn.Conv2d(3, 4, 5))[0](torch.randn(1, 3, 3, 9))


def test_an_empty_batch() -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU())
    with torch.no_grad():
        assert compiled(net)[0](torch.randn(0, 3, 5, 5)).shape == (0, 4, 3, 3)
