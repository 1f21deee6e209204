"""What `load` takes, and what it makes of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from convopt.errors import ModelError
from convopt.frontends import onnx_file
from convopt.frontends.onnx_file import load, save

TEXT = """<ir_version: 8, opset_import: ["" : 17]>
g (float[N,2,5,5] x) => (float[N,4,3,3] y) <float[4,2,3,3] w = {%s}> { y = Conv (x, w) }
""" % ",".join(str(i) for i in range(72))  # noqa: UP031


@pytest.fixture
def proto() -> onnx.ModelProto:
    return onnx.parser.parse_model(TEXT)


def test_every_source_gives_the_same_model(proto: onnx.ModelProto, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(proto, path)
    models = [load(path), load(str(path)), load(path.read_bytes()), load(proto), load(ir.from_proto(proto))]
    for model in models:
        assert [n.op_type for n in model.graph] == ["Conv"]
        np.testing.assert_array_equal(
            model.graph.initializers["w"].const_value.numpy().reshape(-1), np.arange(72, dtype=np.float32)
        )


def test_the_source_is_not_changed(proto: onnx.ModelProto) -> None:
    source = ir.from_proto(proto)
    model = load(source)
    model.graph.remove(model.graph[0])
    assert len(source.graph) == 1


def test_initializers_are_no_inputs(proto: onnx.ModelProto) -> None:
    """IR version 3 lists every initializer as an input."""
    proto.ir_version = 3
    proto.graph.input.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, [4, 2, 3, 3]))
    model = load(proto)
    assert [v.name for v in model.graph.inputs] == ["x"]
    assert model.ir_version >= 4


def test_an_initializer_that_is_an_output_has_its_own_shape(proto: onnx.ModelProto) -> None:
    """The output's declaration may leave the shape out."""
    proto.graph.output.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, None))
    assert load(proto).graph.outputs[1].shape == ir.Shape([4, 2, 3, 3])


def test_an_output_may_leave_its_dtype_out(proto: onnx.ModelProto) -> None:
    proto.graph.output[0].ClearField("type")
    assert load(proto).graph.outputs[0].dtype == ir.DataType.FLOAT


def test_a_boundary_without_dtype(proto: onnx.ModelProto) -> None:
    """An input's can't be inferred, nor an output's behind an operator that nobody knows."""
    proto.graph.input[0].ClearField("type")
    with pytest.raises(ModelError, match="input 'x' has no dtype"):
        load(proto)
    text = """<ir_version: 8, opset_import: ["" : 17, "other" : 1]>
    g (float[2] x) => (float[2] y) { y = other.Strange (x) }"""
    strange = onnx.parser.parse_model(text)
    strange.graph.output[0].ClearField("type")
    with pytest.raises(ModelError, match="output 'y' has no dtype"):
        load(strange)


@pytest.mark.parametrize("declared", [True, False])
def test_a_sequence_at_the_boundary(declared: bool) -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[2] x) => (seq(float[2]) y) { y = SequenceConstruct (x) }"""
    proto = onnx.parser.parse_model(text)
    if not declared:
        proto.graph.output[0].ClearField("type")
    with pytest.raises(ModelError, match="output 'y' is a sequence"):
        load(proto)


def test_nodes_are_sorted_and_named() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[2] x) => (float[2] y) { y = Relu (a)  a = Neg (x)  b = Abs (x) }"""
    proto = onnx.parser.parse_model(text)
    proto.graph.node[2].name = "y"
    model = load(proto)
    names = [n.name for n in model.graph]
    assert len(set(names)) == 3 and all(names)
    assert [n.op_type for n in model.graph if n.op_type != "Abs"] == ["Neg", "Relu"]


@pytest.mark.parametrize("extent", [-1, "?", ""])
def test_dims_that_say_nothing_have_no_name(proto: onnx.ModelProto, extent: int | str) -> None:
    dim = proto.graph.input[0].type.tensor_type.shape.dim[0]
    if isinstance(extent, int):
        dim.dim_value = extent
    else:
        dim.dim_param = extent
    assert load(proto).graph.inputs[0].shape == ir.Shape((None, 2, 5, 5))


def _save_external(path: Path) -> None:
    model = onnx.parser.parse_model(TEXT)
    array = numpy_helper.to_array(model.graph.initializer[0])
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(array, "w"))  # only raw data can be outside
    onnx.save(model, path, save_as_external_data=True, location="m.bin", size_threshold=0)


def test_external_data_is_read_from_the_models_folder(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    _save_external(path)
    model = load(path)
    assert model.graph.initializers["w"].const_value.numpy()[3, 1, 2, 2] == 71
    save(model, tmp_path / "inline.onnx")  # its weights are inside, whatever becomes of m.bin
    (tmp_path / "m.bin").unlink()
    assert load(tmp_path / "inline.onnx").graph.initializers["w"].const_value.numpy().sum() == 71 * 36


def test_a_link_inside_the_folder_is_followed(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    _save_external(path)
    (tmp_path / "m.bin").rename(tmp_path / "blob")
    (tmp_path / "m.bin").symlink_to("blob")
    assert load(path).graph.initializers["w"].const_value.numpy()[0, 0, 0, 1] == 1


def test_save_is_whole_or_not_at_all(
    proto: onnx.ModelProto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "out.onnx"
    path.write_bytes(b"what was there")

    def fail(*arguments: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(onnx, "save", fail)
    with pytest.raises(ModelError, match=r"cannot write .*out\.onnx: disk full"):
        save(load(proto), path)
    assert path.read_bytes() == b"what was there"
    assert [p.name for p in tmp_path.iterdir()] == ["out.onnx"]


def test_save_puts_large_weights_beside(
    proto: onnx.ModelProto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit is 2 GiB; lowered here, the same code runs."""
    monkeypatch.setattr(onnx_file, "INLINE_LIMIT", 100)
    array = np.arange(3 * 3 * 64, dtype=np.float32).reshape(64, 1, 3, 3)
    proto.graph.initializer.append(numpy_helper.from_array(array, "unused"))
    model = load(proto)
    save(model, tmp_path / "out.onnx")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out.onnx", "out.onnx.data"]
    back = load(tmp_path / "out.onnx")
    np.testing.assert_array_equal(back.graph.initializers["unused"].const_value.numpy(), array)
    np.testing.assert_array_equal(model.graph.initializers["unused"].const_value.numpy(), array)


def test_not_a_model_at_all() -> None:
    with pytest.raises(ModelError, match=r"or an onnx_ir\.Model, got int"):
        load(3)  # type: ignore[arg-type]
