"""What must hold of a ModelProto before it is read: sizes, types, names, order, and the convs' own rules.

Everything that a header declares is compared with what is there before any memory is taken for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from convopt.errors import ModelError

if TYPE_CHECKING:
    import onnx

Fail = Callable[[str], NoReturn]


def check_model(model: onnx.ModelProto, name: str, folder: Path | None) -> None:
    """Raises ModelError: one sentence that names the file, the node or tensor, and what was expected."""
    import onnx

    def fail(text: str) -> NoReturn:
        raise ModelError(f"{name}: {text}")

    if not model.ir_version or not model.HasField("graph"):
        fail("not an ONNX model, or truncated: expected an IR version and a graph")
    if model.ir_version > onnx.IR_VERSION:
        fail(f"IR version {model.ir_version}; expected at most {onnx.IR_VERSION}")
    versions = {o.domain if o.domain != "ai.onnx" else "": o.version for o in model.opset_import}
    newest = onnx.defs.onnx_opset_version()
    if "" not in versions and any(n.domain in ("", "ai.onnx") for n in model.graph.node):
        fail("no opset of the standard operators; expected one opset_import of domain ''")
    if "" in versions and not 1 <= versions[""] <= newest:
        fail(f"opset {versions['']} of the standard operators; expected 1 to {newest}")
    if not model.graph.output:
        fail("the graph has no outputs (truncated?); expected at least one")
    for function in model.functions:
        known = {*function.input, ""}
        _check_nodes(function.node, known, set(), f"function {function.name!r}: ", folder, fail)
        _check_outputs(function.output, known, f"function {function.name!r}", fail)
    _check_graph(model.graph, frozenset(), "", folder, fail)


def _check_graph(
    graph: onnx.GraphProto, outer: frozenset[str], where: str, folder: Path | None, fail: Fail
) -> None:
    """`outer`: names that enclosing graphs define; `where`: the beginning of messages, for subgraphs."""
    if graph.sparse_initializer:
        fail(f"{where}sparse initializer {graph.sparse_initializer[0].values.name!r}; expected dense ones")
    defined: set[str] = set()
    for value in graph.input:
        if value.name in defined:
            fail(f"{where}input {value.name!r} is declared twice; expected distinct names")
        defined.add(value.name)
    for value in (*graph.input, *graph.output, *graph.value_info):
        _check_type(value, where, fail)
    tensors: dict[str, onnx.TensorProto] = {}
    for tensor in graph.initializer:
        if not tensor.name:
            fail(f"{where}an initializer has no name; expected one")
        if tensor.name in tensors:
            fail(f"{where}initializer {tensor.name!r} is given twice; expected distinct names")
        check_tensor(tensor, f"{where}initializer {tensor.name!r}", folder, fail)
        tensors[tensor.name] = tensor
    known = {*outer, *defined, *tensors, ""}
    _check_nodes(graph.node, known, {*defined, *tensors}, where, folder, fail)
    _check_outputs((v.name for v in graph.output), known, f"{where}the graph", fail)
    for node in graph.node:
        if node.op_type in ("Conv", "ConvTranspose") and node.domain in ("", "ai.onnx"):
            _check_conv(node, tensors, where, fail)


def _check_nodes(
    nodes: Iterable[onnx.NodeProto],
    known: set[str],
    local: set[str],
    where: str,
    folder: Path | None,
    fail: Fail,
) -> None:
    """Each value is defined once, each read is of a defined one, no cycles; adds the outputs to `known`."""
    nodes = list(nodes)
    producer: dict[str, int] = {}
    for index, node in enumerate(nodes):
        for output in filter(None, node.output):
            if output in producer or output in local:
                fail(f"{where}{_name(node)} defines {output!r} a second time; expected distinct names")
            producer[output] = index
    everything = known | producer.keys()
    waits: list[set[int]] = []
    for node in nodes:
        reads = list(node.input)
        for attribute in node.attribute:
            for sub in (attribute.g, *attribute.graphs) if attribute.type in (5, 10) else ():
                _check_graph(sub, frozenset(everything), f"{where}in {_name(node)}: ", folder, fail)
                reads += _free_names(sub)
            # Other operators' tensors have meanings of their own: a tree ensemble separates its sets by NaN.
            for tensor in (attribute.t,) if node.op_type == "Constant" and attribute.type == 4 else ():
                check_tensor(tensor, f"{where}attribute {attribute.name!r} of {_name(node)}", folder, fail)
        for name in reads:
            if name not in everything:
                fail(
                    f"{where}{_name(node)} reads {name!r}, which is no input, constant or output of a node;"
                    " expected a defined value"
                )
        waits.append({producer[name] for name in reads if name in producer})
    _check_acyclic(nodes, waits, where, fail)
    known.update(producer)


def _check_acyclic(nodes: list[onnx.NodeProto], waits: list[set[int]], where: str, fail: Fail) -> None:
    readers: list[list[int]] = [[] for _ in nodes]
    for index, sources in enumerate(waits):
        for source in sources:
            readers[source].append(index)
    missing = [len(sources) for sources in waits]
    ready = [index for index, count in enumerate(missing) if not count]
    for index in ready:  # grows while it is walked
        for reader in readers[index]:
            missing[reader] -= 1
            if not missing[reader]:
                ready.append(reader)
    if len(ready) < len(nodes):
        # Going back from any node that never got ready, along others of them, ends in the cycle.
        stuck = {index for index, count in enumerate(missing) if count}
        index, seen = min(stuck), []
        while index not in seen:
            seen.append(index)
            index = min(waits[index] & stuck)
        cycle = seen[seen.index(index) :]
        fail(f"{where}cycle through {', '.join(_name(nodes[i]) for i in reversed(cycle))}; expected none")


def _check_outputs(outputs: Iterable[str], known: set[str], where: str, fail: Fail) -> None:
    seen: set[str] = set()
    for name in outputs:
        if name not in known or not name:
            fail(f"{where} gives {name!r}, which no node defines; expected a defined value")
        if name in seen:
            fail(f"{where} gives output {name!r} twice; expected distinct names")
        seen.add(name)


def _free_names(graph: onnx.GraphProto) -> list[str]:
    """Names that a subgraph reads from the graphs around it."""
    own = {v.name for v in graph.input} | {t.name for t in graph.initializer} | {""}
    own |= {output for node in graph.node for output in node.output}
    reads = [v.name for v in graph.output]
    for node in graph.node:
        reads += node.input
        for attribute in node.attribute:
            for sub in (attribute.g, *attribute.graphs) if attribute.type in (5, 10) else ():
                reads += _free_names(sub)
    return [name for name in reads if name not in own]


def _check_type(value: onnx.ValueInfoProto, where: str, fail: Fail) -> None:
    if value.type.HasField("tensor_type"):
        dtype = value.type.tensor_type.elem_type
        if not _is_dtype(dtype):
            fail(f"{where}value {value.name!r} has the unknown dtype {dtype}; expected one of ONNX's")
        for dim in value.type.tensor_type.shape.dim:
            if dim.HasField("dim_value") and dim.dim_value < -1:
                fail(f"{where}value {value.name!r} has the extent {dim.dim_value}; expected 0 or more")


def _is_dtype(number: int) -> bool:
    import onnx

    return number != onnx.TensorProto.UNDEFINED and number in onnx.TensorProto.DataType.values()


def check_tensor(tensor: onnx.TensorProto, what: str, folder: Path | None, fail: Fail) -> None:
    """dtype, dims and the size of the data agree; floating-point arrays hold no NaN.

    A NaN alone is a filling, for Where or Pad, and no weight.
    """
    import onnx
    import onnx_ir as ir

    if not _is_dtype(tensor.data_type):
        fail(f"{what} has the unknown dtype {tensor.data_type}; expected one of ONNX's")
    if any(d < 0 for d in tensor.dims):
        fail(f"{what} has the shape {list(tensor.dims)}; expected extents of 0 or more")
    count = prod(tensor.dims)
    if tensor.data_type == onnx.TensorProto.STRING:
        if len(tensor.string_data) != count:
            fail(f"{what} has {len(tensor.string_data)} strings; expected {count} for {list(tensor.dims)}")
        return
    dtype = ir.DataType(tensor.data_type)
    nbytes = (count * dtype.bitwidth + 7) // 8
    described = f"{nbytes} bytes for {dtype.name} {list(tensor.dims)}"
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        _check_external(tensor, what, nbytes, described, folder, fail)
    elif tensor.HasField("raw_data"):
        if len(tensor.raw_data) != nbytes:
            fail(f"{what} has {len(tensor.raw_data)} bytes; expected {described}")
    else:
        _check_typed(tensor, dtype, what, count, fail)
    if dtype.is_floating_point() and count > 1 and _has_nan(tensor, dtype, folder):
        fail(f"{what} holds NaN; expected numbers")


def _check_typed(tensor: onnx.TensorProto, dtype: object, what: str, count: int, fail: Fail) -> None:
    """Data in the fields by type: how many elements there are, given that small types share one."""
    import onnx

    p = onnx.TensorProto
    if tensor.data_type in (p.COMPLEX64, p.COMPLEX128):
        field, per = (tensor.float_data if tensor.data_type == p.COMPLEX64 else tensor.double_data), 0.5
    elif tensor.data_type == p.FLOAT:
        field, per = tensor.float_data, 1
    elif tensor.data_type == p.DOUBLE:
        field, per = tensor.double_data, 1
    elif tensor.data_type == p.INT64:
        field, per = tensor.int64_data, 1
    elif tensor.data_type in (p.UINT32, p.UINT64):
        field, per = tensor.uint64_data, 1
    else:
        bits = getattr(dtype, "bitwidth", 8)
        field, per = tensor.int32_data, (8 // bits if bits in (2, 4) else 1)
    expected = -(-count // per) if per >= 1 else count * 2
    if len(field) != expected:
        fail(f"{what} has {len(field)} elements; expected {expected:g} for the shape {list(tensor.dims)}")


def _check_external(
    tensor: onnx.TensorProto, what: str, nbytes: int, described: str, folder: Path | None, fail: Fail
) -> None:
    entries = {e.key: e.value for e in tensor.external_data}
    location = entries.get("location", "")
    if folder is None:
        fail(f"{what} is in the file {location!r}, but the model has no folder; expected the model's path")
    path = Path(location)
    if not location or path.is_absolute() or ".." in path.parts:
        fail(f"{what} is in the file {location!r}; expected a path inside the model's folder")
    file = folder / path
    try:
        inside, there = file.resolve().is_relative_to(folder.resolve()), file.is_file()
    except (OSError, RuntimeError, ValueError) as error:  # too long a name, links in a ring, a zero byte
        fail(f"{what} is in the file {location[:200]!r}, which can't be looked at: {str(error)[:200]}")
    if not inside:
        fail(f"{what} is in the file {location!r}, a link out of the model's folder; expected one inside")
    if not there:
        fail(f"{what} is in the file {location!r}, which does not exist; expected it beside the model")
    if file.stat().st_nlink > 1:
        fail(f"{what} is in the file {location!r}, which has other hard links; expected a file of its own")
    try:
        offset = int(entries.get("offset", 0))
        length = int(entries.get("length", nbytes))
    except ValueError:
        fail(f"{what} has offset or length that is no number in the file {location!r}; expected {described}")
    if length != nbytes:
        fail(f"{what} has {length} bytes in the file {location!r}; expected {described}")
    size = file.stat().st_size
    if offset < 0 or offset + nbytes > size:
        fail(
            f"{what} lies at bytes {offset} to {offset + nbytes} of the file {location!r}, which has {size};"
            f" expected {described}"
        )


def _has_nan(tensor: onnx.TensorProto, dtype: object, folder: Path | None) -> bool:
    import onnx
    import onnx_ir as ir

    assert isinstance(dtype, ir.DataType)
    array: np.ndarray[Any, Any]
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        entries = {e.key: e.value for e in tensor.external_data}
        assert folder is not None
        if dtype.bitwidth < 16:
            return False  # NaN in 8 bits and below marks nothing: they are scaled integers in practice
        stored = np.dtype(dtype.numpy()).newbyteorder("<")
        array = np.memmap(
            folder / entries["location"], stored, "r", int(entries.get("offset", 0)), (prod(tensor.dims),)
        )
    elif tensor.HasField("raw_data") and dtype.bitwidth >= 16:
        array = np.frombuffer(tensor.raw_data, np.dtype(dtype.numpy()).newbyteorder("<"))
    elif len(tensor.float_data) or len(tensor.double_data):
        array = np.asarray(tensor.float_data or tensor.double_data)
    else:
        array = ir.serde.deserialize_tensor(tensor).numpy()
        if array.dtype.itemsize < 2:
            return False
    # A NaN makes the sum NaN; so does inf - inf, hence the second look, which is rare.
    with np.errstate(all="ignore"):
        return bool(np.isnan(array.sum(dtype=np.float64))) and bool(np.isnan(array).any())


def _check_conv(node: onnx.NodeProto, tensors: dict[str, onnx.TensorProto], where: str, fail: Fail) -> None:
    """Weight, bias, group and kernel_shape agree with each other; the input's channels aren't known yet."""
    what = f"{where}{_name(node)}"
    if len(node.input) < 2:
        fail(f"{what} has {len(node.input)} inputs; expected an input and a weight")
    weight = tensors.get(node.input[1])
    if weight is None:
        return
    dims, group = list(weight.dims), 1
    if len(dims) < 3:
        fail(f"{what} has the weight {weight.name!r} of shape {dims}; expected at least 3 dims")
    for attribute in node.attribute:
        if attribute.name == "group":
            group = attribute.i
        elif attribute.name == "kernel_shape" and list(attribute.ints) != dims[2:]:
            fail(f"{what} has kernel_shape {list(attribute.ints)}; expected the weight's {dims[2:]}")
    if group < 1 or dims[0] % group:
        fail(f"{what} has group {group}; expected a divisor of the weight's first extent {dims[0]}")
    channels = dims[0] if node.op_type == "Conv" else dims[1] * group
    bias = tensors.get(node.input[2]) if len(node.input) > 2 else None
    if bias is not None and list(bias.dims) != [channels]:
        fail(f"{what} has the bias {bias.name!r} of shape {list(bias.dims)}; expected [{channels}]")


def _name(node: onnx.NodeProto) -> str:
    return f"{node.op_type} {node.name or (node.output[0] if node.output else '')!r}"
