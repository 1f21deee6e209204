"""`convopt.optimize` of modules, fx graphs and exported programs; artifacts; wrong uses."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import convopt
from convopt.errors import ArtifactError, ConvoptError, InputError, ModelError
from tests.torch.nets import made
from tests.torch.support import compiled

ROOT = Path(__file__).parents[2]
LOADED = """
import sys, numpy as np, convopt
y = convopt.load(sys.argv[1])(np.load(sys.argv[2]))
assert not {"torch", "onnxruntime", "tvm"} & set(sys.modules), "a heavy import"
np.save(sys.argv[3], y)
"""
BY_NAME = """
import torch
options = {"report": lambda report: print(report.summary())}
call = torch.compile(torch.nn.Conv2d(1, 2, 3), backend="convopt", options=options)
with torch.no_grad():
    call(torch.ones(1, 1, 4, 4))
"""


def test_modules_graphs_and_programs() -> None:
    net, x = made("unet")
    with torch.no_grad():
        want = net(x)
    program = torch.export.export(net, (x,))
    for source, given in ((net, (x,)), (torch.fx.symbolic_trace(net), (x,)), (program, None)):
        module = convopt.optimize(source, example_inputs=given, threads=1, verify="raise")
        torch.testing.assert_close(module(x), want, rtol=1e-4, atol=1e-5)
        assert {place.where for place in module.placement} == {"compiled"}
        assert "0 fallback" in module.summary()


def test_dynamic_shapes_of_export() -> None:
    net, x = made("unet")
    batch = torch.export.Dim("batch", min=1, max=8)
    module = convopt.optimize(net, example_inputs=(x.repeat(2, 1, 1, 1),), dynamic_shapes=({0: batch},))
    with torch.no_grad():
        y = torch.randn(3, *x.shape[1:])
        torch.testing.assert_close(module(y), net(y), rtol=1e-4, atol=1e-5)
    with pytest.raises(InputError, match="'x': expected shape"):
        module(torch.randn(1, 3, 18, 20))


def test_an_artifact_loads_without_torch(tmp_path: Path) -> None:
    net, x = made("resnet")
    convopt.optimize(net, example_inputs=(x,)).save(tmp_path / "net.convopt")
    np.save(tmp_path / "x.npy", x.numpy())
    arguments = [str(tmp_path / name) for name in ("net.convopt", "x.npy", "y.npy")]
    subprocess.run([sys.executable, "-c", LOADED, *arguments], check=True, cwd=ROOT)
    with torch.no_grad():
        np.testing.assert_allclose(np.load(tmp_path / "y.npy"), net(x).numpy(), rtol=1e-4, atol=1e-5)


def test_an_artifact_that_needs_torch_is_refused(tmp_path: Path) -> None:
    class Sorted(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.relu().sort(-1).values + 1

    module = convopt.optimize(Sorted(), example_inputs=(torch.randn(3, 5),))
    with pytest.raises(ArtifactError, match=r"needs torch: sort.*no translation of aten\.sort"):
        module.save(tmp_path / "m.convopt")


@pytest.fixture
def entry_point(tmp_path: Path) -> str:
    """Code that makes the entry point known that pyproject.toml declares, installed or not."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    lines = [f"{k} = {v}" for k, v in declared["torch_dynamo_backends"].items()]
    info = tmp_path / "convopt_here-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: convopt-here\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[torch_dynamo_backends]\n" + "\n".join(lines) + "\n")
    return f"import sys; sys.path[:0] = [{str(tmp_path)!r}, {str(ROOT)!r}]\n"


def test_the_backend_is_found_by_name(entry_point: str) -> None:
    command = [sys.executable, "-c", entry_point + BY_NAME]
    result = subprocess.run(command, check=True, capture_output=True, text=True)
    assert "1 compiled, 0 view, 0 folded, 0 fallback" in result.stdout


