"""`convopt optimize IN.onnx -o OUT.onnx`: the file written, its document, and what is refused."""

import json
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from convopt.cli import optimize
from convopt.cli.main import main
from tests.cli.fields import undocumented
from tests.cli.models import conv_relu


def _outputs(path: Path, x: np.ndarray) -> np.ndarray:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(path.read_bytes(), options, providers=["CPUExecutionProvider"])
    return session.run(None, {"x": x})[0]


@pytest.mark.parametrize("lowered", [False, True], ids=["standard", "lowered"])
def test_writes_an_equal_model_and_counts_its_nodes(
    lowered: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, target = conv_relu(tmp_path / "in.onnx"), tmp_path / "out.onnx"
    assert (
        main(["optimize", str(source), "-o", str(target), "--json", *(["--lowered"] if lowered else [])]) == 0
    )
    document = json.loads(capsys.readouterr().out)
    assert undocumented(document, optimize.COMMAND.fields) == set()
    assert document["format"] == ("lowered" if lowered else "onnx")
    assert document["nodes_before"] == {"Pad": 1, "Conv": 1, "BatchNormalization": 1, "Relu": 1}
    assert document["max_error"] < 1e-5
    assert document["unchecked"] is None
    if lowered:
        assert document["nodes_after"]["convopt.Conv"] == 1
        assert {node.domain for node in onnx.load(target).graph.node} == {"convopt"}
    else:
        assert document["nodes_after"] == {"Conv": 1, "Relu": 1}
        assert (
            list(next(a for a in onnx.load(target).graph.node[0].attribute if a.name == "pads").ints)
            == [1] * 4
        )
    x = np.random.default_rng(5).standard_normal((1, 3, 8, 8)).astype(np.float32)
    np.testing.assert_allclose(_outputs(target, x), _outputs(source, x), atol=1e-5)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in.onnx", "out.onnx"]


def test_shape_binds_dynamic_dims(tmp_path: Path) -> None:
    source, target = conv_relu(tmp_path / "in.onnx", ("N", 3, "H", "W")), tmp_path / "out.onnx"
    assert main(["optimize", str(source), "-o", str(target), "--shape", "x:2,3,6,7", "--quiet"]) == 0
    dims = onnx.load(target).graph.input[0].type.tensor_type.shape.dim
    assert [dim.dim_value for dim in dims] == [2, 3, 6, 7]


def test_dynamic_dims_stay_dynamic_without_a_shape(tmp_path: Path) -> None:
    source, target = conv_relu(tmp_path / "in.onnx", ("N", 3, "H", "W")), tmp_path / "out.onnx"
    assert main(["optimize", str(source), "-o", str(target), "--quiet"]) == 0
    for shape in ((1, 3, 8, 8), (3, 3, 5, 9)):
        x = np.random.default_rng(5).standard_normal(shape).astype(np.float32)
        np.testing.assert_allclose(_outputs(target, x), _outputs(source, x), atol=1e-5)


def test_print_after_dump_dir_and_skip(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, target, folder = conv_relu(tmp_path / "in.onnx"), tmp_path / "out.onnx", tmp_path / "stages"
    arguments = ["optimize", str(source), "-o", str(target), "--json", "--dump-dir", str(folder)]
    arguments += ["--print-after", "fold-batchnorm", "--skip", "merge-pad"]
    assert main(arguments) == 0
    shown = capsys.readouterr()
    document = json.loads(shown.out)
    names = [one["name"] for one in document["passes"]]
    assert "merge-pad" not in names
    assert document["nodes_after"]["Pad"] == 1
    assert sorted(p.name for p in folder.iterdir()) == [
        f"{i:02d}-{name}.onnx" for i, name in enumerate(names)
    ]
    for stage in folder.iterdir():
        onnx.checker.check_model(onnx.load(stage))
    assert shown.err.startswith("// after fold-batchnorm\n")
    assert "BatchNormalization" not in shown.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-o", "out.txt"], "expected a file name that ends in .convopt or .onnx"),
        (["-o", "nowhere/out.onnx"], "there is no folder"),
        (["-o", "out.onnx", "--shape", "x=1,3"], "expected NAME:D,D"),
        (["-o", "out.onnx", "--shape", "x:1,a"], "dims must be integers"),
        (["-o", "out.onnx", "--shape", "x:1,3,8,8", "--shape", "x:1,3,8,8"], "has a shape already"),
        (["-o", "out.onnx", "--shape", "z:1,3"], "'z'"),
        (["-o", "out.onnx", "--shape", "x:1,3"], "'x'"),
        (["-o", "out.onnx", "--skip", "merge-everything"], "no pass is named 'merge-everything'"),
        (["-o", "out.onnx", "--print-after", "nothing"], "no such pass ran"),
        (["-o", "out.convopt", "--lowered"], "--lowered writes an ONNX file"),
        (["-o", "out.onnx", "--verify"], "--verify is about compiled artifacts"),
        (["-o", "out.onnx", "--precision", "bf16"], "--precision: is about compiled artifacts"),
    ],
)
def test_wrong_arguments_exit_with_2_and_leave_nothing(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    conv_relu(tmp_path / "in.onnx")
    assert main(["optimize", "in.onnx", *arguments]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("convopt: ")
    assert message in shown.err
    assert "Traceback" not in shown.err
    assert [p.name for p in tmp_path.iterdir()] == ["in.onnx"]


def test_lowering_wants_static_shapes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, target = conv_relu(tmp_path / "in.onnx", ("N", 3, "H", "W")), tmp_path / "out.onnx"
    assert main(["optimize", str(source), "-o", str(target), "--lowered"]) == 2
    assert "dynamic dims; give --shape NAME:D,D,... for x [N,3,H,W]" in capsys.readouterr().err
    assert not target.exists()


@pytest.mark.parametrize("content", [b"", b"not a model", None], ids=["empty", "text", "missing"])
def test_unusable_files_exit_with_2(
    content: bytes | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, target = tmp_path / "in.onnx", tmp_path / "out.onnx"
    if content is not None:
        source.write_bytes(content)
    assert main(["optimize", str(source), "-o", str(target)]) == 2
    shown = capsys.readouterr().err
    assert shown.startswith(f"convopt: {source}: ")
    assert len(shown.splitlines()) == 1
    assert not target.exists()


def test_a_pass_that_breaks_the_model_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from convopt.passes.fold_batchnorm import FoldBatchNorm

    whole = FoldBatchNorm.run

    def wrong(self, model, context):
        report = whole(self, model, context)
        weight = model.graph.node(1).inputs[1]
        import onnx_ir as ir

        weight.const_value = ir.tensor(weight.const_value.numpy() * 2, name=weight.name)
        return report

    monkeypatch.setattr(FoldBatchNorm, "run", wrong)
    source, target = conv_relu(tmp_path / "in.onnx"), tmp_path / "out.onnx"
    assert main(["optimize", str(source), "-o", str(target)]) == 2
    assert "the rewritten model differs by" in capsys.readouterr().err
    assert main(["optimize", str(source), "-o", str(target), "--check", "each-pass"]) == 2
    assert "pass fold-batchnorm: output 'y' differs" in capsys.readouterr().err
    assert not target.exists()


@pytest.mark.parametrize("name", ["in.onnx", "./in.onnx", "link.onnx"])
def test_the_model_itself_is_not_overwritten(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    conv_relu(tmp_path / "in.onnx")
    (tmp_path / "link.onnx").symlink_to("in.onnx")
    before = (tmp_path / "in.onnx").read_bytes()
    assert main(["optimize", "in.onnx", "-o", name]) == 2
    assert "is the model itself" in capsys.readouterr().err
    assert (tmp_path / "in.onnx").read_bytes() == before
