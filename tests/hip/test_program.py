"""Whole models for a DCU: artifact, `convopt build`, fallbacks, and the host program in C++."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

import convopt
from convopt.cli import codegen
from convopt.cli.main import main
from convopt.codegen.host_cpp import write_host
from convopt.errors import InputError
from convopt.lowering.program import DeviceCall
from convopt.runtime.device_program import DeviceProgram
from convopt.runtime.module import CompiledModule
from tests.cli.fields import undocumented
from tests.hip.models import maxima, network, products, sample, with_fallback
from tests.hip.stub_device import Stub

pytestmark = pytest.mark.hip


def _expected(model: object) -> np.ndarray:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])  # type: ignore[attr-defined]
    result: np.ndarray = session.run(None, {"x": sample()})[0]
    return result


def _program(module: CompiledModule) -> DeviceProgram:
    (loaded,) = module.programs
    assert isinstance(loaded, DeviceProgram)
    return loaded


@pytest.fixture(scope="module")
def module() -> CompiledModule:
    """Needs no device: it is only compiled."""
    return convopt.optimize(network(), target="dcu:k100-ai", verify=False)


def test_an_artifact_is_built_and_runs(
    module: CompiledModule, stub: Stub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setenv("CONVOPT_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "net.convopt"
    module.save(path)
    assert main(["build", str(path), "--toolkit", str(stub.toolkit), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["compiled"] == document["sources"] == len(_program(module).binaries)
    assert document["lines"] == [
        f"{stub.toolkit}/bin/hipcc --genco -O3 -std=c++17 -fno-strict-aliasing --offload-arch=gfx928"
        " KERNELS.hip -o OUT.co"
    ]
    assert main(["build", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["compiled"] == 0
    monkeypatch.setenv("PATH", "")  # the first run finds all compiled
    result = convopt.load(path)(sample())
    np.testing.assert_allclose(result, _expected(network()), rtol=0, atol=1e-5)
    assert any(call == "launch graph" for call in stub.calls())


def test_build_refuses_what_is_not_for_hip(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "net.convopt"
    convopt.optimize(network(), target="opencl", verify=False).save(path)
    assert main(["build", str(path)]) == 2
    assert "it is for opencl and holds no HIP source" in capsys.readouterr().err


@pytest.mark.opencl
def test_the_same_through_opencl(module: CompiledModule, stub: Stub) -> None:
    by_opencl = convopt.optimize(network(), target="opencl", verify=False)(sample())
    np.testing.assert_allclose(module(sample()), by_opencl, rtol=0, atol=1e-5)


@pytest.mark.parametrize(("precision", "tolerance"), [("fp32", 1e-5), ("fp16", 2e-3)])
def test_im2col_and_computed_products(stub: Stub, precision: str, tolerance: float) -> None:
    """In fp16 by MMAC, emulated."""
    names: set[str] = set()

    def observe(calls: Sequence[DeviceCall]) -> None:
        names.update(type(one.call.problem).__name__ for one in calls)
        names.update(one.call.schedule.name for one in calls)

    module = convopt.optimize(
        products(), target="dcu:k100-ai", algorithm="im2col", precision=precision, observe=observe
    )
    assert names >= {"GemmProblem", "gpu-im2col", "gpu-transpose"}
    x = np.random.default_rng(3).uniform(-1, 1, (1, 20, 9, 8)).astype(np.float32)
    session = onnxruntime.InferenceSession(products().SerializeToString(), providers=["CPUExecutionProvider"])
    expected = session.run(None, {"x": x})[0]
    assert np.abs(module(x) - expected).max() <= tolerance * np.abs(expected).max()


def test_a_nan_comes_out_of_every_maximum(stub: Stub) -> None:
    """The chips' own instruction, fmaxf, gives the other number."""
    x = sample()[:, :, :9]
    x[0, :, 3, 5], x[0, 2, 0, 0] = np.nan, np.nan
    y = np.roll(x, 1)
    relu, largest, least, top, clipped, pooled, soft = convopt.optimize(
        maxima(), target="dcu:k100-ai", verify=False
    )(x, y)
    np.testing.assert_array_equal(relu, np.maximum(x, 0))
    np.testing.assert_array_equal(largest, np.maximum(x, y))
    np.testing.assert_array_equal(least, np.minimum(x, y))
    np.testing.assert_array_equal(top, x.max(axis=(2, 3), keepdims=True))
    np.testing.assert_array_equal(clipped, np.clip(x, -0.5, 0.25))
    windows = np.lib.stride_tricks.sliding_window_view(x, (3, 3), (2, 3))
    np.testing.assert_array_equal(pooled, windows.max(axis=(-1, -2)))
    rows = np.isnan(x).any(axis=3, keepdims=True)
    np.testing.assert_array_equal(np.isnan(soft), np.broadcast_to(rows, x.shape))