@pytest.mark.parametrize(
    "example, words",
    [
        ("torch_compile", "0 fallback"),
        ("onnx_model", "convs compiled: 1 of 1"),
        pytest.param("save_and_ship", "shipped: [[", marks=pytest.mark.slow),
    ],
)
def test_examples_run(example: str, words: str, entry_point: str) -> None:
    path = ROOT / "examples" / f"{example}.py"
    run = f"import runpy; runpy.run_path({str(path)!r}, run_name='__main__')"
    command = [sys.executable, "-c", entry_point + run]
    result = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT)
    assert words in result.stdout


def test_wrong_uses_are_named() -> None:
    net, x = made("resnet")
    module = convopt.optimize(net, example_inputs=(x,))
    for match, call in {
        "needs example_inputs": lambda: convopt.optimize(net),
        "example_inputs is a tensor": lambda: convopt.optimize(net, example_inputs=x),
        "no shapes": lambda: convopt.optimize(net, {"x": (1, 3, 8, 8)}, example_inputs=(x,)),
        "option 'nonsense'": lambda: convopt.optimize(net, example_inputs=(x,), nonsense=1),
        "verify is 'perhaps'": lambda: convopt.optimize(net, example_inputs=(x,), verify="perhaps"),
        "changes '1.running_mean'": lambda: convopt.optimize(made("resnet")[0].train(), example_inputs=(x,)),
        "expected shape": lambda: module(x[:1]),
        "expected torch.float32": lambda: module(x.double()),
        "got ndarray": lambda: module(x.numpy()),
        "on cpu, got one on meta": lambda: module(x.to("meta")),
        "wants a gradient": lambda: module(x.requires_grad_()),
        "of the form": lambda: module(x, x),
    }.items():
        with pytest.raises(InputError, match=match):
            call()


