"""Bad model files: one ModelError that names the file, the node or tensor, and what was expected."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from convopt.errors import ModelError
from convopt.frontends.onnx_file import load


def _conv(
    group: int = 1, weight: tuple[int, ...] = (4, 2, 3, 3), bias: int = 4, op: str = "Conv"
) -> onnx.ModelProto:
    generator = np.random.default_rng(0)
    graph = helper.make_graph(
        [helper.make_node(op, ["x", "w", "b"], ["y"], name="stem", group=group)],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 2, 5, 5])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [
            numpy_helper.from_array(generator.standard_normal(weight).astype(np.float32), "w"),
            numpy_helper.from_array(np.zeros(bias, np.float32), "b"),
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _text(body: str, inputs: str = "float[2] x", outputs: str = "float[2] y") -> onnx.ModelProto:
    return onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 17]> g ({inputs}) => ({outputs}) {body}'
    )


def _refused(source: Path | bytes | onnx.ModelProto, *words: str) -> None:
    """One line, that has the words and says what was expected."""
    with pytest.raises(ModelError) as caught:
        load(source, "net")
    text = str(caught.value)
    assert "\n" not in text.strip()
    assert text.startswith("net: ") or str(source) in text
    for word in words:
        assert word in text, text


@pytest.mark.parametrize(
    "data", [b"", b"hello", b"\x89PNG\r\n\x1a\n" + bytes(64), b"PK\x03\x04" + bytes(64), bytes(1000)]
)
def test_not_onnx(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "picture.png"
    path.write_bytes(data)
    _refused(path, "ONNX model")


def test_no_file(tmp_path: Path) -> None:
    _refused(tmp_path / "none.onnx", "none.onnx: no such file; expected an ONNX model")
    _refused(tmp_path, "not a file; expected an ONNX model")
    _refused(tmp_path / ("a" * 5000), "can't be read: File name too long")


def test_truncated_anywhere() -> None:
    """At every length the file is refused: by the reader, or because something is missing."""
    data = _conv().SerializeToString()
    for length in range(len(data)):
        with pytest.raises(ModelError):
            load(data[:length], "net")


def test_noise_never_escapes_as_another_error() -> None:
    """Single damaged bytes load, or are refused by ModelError; nothing else comes out."""
    data = bytearray(_conv().SerializeToString())
    generator = np.random.default_rng(0)
    for _ in range(400):
        damaged = bytearray(data)
        damaged[generator.integers(len(data))] = generator.integers(256)
        try:
            load(bytes(damaged), "net")
        except ModelError:
            continue


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda m: setattr(m.graph.initializer[0], "data_type", 99), ["initializer 'w'", "unknown dtype 99"]),
        (lambda m: setattr(m.graph.initializer[0], "data_type", 0), ["initializer 'w'", "unknown dtype 0"]),
        (
            lambda m: setattr(m.graph.input[0].type.tensor_type, "elem_type", 77),
            ["value 'x'", "unknown dtype 77"],
        ),
        (lambda m: setattr(m.opset_import[0], "version", 999), ["opset 999", "expected 1 to"]),
        (lambda m: m.ClearField("opset_import"), ["no opset of the standard operators"]),
        (lambda m: setattr(m, "ir_version", 999), ["IR version 999; expected at most"]),
        (lambda m: m.graph.ClearField("output"), ["no outputs"]),
        (
            lambda m: setattr(m.graph.initializer[0], "raw_data", bytes(7)),
            ["initializer 'w' has 7 bytes; expected 288 bytes for FLOAT [4, 2, 3, 3]"],
        ),
        (
            lambda m: m.graph.initializer[0].dims.__setitem__(0, 1 << 60),
            ["initializer 'w' has 288 bytes; expected", "bytes for FLOAT"],
        ),
        (lambda m: m.graph.initializer[0].dims.__setitem__(0, -4), ["expected extents of 0 or more"]),
        (
            lambda m: m.graph.initializer.append(m.graph.initializer[0]),
            ["initializer 'w' is given twice; expected distinct names"],
        ),
        (
            lambda m: m.graph.input.append(m.graph.input[0]),
            ["input 'x' is declared twice; expected distinct names"],
        ),
        (
            lambda m: m.graph.node.append(helper.make_node("Relu", ["x"], ["y"], name="r")),
            ["Relu 'r' defines 'y' a second time"],
        ),
        (
            lambda m: m.graph.node.append(helper.make_node("Relu", ["x"], ["w"], name="r")),
            ["Relu 'r' defines 'w' a second time"],
        ),
        (
            lambda m: m.graph.node.append(helper.make_node("Relu", ["q"], ["z"], name="r")),
            ["Relu 'r' reads 'q', which is no input, constant or output of a node; expected a defined value"],
        ),
        (
            lambda m: m.graph.output.append(helper.make_tensor_value_info("z", 1, None)),
            ["the graph gives 'z', which no node defines"],
        ),
        (
            lambda m: m.graph.initializer.append(
                numpy_helper.from_array(np.array([1, np.nan], np.float32), "spoiled")
            ),
            ["initializer 'spoiled' holds NaN; expected numbers"],
        ),
        (
            lambda m: m.graph.initializer.append(helper.make_tensor("typed", 11, [2], [1.0, float("nan")])),
            ["initializer 'typed' holds NaN; expected numbers"],
        ),
        (
            lambda m: m.graph.initializer.append(
                numpy_helper.from_array(np.array([1, np.nan], np.float16), "half")
            ),
            ["initializer 'half' holds NaN; expected numbers"],
        ),
    ],
)
def test_spoiled(spoil: Callable[[onnx.ModelProto], None], words: list[str]) -> None:
    model = _conv()
    load(model)
    spoil(model)
    _refused(model, *words)


def test_infinity_is_a_number() -> None:
    """Masks are made of it; inf - inf in the check must not look like NaN."""
    model = _conv()
    model.graph.initializer.append(numpy_helper.from_array(np.array([-np.inf, np.inf], np.float32), "mask"))
    load(model)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (_conv(bias=3), ["Conv 'stem' has the bias 'b' of shape [3]; expected [4]"]),
        (_conv(group=3), ["Conv 'stem' has group 3; expected a divisor of the weight's first extent 4"]),
        (_conv(group=0), ["Conv 'stem' has group 0; expected a divisor"]),
        (_conv(op="ConvTranspose", group=2), []),
        (_conv(op="ConvTranspose", group=2, bias=2), ["ConvTranspose 'stem'", "of shape [2]; expected [4]"]),
        (_conv(weight=(4, 2)), ["of shape [4, 2]; expected at least 3 dims"]),
    ],
)
def test_convs(model: onnx.ModelProto, words: list[str]) -> None:
    if words:
        _refused(model, *words)
    else:
        load(model)


def test_kernel_shape_against_weight() -> None:
    model = _conv()
    model.graph.node[0].attribute.append(helper.make_attribute("kernel_shape", [5, 5]))
    _refused(model, "Conv 'stem' has kernel_shape [5, 5]; expected the weight's [3, 3]")


def test_cycles() -> None:
    _refused(
        _text("{ y = Add (x, b)  b = Relu (c)  c = Neg (y)  d = Abs (b) }"), "cycle through", "expected none"
    )
    with pytest.raises(ModelError) as caught:
        load(_text("{ y = Add (x, b)  b = Relu (c)  c = Neg (y)  d = Abs (b) }"))
    assert set(re.findall(r"(\w+) '", str(caught.value))) == {"Add", "Relu", "Neg"}
    _refused(_text("{ y = Add (x, y) }"), "cycle through Add 'y'")


def test_subgraphs_are_checked() -> None:
    branch = """{ y = If (x) <
        then_branch = t () => (float[2] a) { a = Relu (nowhere) },
        else_branch = e () => (float[2] b) { b = Relu (k) }
    > }"""
    model = _text(branch, "bool x, float[2] k")
    _refused(model, "in If 'y': Relu 'a' reads 'nowhere'")
    model.graph.node[0].attribute[0].g.node[0].input[0] = "k"
    load(model)


def _external(folder: Path) -> tuple[Path, onnx.ModelProto]:
    path = folder / "m.onnx"
    onnx.save(_conv(), path, save_as_external_data=True, location="m.bin", size_threshold=100)
    return path, onnx.load(path, load_external_data=False)


def _set(model: onnx.ModelProto, key: str, value: str) -> None:
    entries = model.graph.initializer[0].external_data
    for entry in entries:
        if entry.key == key:
            entry.value = value
            return
    entries.add(key=key, value=value)


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("location", "none.bin", ["initializer 'w'", "'none.bin', which does not exist"]),
        ("location", "../m.bin", ["'../m.bin'; expected a path inside the model's folder"]),
        ("location", "sub/../../m.bin", ["expected a path inside the model's folder"]),
        ("location", "/etc/passwd", ["'/etc/passwd'; expected a path inside the model's folder"]),
        ("location", "", ["expected a path inside the model's folder"]),
        ("length", "12", ["has 12 bytes", "expected 288 bytes for FLOAT [4, 2, 3, 3]"]),
        ("length", str(1 << 60), ["expected 288 bytes"]),
        ("length", "many", ["no number", "expected 288 bytes"]),
        ("offset", "4096", ["lies at bytes 4096 to 4384", "which has"]),
        ("offset", "-8", ["lies at bytes -8 to 280"]),
    ],
)
def test_external_data(tmp_path: Path, key: str, value: str, words: list[str]) -> None:
    path, model = _external(tmp_path)
    load(path)
    _set(model, key, value)
    path.write_bytes(model.SerializeToString())
    _refused(path, *words)


def test_external_data_through_a_link(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    inside = tmp_path / "inside"
    outside.mkdir()
    inside.mkdir()
    path, _ = _external(inside)
    (inside / "m.bin").rename(outside / "m.bin")
    (inside / "m.bin").symlink_to(outside / "m.bin")
    _refused(path, "a link out of the model's folder; expected one inside")


@pytest.mark.parametrize("location", ["ring", "m\0.bin", "m" * 5000], ids=["ring", "zero byte", "long"])
def test_external_data_that_can_not_be_looked_at(tmp_path: Path, location: str) -> None:
    """Links in a ring, a zero byte, a name beyond what the system takes."""
    path, model = _external(tmp_path)
    (tmp_path / "ring").symlink_to("back")
    (tmp_path / "back").symlink_to("ring")
    _set(model, "location", location)
    path.write_bytes(model.SerializeToString())
    _refused(path, "initializer 'w' is in the file", "which can't be looked at")


def test_external_data_through_a_hard_link(tmp_path: Path) -> None:
    """It may be any file of the same disk; the onnx package refuses it too."""
    path, _ = _external(tmp_path)
    (tmp_path / "other").hardlink_to(tmp_path / "m.bin")
    _refused(path, "'m.bin', which has other hard links; expected a file of its own")


def test_external_data_without_a_folder(tmp_path: Path) -> None:
    path, _ = _external(tmp_path)
    _refused(path.read_bytes(), "the model has no folder; expected the model's path")


def test_external_nan(tmp_path: Path) -> None:
    path, _ = _external(tmp_path)
    data = bytearray((tmp_path / "m.bin").read_bytes())
    data[0:4] = np.float32(np.nan).tobytes()
    (tmp_path / "m.bin").write_bytes(data)
    _refused(path, "initializer 'w' holds NaN")


def test_huge_declared_size_takes_no_memory(tmp_path: Path) -> None:
    """The header asks for 2**62 bytes; it is refused by comparing numbers."""
    path, model = _external(tmp_path)
    model.graph.initializer[0].dims[0] = 1 << 55
    path.write_bytes(model.SerializeToString())
    _refused(path, "initializer 'w'", "expected")
