"""The value of a node whose inputs are all known.

Shape arithmetic is done in numpy, where a call costs microseconds; every other operator runs as a model of
one node in onnxruntime, unoptimised.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from convopt.errors import ModelError
from convopt.ir.shapes import type_proto
from convopt.ir.slices import slice_range
from convopt.ir.values import Array, attribute, is_op, label
from convopt.sessions import run_session

# Their results differ from call to call, or can't be told from the inputs' values alone.
NOT_PURE = frozenset(
    {
        "RandomNormal",
        "RandomNormalLike",
        "RandomUniform",
        "RandomUniformLike",
        "Multinomial",
        "Bernoulli",
        "Dropout",
    }
)


class NotComputable(Exception):
    """No value for a node whose inputs are all known; the text is onnxruntime's reason."""


def evaluate(node: ir.Node, inputs: Sequence[Array | None], opsets: Mapping[str, int]) -> list[Array]:
    """The node's outputs, in order.

    Raises:
        ModelError: the values contradict the operator; names the node.
        NotComputable: onnxruntime doesn't have the operator for these types.
    """
    rule = _RULES.get(node.op_type) if is_op(node, node.op_type) and len(node.outputs) == 1 else None
    if rule is not None:
        try:
            result = rule(node, list(inputs))
        except (ArithmeticError, IndexError, ValueError) as error:
            raise ModelError(f"{label(node)} can't be computed from its constant inputs: {error}") from error
        if result is not None:
            return [np.asarray(result)]
    try:
        return _run(node, inputs, opsets)
    except Exception as error:  # onnxruntime raises a type of its own for each refusal
        raise NotComputable(str(error).splitlines()[0]) from error


def _run(node: ir.Node, inputs: Sequence[Array | None], opsets: Mapping[str, int]) -> list[Array]:
    import onnx
    import onnxruntime as ort

    pairs = zip(node.inputs, inputs, strict=True)
    feeds = {v.name: a for v, a in pairs if v is not None and v.name and a is not None}
    values = {v.name: v for v in node.inputs if v is not None}
    kept = [v for v in node.outputs if v.name]
    graph = onnx.helper.make_graph(
        [ir.serde.serialize_node(node)],
        "node",
        [onnx.ValueInfoProto(name=name, type=type_proto(values[name])) for name in feeds],
        [onnx.ValueInfoProto(name=v.name) for v in kept],
    )
    imports = [onnx.helper.make_opsetid(domain, version) for domain, version in opsets.items()]
    model = onnx.helper.make_model(graph, opset_imports=imports, ir_version=8)
    session = ort.InferenceSession(model.SerializeToString(), session_options(), ["CPUExecutionProvider"])
    results = iter(run_session(session, [v.name or "" for v in kept], feeds))
    return [np.asarray(next(results)) if v.name else np.empty(0) for v in node.outputs]