def test_control_flow_by_data_is_refused_with_the_remedy() -> None:
    class Branch(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x if x.sum() > 0 else -x

    with pytest.raises(ModelError, match=r"Branch: torch.export can't capture it.*torch\.compile"):
        convopt.optimize(Branch(), example_inputs=(torch.ones(3),))


@pytest.mark.filterwarnings("ignore:Complex modules")
def test_other_devices_and_types() -> None:
    """A meta tensor is an error that says so, complex numbers stay in torch."""
    with pytest.raises(Exception, match="a tensor on meta, the target is 'cpu'") as caught, torch.no_grad():
        compiled(nn.Conv2d(1, 1, 1, device="meta"))[0](torch.ones(1, 1, 2, 2, device="meta"))
    assert any(
        isinstance(e, ConvoptError)
        for e in (caught.value, caught.value.__cause__, getattr(caught.value, "inner_exception", None))
    )
    x = torch.randn(1, 2, 4, 4, dtype=torch.complex64)
    conv = nn.Conv2d(2, 3, 3).to(torch.complex64)
    call, reports = compiled(conv)
    with torch.no_grad():
        torch.testing.assert_close(call(x), conv(x))
    assert reports == [] or reports[0].fallbacks


@pytest.mark.slow
def test_a_program_of_named_inputs() -> None:
    class Scaled(nn.Module):
        def forward(self, x: torch.Tensor, *, scale: torch.Tensor) -> torch.Tensor:
            return x * scale

    x, two = torch.randn(2, 3), torch.tensor(2.0)
    module = convopt.optimize(torch.export.export(Scaled(), (x,), {"scale": two}))
    torch.testing.assert_close(module(x, scale=two + 1), x * 3)
    with pytest.raises(InputError, match="scale"):
        module(x, two)


@pytest.mark.slow
def test_a_reshaped_input_may_lie_otherwise_than_the_example() -> None:
    """Exported of contiguous memory, where a reshape is a view."""

    class Rows(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.reshape(x.shape[0], -1)

    example, x = torch.randn(2, 3, 4, 5), torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    for shapes in (None, ({0: torch.export.Dim.AUTO},)):
        module = convopt.optimize(Rows(), example_inputs=(example,), dynamic_shapes=shapes)
        assert torch.equal(module(x), x.reshape(2, -1))
    assert torch.equal(module(x[1:]), x[1:].reshape(1, -1))


def test_what_the_export_took_for_granted_is_held_to() -> None:
    """Numbers, flags and comparisons of extents chose the path that was exported: others are errors."""

    class Related(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return x.sum(0) + y.sum(0)

    class Repeated(nn.Module):
        def forward(self, x: torch.Tensor, count: int) -> torch.Tensor:
            return x * count

    class Paths(nn.Module):
        def forward(
            self,
            x: torch.Tensor,
            y: torch.Tensor,
            flag: bool,
            factor: float,
            extra: torch.Tensor | None = None,
        ) -> torch.Tensor:
            z = (x if flag else -x) * factor + y.sum(0)
            if extra is not None:
                z = z + extra
            return z if x.shape[0] > 3 and x.shape[0] % 2 == 1 else -z

    batch, auto = torch.export.Dim("batch"), torch.export.Dim.AUTO
    x, y = torch.randn(5, 3), torch.randn(10, 3)
    related = convopt.optimize(Related(), example_inputs=(x, y), dynamic_shapes=({0: batch}, {0: 2 * batch}))
    torch.testing.assert_close(related(x[:4], y[:8]), x[:4].sum(0) + y[:8].sum(0))
    with pytest.raises(InputError, match=r"y\.shape\[0\] is 7, not 2\*x\.shape\[0\] = 8"):
        related(x[:4], y[:7])

    repeated = convopt.optimize(Repeated(), example_inputs=(x, 3), dynamic_shapes=(None, auto))
    torch.testing.assert_close(repeated(x, 7), x * 7)
    with pytest.raises(InputError, match=r"'count' is 2\.5; expected an integer"):
        repeated(x, 2.5)

    module = convopt.optimize(
        Paths(),
        example_inputs=(x, y, True, 2.0, None),
        dynamic_shapes=({0: auto}, {0: auto}, None, None, None),
    )
    more = torch.randn(9, 3)
    torch.testing.assert_close(module(more, y[:1], True, 2.0, None), more * 2 + y[:1].sum(0))
    for match, arguments in {
        "'flag' is False; expected True": (x, y, False, 2.0, None),
        "'flag' is 1; expected True": (x, y, 1, 2.0, None),
        "'factor' is 3.0; expected 2.0": (x, y, True, 3.0, None),
        "'extra' is a tensor; expected None": (x, y, True, 2.0, x),
        r"x\.shape\[0\] is 3, outside 4 to": (x[:3], y, True, 2.0, None),
        r"Mod\(x\.shape\[0\], 2\).* is wrong for x\.shape\[0\] = 4": (x[:4], y, True, 2.0, None),
    }.items():
        with pytest.raises(InputError, match=match):
            module(*arguments)


@pytest.mark.slow
def test_comparisons_of_strides_are_held_to() -> None:
    """A slice as the example: its strides are symbols of their own, that of its base no call can tell."""

    class Strided(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x if x.stride(0) > 5 else -x).reshape(-1) * 2

    auto, x = torch.export.Dim.AUTO, torch.randn(4, 9)
    shapes = ({0: auto, 1: auto},)
    module = convopt.optimize(Strided(), example_inputs=(x[:, :5],), dynamic_shapes=shapes)
    torch.testing.assert_close(module(x[:3, :7]), x[:3, :7].reshape(-1) * 2)
    with pytest.raises(InputError, match=r"x\.stride\(0\) > 5 is wrong for x\.stride\(0\) = 4"):
        module(torch.randn(3, 4)[:, :2])
    program = torch.export.export(Strided(), (x[:, :5],), dynamic_shapes=shapes)
    with pytest.raises(ModelError, match=r"can't be decomposed: .* export with a copy of it"):
        convopt.optimize(program)
    flat = convopt.optimize(Strided(), example_inputs=(x,), dynamic_shapes=shapes)
    torch.testing.assert_close(flat(x[:, :7]), x[:, :7].reshape(-1) * 2)