def test_fallback_islands_run_on_the_cpu(stub: Stub, tmp_path: Path) -> None:
    model = with_fallback()
    module = convopt.optimize(model, target="dcu:k100-ai", verify=False)
    np.testing.assert_allclose(module(sample()), _expected(model), rtol=0, atol=1e-5)
    assert "1 islands on the CPU, " in module.summary()
    with pytest.raises(
        InputError, match=r"these nodes run in onnxruntime, which needs Python: last \(.*Hardmax"
    ):
        write_host(_program(module), tmp_path)
    assert not list(tmp_path.iterdir())


def test_host_cpp_of_a_model_and_of_its_artifact_are_the_same(
    module: CompiledModule, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    artifact, model = tmp_path / "net.convopt", tmp_path / "net.onnx"
    module.save(artifact)
    model.write_bytes(network().SerializeToString())
    folders = [tmp_path / "from artifact", tmp_path / "from model"]
    assert main(["build", str(artifact), "--host", "cpp"]) == 2
    assert "--host and -o DIR go together" in capsys.readouterr().err
    assert main(["build", str(artifact), "--host", "cpp", "-o", str(folders[0])]) == 0
    capsys.readouterr()
    arguments = ["codegen", str(model), "--target", "dcu:k100-ai", "--host", "cpp", "-o", str(folders[1])]
    assert main([*arguments, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert undocumented(document, codegen.COMMAND.fields) == set()
    names = ["kernels.hip", "model.cpp", "weights.bin"]
    assert sorted(document["host"]) == names and document["kernels"][0]["files"] == ["kernels.hip"]
    for name in names:
        assert (folders[0] / name).read_bytes() == (folders[1] / name).read_bytes()
    assert sorted(path.name for path in folders[1].iterdir()) == names


def test_codegen_refuses_a_host_for_what_it_can_not_hold(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tmp_path / "net.onnx"
    model.write_bytes(with_fallback().SerializeToString())
    rest = [str(model), "--host", "cpp", "-o", str(tmp_path / "out")]
    assert main(["codegen", "--target", "dcu:k100-ai", *rest]) == 2
    assert "these nodes run in onnxruntime, which needs Python: last (" in capsys.readouterr().err
    assert main(["codegen", "--target", "opencl", *rest]) == 2
    assert "it is for kernels in HIP source" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_host_cpp_runs_without_python(module: CompiledModule, stub: Stub, tmp_path: Path) -> None:
    write_host(_program(module), tmp_path)
    subprocess.run(
        [stub.toolkit / "bin/hipcc", "--genco", "--offload-arch=gfx928", "kernels.hip", "-o", "kernels.co"],
        cwd=tmp_path, check=True,
    )  # fmt: skip
    command = [
        "g++", "-O1", "-std=c++17", "-Wall", "-Wextra", "-Werror", "-D__HIP_PLATFORM_AMD__", "-DCONVOPT_MAIN",
        "model.cpp", f"-L{stub.library.parent}", "-lamdhip64",
        f"-Wl,-rpath,{stub.library.parent}", "-o", "model",
    ]  # fmt: skip
    subprocess.run(command, cwd=tmp_path, check=True)
    (tmp_path / "x.bin").write_bytes(sample().tobytes())
    line = ["./model", "kernels.co", "weights.bin", "x.bin", "y.bin"]
    subprocess.run(line, cwd=tmp_path, check=True)
    result = np.frombuffer((tmp_path / "y.bin").read_bytes(), np.float32).reshape(1, 7)
    np.testing.assert_allclose(result, _expected(network()), rtol=0, atol=1e-5)
    (tmp_path / "x.bin").write_bytes(b"short")
    for arguments, words in ((line, "x.bin: wrong size"), (line[:3], "usage:")):
        done = subprocess.run(arguments, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode in (1, 2) and words in done.stderr


def test_host_cpp_refuses_other_kernels(tmp_path: Path) -> None:
    module = convopt.optimize(network(), target="opencl", verify=False)
    with pytest.raises(InputError, match="these are of kind opencl"):
        write_host(_program(module), tmp_path)
