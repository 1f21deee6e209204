"""The commands that compile: optimize to an artifact, run, analyze, explain, bench."""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from convopt.cli import analyze, bench, explain, optimize, run
from convopt.cli.main import main
from tests.cli.fields import undocumented
from tests.cli.models import conv_relu

pytestmark = pytest.mark.kernels


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return conv_relu(tmp_path / "in.onnx")


def _document(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> dict:
    assert main([*arguments, "--json"]) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    return json.loads(shown.out)


def test_optimize_writes_an_artifact_that_run_runs(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    artifact = tmp_path / "out.convopt"
    document = _document(["optimize", str(model), "-o", str(artifact), "--verify"], capsys)
    assert undocumented(document, optimize.COMMAND.fields) == set()
    assert (document["format"], document["convs"], document["convs_compiled"]) == ("convopt", 1, 1)
    assert document["schedules"] == {"direct": 1}
    assert document["fallbacks"] == []
    memory = document["memory"]
    assert 1.0 <= memory["arena_to_live"] <= 1.3
    assert memory["arena_bytes"] >= memory["live_bytes"]
    assert document["verified"].startswith("equal to the model in onnxruntime")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in.onnx", "out.convopt"]

    x = np.random.default_rng(2).standard_normal((1, 3, 8, 8)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    arguments = ["run", str(artifact), "--input", f"x={tmp_path / 'x.npy'}", "-o", str(tmp_path / "y.npz")]
    document = _document(arguments, capsys)
    assert undocumented(document, run.COMMAND.fields) == set()
    session = ort.InferenceSession(model.read_bytes(), providers=["CPUExecutionProvider"])
    expected = session.run(None, {"x": x})[0]
    with np.load(tmp_path / "y.npz", allow_pickle=False) as arrays:
        assert list(arrays) == ["y"]
        np.testing.assert_allclose(arrays["y"], expected, atol=1e-5)
    (output,) = document["outputs"]
    assert output == {
        "name": "y",
        "dtype": "float32",
        "shape": [1, 4, 8, 8],
        "min": pytest.approx(float(expected.min()), abs=1e-5),
        "max": pytest.approx(float(expected.max()), abs=1e-5),
        "finite": True,
        "written": "float32",
    }

    assert main(["run", str(artifact), "--threads", "1", "--quiet"]) == 0
    assert main(["run", str(artifact), "--skip", "cleanup"]) == 2
    assert "--skip: an artifact is compiled already" in capsys.readouterr().err


def test_run_takes_a_model_and_random_inputs(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = _document(["run", str(model), "--repeat", "3"], capsys)
    again = _document(["run", str(model), "--input", "x=random"], capsys)
    assert first["outputs"] == again["outputs"]
    assert first["calls"] == 3
    assert 0 < first["min_ms"] <= first["median_ms"] <= first["p95_ms"] <= first["p99_ms"] <= first["max_ms"]


def test_run_tells_percentiles_of_the_calls(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Calls of 1, 2, ... 100 ms behind a first one of 1 s: 95% lie below 95.05 ms."""
    ends = np.cumsum([0.0, 1.0, *(x for ms in range(1, 101) for x in (0.0, ms / 1e3))])
    monkeypatch.setattr(run, "time", SimpleNamespace(perf_counter=iter(ends).__next__))
    document = _document(["run", str(model), "--repeat", "100"], capsys)
    assert document["calls"] == 100
    found = [document[f"{name}_ms"] for name in ("first", "median", "p95", "p99", "min", "max")]
    assert found == pytest.approx([1000, 50.5, 95.05, 99.01, 1, 100])
    run.COMMAND.show(document)
    assert "50.500 ms median, 95.050 95%, 99.010 99%" in capsys.readouterr().out


def test_run_binds_dynamic_dims_to_the_files_shapes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = conv_relu(tmp_path / "in.onnx", ("N", 3, "H", "W"))
    np.save(tmp_path / "x.npy", np.ones((2, 3, 5, 6), np.float32))
    document = _document(["run", str(source), "--input", f"x={tmp_path / 'x.npy'}"], capsys)
    assert document["outputs"][0]["shape"] == [2, 4, 5, 6]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--input", "x"], "expected NAME=FILE.npy"),
        (["--input", "z=random"], "the model's inputs are x"),
        (["--input", "x=nowhere.npy"], "not a readable .npy file"),
        (["--input", "x=objects.npy"], "not a readable .npy file"),
        (["--input", "x=text.npy"], "not a readable .npy file"),
        (["--input", "x=double.npy"], "expected dtype float32, got float64"),
        (["--input", "x=random", "--input", "x=random"], "is given twice"),
        (["-o", "out.txt"], "ends in .npz"),
        (["--repeat", "0"], "expected at least 1"),
        (["--precision", "fp8"], "precision is 'fp8'; expected fp32, tf32, fp16, bf16"),
    ],
)
def test_run_refuses_wrong_arguments_in_one_line(
    arguments: list[str],
    message: str,
    model: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(model.parent)
    np.save("objects.npy", np.array([{"a": 1}], object), allow_pickle=True)
    np.save("double.npy", np.zeros((1, 3, 8, 8)))
    Path("text.npy").write_text("no array")
    assert main(["run", str(model), *arguments]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert message in shown.err
    assert len(shown.err.splitlines()) == 1


def test_types_that_numpy_lacks_go_in_and_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As float32, which holds every bfloat16."""
    text = """<ir_version: 10, opset_import: ["" : 21]>
    g (bfloat16[5] x) => (bfloat16[5] y) { y = Mul (x, x) }"""
    source, arrays = tmp_path / "in.onnx", tmp_path / "y.npz"
    onnx.save(onnx.parser.parse_model(text), source)
    x = np.array([1.5, -3, 2**-100, np.nan, 0.1], np.float32)
    np.save(tmp_path / "x.npy", x)
    arguments = ["run", str(source), "--input", f"x={tmp_path / 'x.npy'}", "-o", str(arrays)]
    (output,) = _document(arguments, capsys)["outputs"]
    assert (output["dtype"], output["written"], output["finite"]) == ("bfloat16", "float32", False)
    assert (output["min"], output["max"]) == (0, 9)
    with np.load(arrays, allow_pickle=False) as found:
        assert found["y"].dtype == np.float32
        np.testing.assert_allclose(found["y"], np.float32([2.25, 9, 0, np.nan, 0.01]), rtol=2**-7)
    assert main(arguments) == 0
    assert "y is bfloat16, which numpy lacks: float32 there" in " ".join(capsys.readouterr().out.split())


def test_strings_go_in_and_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Drawn, compared, written without pickles and read again."""
    text = """<ir_version: 9, opset_import: ["" : 20]>
    g (string[2] x) => (string[2] y) { y = StringConcat (x, x) }"""
    source, arrays = tmp_path / "in.onnx", tmp_path / "y.npz"
    onnx.save(onnx.parser.parse_model(text), source)
    document = _document(["optimize", str(source), "-o", str(tmp_path / "out.onnx")], capsys)
    assert (document["max_error"], document["unchecked"]) == (0, None)
    document = _document(["optimize", str(source), "-o", str(tmp_path / "out.convopt"), "--verify"], capsys)
    assert document["verified"].startswith("equal to the model in onnxruntime")
    _document(["run", str(tmp_path / "out.convopt"), "-o", str(arrays)], capsys)
    with np.load(arrays, allow_pickle=False) as found:
        assert {*found["y"].tolist()} <= {"00", "11"}
        np.save(tmp_path / "x.npy", found["y"])
    _document(["run", str(source), "--input", f"x={tmp_path / 'x.npy'}", "-o", str(arrays)], capsys)
    with np.load(arrays, allow_pickle=False) as found:
        assert {*found["y"].tolist()} <= {"0000", "1111"}


def test_an_artifact_that_is_none_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "broken.convopt"
    path.write_bytes(b"not an artifact")
    assert main(["run", str(path)]) == 2
    assert str(path) in capsys.readouterr().err


def test_an_artifact_needs_static_shapes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = conv_relu(tmp_path / "in.onnx", ("N", 3, "H", "W"))
    assert main(["optimize", str(source), "-o", str(tmp_path / "out.convopt")]) == 2
    assert "give --shape NAME:D,D,... for x (N, 3, H, W)" in capsys.readouterr().err
    assert not (tmp_path / "out.convopt").exists()


def test_analyze_gives_the_gemm_and_the_roofline(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["analyze", str(model), "--threads", "1", "--peak", "100", "--bandwidth", "10"]
    document = _document(arguments, capsys)
    assert undocumented(document, analyze.COMMAND.fields) == set()
    (conv,) = document["convs"]
    # 8 x 8 outputs, 4 channels, 3 x 3 x 3 products; x, w, b (from the normalization) and y in float32.
    flop, nbytes = 2 * 64 * 4 * 27, 4 * (3 * 64 + 4 * 27 + 4 + 4 * 64)
    assert (conv["m"], conv["n"], conv["k"], conv["groups"]) == (64, 4, 27, 1)
    assert (conv["flop"], conv["bytes"]) == (flop, nbytes)
    assert conv["intensity"] == pytest.approx(flop / nbytes)
    assert conv["bound"] == "memory"  # 6.2 FLOP/byte, the ridge is at 10
    assert conv["floor_us"] == pytest.approx(nbytes / 10e9 * 1e6)
    assert conv["where"] == "compiled"
    assert conv["algorithm"]


def test_analyze_for_a_gpu_takes_its_declared_numbers(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """PoCL's kernels are compiled when they run: the target needs no device here."""
    document = _document(["analyze", str(model), "--target", "opencl", "--precision", "fp16"], capsys)
    assert document["target"] == "opencl"
    # As declared: 16 compute units, 1 GHz, 128 FLOP per clock; 100 GB/s.
    assert (document["peak_gflops"], document["bandwidth_gbs"]) == (2048, 100)
    (conv,) = document["convs"]
    assert conv["bytes"] == 2 * (3 * 64 + 4 * 27 + 4 + 4 * 64)
    assert conv["floor_us"] == pytest.approx(conv["bytes"] / 100e9 * 1e6)
    assert main(["analyze", str(model), "--target", "opencl", "--peak", "7"]) == 0
    assert "opencl, peak 7 GFLOP/s, memory 100.0 GB/s" in capsys.readouterr().out


def test_analyze_asks_for_the_shape_of_dynamic_dims(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dynamic = conv_relu(tmp_path / "dynamic.onnx", (1, 3, "h", "w"))
    assert main(["analyze", str(dynamic), "--peak", "100", "--bandwidth", "10"]) == 2
    assert "give --shape NAME:D,D,... for x (1, 3, h, w)" in capsys.readouterr().err


def test_explain_tells_each_pass_of_each_convolution(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = _document(["explain", str(model)], capsys)
    assert undocumented(document, explain.COMMAND.fields) == set()
    (conv,) = [node for node in document["nodes"] if node["op"] == "Conv"]
    said = {note["pass"]: note["text"] for note in conv["notes"]}
    assert "'norm'" in said["fold-batchnorm"]
    assert "'pad'" in said["merge-pad"]
    assert conv["where"] == "compiled"
    assert main(["explain", str(model), "--node", "conv"]) == 0
    assert "fold-batchnorm: BatchNormalization 'norm' folded in" in capsys.readouterr().out
    assert main(["explain", str(model), "--node", "nowhere"]) == 2
    assert "has no node whose name contains this" in capsys.readouterr().err
    of_one = _document(["explain", str(model), "--node", "conv", "--all"], capsys)
    of_all = _document(["explain", str(model), "--all"], capsys)
    assert of_one["nodes"] == [node for node in of_all["nodes"] if "conv" in node["node"]]
    assert of_one["passes"] == of_all["passes"]


def test_explain_tells_refusals_and_fallbacks(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = _document(["explain", str(model), "--skip", "fold-batchnorm", "--all"], capsys)
    assert "fold-batchnorm" not in [one["name"] for one in document["passes"]]
    assert {"conv", "norm", "relu"} <= {node["node"] for node in document["nodes"]}


def test_bench_has_a_ratio(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cache = model.parent / "cache"
    arguments = ["bench", str(model), "--threads", "1", "--seconds", "0.02", "--cache-dir", str(cache)]
    document = _document(arguments, capsys)
    assert any((cache / "kernels").iterdir())
    assert undocumented(document, bench.COMMAND.fields) == set()
    (case,) = document["runs"][0]["cases"]
    ours, peer = case["end_to_end"]["convopt"], case["end_to_end"]["onnxruntime"]
    assert case["ratio_to_best_peer"] == pytest.approx(peer["median_ms"] / ours["median_ms"])
    assert ours["max_error"] < 1e-5
    conv = "n=1,c=8,h=10,w=9,k=6,r=3,s=3,stride=1,pad=1"
    document = _document(["bench", "--conv", conv, "--threads", "1", "--seconds", "0.02"], capsys)
    (case,) = document["runs"][0]["cases"]
    assert case["native"]["convopt"]["layout"] == "NHWC"
    assert case["native"]["convopt"]["max_error"] < 1e-5


def test_an_array_of_another_shape_than_the_models_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What the model leaves open comes from the array; --shape alone overrides what it declares."""
    source = conv_relu(tmp_path / "in.onnx", ("N", 3, 8, 8))
    np.save(tmp_path / "x.npy", np.zeros((2, 3, 8, 8), np.float32))
    arguments = ["run", str(source), "--input", f"x={tmp_path / 'x.npy'}"]
    assert main([*arguments, "--quiet"]) == 0
    for shape in ((2, 3, 9, 8), (2, 3, 8), ()):
        np.save(tmp_path / "x.npy", np.zeros(shape, np.float32))
        assert main(arguments) == 2
        said = capsys.readouterr().err
        assert "input 'x': expected" in said and "(N, 3, 8, 8)" in said and f"{shape}" in said
    np.save(tmp_path / "x.npy", np.zeros((2, 3, 9, 8), np.float32))
    assert main([*arguments, "--shape", "x:2,3,9,8", "--quiet"]) == 0


@pytest.mark.parametrize(
    "arguments", [["analyze"], ["explain"], ["run"], ["bench", "--seconds", "0.02"]], ids=lambda a: a[0]
)
def test_tables_print(arguments: list[str], model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([arguments[0], str(model), *arguments[1:]]) == 0
    assert capsys.readouterr().out
