"""ONNX in and out: `load` checks everything that a file can get wrong, `save` never leaves half a file."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import onnx_ir as ir

from convopt.errors import ModelError
from convopt.frontends import onnx_checks
from convopt.ir.protos import whole_proto
from convopt.ir.shapes import infer_outputs

if TYPE_CHECKING:
    import onnx

# A protobuf message can't exceed 2 GiB; the weights beyond this go into a file beside the model.
INLINE_LIMIT = (1 << 31) - (1 << 24)


class TranslatedModel(ir.Model):
    """A model that a frontend has made of another framework's graph, which had checked that. It belongs to
    whom it is given to; its constants may be the other framework's memory.
    """


def load(
    source: str | os.PathLike[str] | bytes | onnx.ModelProto | ir.Model, name: str = "model"
) -> ir.Model:
    """A checked model that shares nothing mutable with the source; weights in other files stay there.

    source: a path, the file's bytes, a ModelProto or an onnx_ir.Model. Weights in other files are looked for
        in the path's folder, so bytes and protos can't have any. A TranslatedModel is returned as it is.
    name: what messages call the model where the source has no path.

    An initializer that is listed as an input too (IR version 3 asks for it) becomes a constant.

    Raises:
        ModelError: no usable ONNX model; names the file, the node or tensor, and what was expected.
    """
    folder: Path | None = None
    if isinstance(source, TranslatedModel):
        return source
    if isinstance(source, ir.Model):
        proto = ir.to_proto(source)
        folder = _folder_of(source)
    elif isinstance(source, bytes):
        proto = _parse(source, name)
    elif isinstance(source, (str, os.PathLike)):
        path = Path(source)
        name, folder = str(path), path.parent
        proto = _parse(_read(path), name)
    elif hasattr(source, "SerializeToString") and hasattr(source, "graph"):
        proto = source
    else:
        raise ModelError(
            f"{name}: expected a path, bytes, a ModelProto or an onnx_ir.Model, got {type(source).__name__}"
        )
    onnx_checks.check_model(proto, name, folder)
    try:
        model = ir.from_proto(proto)
    except Exception as error:  # the reader raises its own errors for what the checks above don't know
        raise ModelError(f"{name}: not a readable ONNX model: {_innermost(error)}") from error
    if folder is not None:
        ir.external_data.set_base_dir(model.graph, folder)
    _settle(model)
    _type_boundary(model, name)
    return model


def save(model: ir.Model, path: str | os.PathLike[str]) -> None:
    """Writes the model as one file, or with its weights in `PATH.data` beside it where they exceed 2 GB.

    Everything is written under a temporary name in the same folder and renamed at the end, so that an
    interrupted call leaves what was there before.

    Raises:
        ModelError: the file can't be written, as where the disk is full.
    """
    path = Path(path)
    try:
        with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as scratch:
            _write(model, Path(scratch) / path.name, path)
    except OSError as error:  # a full disk's names no file
        raise ModelError(f"cannot write {path}: {error.strerror or error}") from error


def _write(model: ir.Model, written: Path, path: Path) -> None:
    import onnx

    if sum(t.nbytes for t in _tensors(model)) > INLINE_LIMIT:
        ir.save(model, written, external_data=f"{path.name}.data")
        written.with_name(f"{path.name}.data").replace(path.with_name(f"{path.name}.data"))
    else:
        onnx.save(whole_proto(model), written)
    written.replace(path)


def _tensors(model: ir.Model) -> list[ir.TensorProtocol]:
    values = (v for g in model.graphs() for v in g.initializers.values())
    return [v.const_value for v in values if v.const_value is not None]


def _read(path: Path) -> bytes:
    try:
        exists = path.exists()
    except OSError as error:  # a name that is too long, a folder that may not be read
        raise ModelError(f"{path}: can't be read: {error.strerror}") from error
    if not exists:
        raise ModelError(f"{path}: no such file; expected an ONNX model")
    if not path.is_file():
        raise ModelError(f"{path}: not a file; expected an ONNX model")
    if path.stat().st_size >= 1 << 31:
        raise ModelError(
            f"{path}: {path.stat().st_size} bytes; an ONNX file is below 2 GiB, its weights may be beside it"
        )
    try:
        return path.read_bytes()
    except OSError as error:
        raise ModelError(f"{path}: can't be read: {error.strerror}") from error


def _parse(data: bytes, name: str) -> onnx.ModelProto:
    import onnx
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

    if not data:
        raise ModelError(f"{name}: empty; expected an ONNX model")
    try:
        proto: onnx.ModelProto = onnx.ModelProto.FromString(data)
        return proto
    except DecodeError as error:
        if data.startswith(b"PK"):
            raise ModelError(
                f"{name}: a convopt artifact, not an ONNX model: convopt.load reads it"
            ) from error
        raise ModelError(f"{name}: not an ONNX model, or truncated ({len(data)} bytes): {error}") from error


def _folder_of(model: ir.Model) -> Path | None:
    """The folder of the model's external tensors, None where it has none."""
    for tensor in _tensors(model):
        if isinstance(tensor, ir.ExternalTensor):
            return Path(tensor.base_dir)
    return None


def _innermost(error: BaseException) -> str:
    while error.__cause__ is not None:
        error = error.__cause__
    return str(error)


def _settle(model: ir.Model) -> None:
    """Initializers are no inputs, nodes are in topological order, and every node has a name of its own."""
    graph = model.graph
    constants = [v for v in graph.inputs if v.is_initializer()]
    for value in constants:
        graph.inputs.remove(value)
    if constants:
        model.ir_version = max(model.ir_version, 4)  # IR version 3 has no constants that are not inputs
    for one in model.graphs():
        for value in one.initializers.values():  # what an input or output of this name declares says less
            if value.const_value is not None:
                value.shape = ir.Shape(value.const_value.shape.numpy())
                value.type = ir.TensorType(value.const_value.dtype)
        one.sort()
        for value in (*one.inputs, *one.outputs, *(v for node in one for v in node.outputs)):
            _unname_dims(value)
    taken: set[str] = set()
    for index, node in enumerate(graph.all_nodes()):
        stem = node.name or (node.outputs[0].name if node.outputs else "") or f"{node.op_type}_{index}"
        name, number = stem, 0
        while name in taken:
            number += 1
            name = f"{stem}_{number}"
        taken.add(name)
        node.name = name


def _type_boundary(model: ir.Model, name: str) -> None:
    """Inputs and outputs are tensors. Outputs may leave their dtype to be inferred; inputs may not."""
    graph = model.graph
    if any(v.dtype is None for v in graph.outputs):
        for node in graph:
            infer_outputs(node, model.opset_imports)
    for what, values in (("input", graph.inputs), ("output", graph.outputs)):
        for value in values:
            if value.dtype is None:
                raise ModelError(f"{name}: {what} {value.name!r} has no dtype; expected a tensor with one")
            if not isinstance(value.type, ir.TensorType):
                kind = "a sequence" if isinstance(value.type, ir.SequenceType) else "optional or sparse"
                raise ModelError(f"{name}: {what} {value.name!r} is {kind}; expected a tensor")


def _unname_dims(value: ir.Value) -> None:
    """-1 and "?" are how some exporters write a dim of which they know nothing."""
    if value.shape is not None and any(_says_nothing(d) for d in value.shape):
        value.shape = ir.Shape([None if _says_nothing(d) else d for d in value.shape])


def _says_nothing(dim: int | ir.SymbolicDim) -> bool:
    return dim.value in ("", "?", "-1") if isinstance(dim, ir.SymbolicDim) else dim < 0