def session_options() -> object:
    """onnxruntime as the reference: no optimisation, one thread, errors only."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    return options


Rule = Callable[[ir.Node, list[Array | None]], "Array | None"]


def _binary(function: Callable[[Array, Array], Array]) -> Rule:
    def rule(node: ir.Node, inputs: list[Array | None]) -> Array | None:
        a, b = inputs
        assert a is not None and b is not None
        with np.errstate(all="ignore"):
            return function(a, b)

    return rule


def _unary(function: Callable[[Array], Array]) -> Rule:
    def rule(node: ir.Node, inputs: list[Array | None]) -> Array | None:
        assert inputs[0] is not None
        with np.errstate(all="ignore"):
            return np.asarray(function(inputs[0])).astype(inputs[0].dtype, copy=False)

    return rule


def _divide(a: Array, b: Array) -> Array:
    if not np.issubdtype(a.dtype, np.integer):
        return np.divide(a, b)
    if not b.all():
        raise ZeroDivisionError("integer division by 0")
    quotient = np.abs(a) // np.abs(b)  # C's division rounds towards 0, numpy's down
    return (quotient * np.sign(a) * np.sign(b)).astype(a.dtype)


def _cast(node: ir.Node, inputs: list[Array | None]) -> Array | None:
    source, dtype = inputs[0], ir.DataType(attribute(node, "to"))
    plain = (ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.INT64, ir.DataType.INT32, ir.DataType.BOOL)
    assert source is not None
    if dtype not in plain or source.dtype.kind not in "fib":
        return None
    if dtype in (ir.DataType.INT32, ir.DataType.INT64) and not np.isfinite(source).all():
        return None  # what comes out depends on the machine: onnxruntime's answer counts
    return source.astype(dtype.numpy())


def _gather(node: ir.Node, inputs: list[Array | None]) -> Array | None:
    data, indices = inputs
    assert data is not None and indices is not None
    return np.take(data, indices.astype(np.int64), axis=attribute(node, "axis", 0))


def _concat(node: ir.Node, inputs: list[Array | None]) -> Array | None:
    return np.concatenate([a for a in inputs if a is not None], axis=attribute(node, "axis"))


def _axes(inputs: list[Array | None], rank: int) -> tuple[int, ...]:
    axes = inputs[1]
    assert axes is not None
    return tuple(int(a) + rank if a < 0 else int(a) for a in axes.reshape(-1))


def _squeeze(node: ir.Node, inputs: list[Array | None]) -> Array | None:
    assert inputs[0] is not None
    if len(inputs) < 2 or inputs[1] is None:
        return np.squeeze(inputs[0]) if "axes" not in node.attributes else None
    return np.squeeze(inputs[0], _axes(inputs, inputs[0].ndim))


def _unsqueeze(node: ir.Node, inputs: list[Array | None]) -> Array | None:
    if len(inputs) < 2 or inputs[0] is None or inputs[1] is None:
        return None
    return np.expand_dims(inputs[0], _axes(inputs, inputs[0].ndim + inputs[1].size))


def _reshape(node: ir.Node, inputs: list[Array | None]) -> Array | None:
    data, shape = inputs
    assert data is not None and shape is not None
    keep = not attribute(node, "allowzero", 0)
    return data.reshape([data.shape[i] if d == 0 and keep else int(d) for i, d in enumerate(shape)])


def _slice(node: ir.Node, inputs: list[Array | None]) -> Array | None:
    if len(inputs) < 3:
        return None
    data, starts, ends = inputs[:3]
    assert data is not None and starts is not None and ends is not None
    axes = inputs[3] if len(inputs) > 3 and inputs[3] is not None else np.arange(len(starts))
    steps = inputs[4] if len(inputs) > 4 and inputs[4] is not None else np.ones(len(starts), np.int64)
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        taken = slice_range(int(start), int(end), int(step), data.shape[axis])
        data = np.take(data, np.asarray(taken, np.int64), axis=int(axis))
    return data


def _range(node: ir.Node, inputs: list[Array | None]) -> Array | None:
    bounds = [a.reshape(()) for a in inputs if a is not None]
    if bounds[0].dtype.kind != "i":
        return None  # how many steps fit is a matter of rounding: onnxruntime's answer counts
    array: Array = np.arange(*(int(b) for b in bounds), dtype=bounds[0].dtype)
    return array


def _expand(node: ir.Node, inputs: list[Array | None]) -> Array | None:
    data, shape = inputs
    assert data is not None and shape is not None
    return np.broadcast_to(data, np.broadcast_shapes(data.shape, tuple(int(d) for d in shape)))


def _constant_of_shape(node: ir.Node, inputs: list[Array | None]) -> Array | None:
    value = (
        node.attributes["value"].as_tensor().numpy()
        if "value" in node.attributes
        else np.zeros(1, np.float32)
    )
    assert inputs[0] is not None
    return np.full(tuple(int(d) for d in inputs[0]), value.reshape(-1)[0], value.dtype)


def _transpose(node: ir.Node, inputs: list[Array | None]) -> Array | None:
    assert inputs[0] is not None
    return np.transpose(inputs[0], attribute(node, "perm"))


def _where(node: ir.Node, inputs: list[Array | None]) -> Array | None:
    condition, a, b = inputs
    assert condition is not None and a is not None and b is not None
    return np.where(condition, a, b)


_RULES: dict[str, Rule] = {
    "Add": _binary(np.add),
    "Sub": _binary(np.subtract),
    "Mul": _binary(np.multiply),
    "Div": _binary(_divide),
    "Equal": _binary(np.equal),
    "Less": _binary(np.less),
    "Greater": _binary(np.greater),
    "And": _binary(np.logical_and),
    "Or": _binary(np.logical_or),
    "Not": _unary(np.logical_not),
    "Neg": _unary(np.negative),
    "Abs": _unary(np.abs),
    "Floor": _unary(np.floor),
    "Ceil": _unary(np.ceil),
    "Sqrt": _unary(np.sqrt),
    "Identity": _unary(np.asarray),
    "Cast": _cast,
    "Gather": _gather,
    "Concat": _concat,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Reshape": _reshape,
    "Slice": _slice,
    "Range": _range,
    "Expand": _expand,
    "ConstantOfShape": _constant_of_shape,
    "Transpose": _transpose,
    "Where": _where,
}
