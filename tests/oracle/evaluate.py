"""Evaluates an ONNX model node by node, with floating-point tensors held in float64."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import helper, numpy_helper

from tests.oracle import elementwise, linear, movement, pool, resize
from tests.oracle.conv import conv, conv_transpose

Operator = Callable[..., Any]

BROADCASTING = frozenset(
    ("Add", "Sub", "Mul", "Div", "Pow", "Gemm", "PRelu", "Equal", "Greater", "Less", "And", "Or", "Xor")
)

# Operator -> the versions of its meaning: (the first opset it holds from, function). Inputs are passed by
# position, attributes by keyword, so that what moved from attribute to input (axes, pads) needs one function.
# Before opset 7, broadcasting was something else.
OPERATORS: dict[str, tuple[tuple[int, Operator], ...]] = {
    "BatchNormalization": ((9, linear.batch_normalization),),
    "Cast": ((1, lambda x, *, to, saturate=1, round_mode="up": cast(x, to)),),
    "Constant": ((1, lambda **attributes: constant(**attributes)),),
    "ConstantOfShape": ((9, lambda shape, *, value=None: constant_of_shape(shape, value)),),
    "Dropout": ((7, linear.dropout),),
    "Softmax": ((1, linear.coerced(linear.softmax)), (13, linear.softmax)),
    "LogSoftmax": ((1, linear.coerced(linear.log_softmax)), (13, linear.log_softmax)),
    "Resize": ((11, resize.resize),),
    "Upsample": ((9, resize.upsample),),
} | {
    name: ((7 if name in BROADCASTING else 1, function),)
    for name, function in {
        "Conv": conv,
        "ConvTranspose": conv_transpose,
        "MaxPool": pool.max_pool,
        "AveragePool": pool.average_pool,
        "GlobalAveragePool": pool.global_average_pool,
        "GlobalMaxPool": pool.global_max_pool,
        "Gemm": linear.gemm,
        "MatMul": linear.matmul,
        "InstanceNormalization": linear.instance_normalization,
        "ReduceMax": linear.reduce_max,
        "ReduceMin": linear.reduce_min,
        "ReduceMean": linear.reduce_mean,
        "ReduceSum": linear.reduce_sum,
        "ReduceProd": linear.reduce_prod,
        "ReduceL1": linear.reduce_l1,
        "ReduceL2": linear.reduce_l2,
        "ReduceSumSquare": linear.reduce_sum_square,
        "ReduceLogSum": linear.reduce_log_sum,
        "ReduceLogSumExp": linear.reduce_log_sum_exp,
        "Concat": movement.concat,
        "DepthToSpace": movement.depth_to_space,
        "Expand": movement.expand,
        "Flatten": movement.flatten,
        "Gather": movement.gather,
        "Identity": lambda x: x,
        "Pad": movement.pad,
        "Reshape": movement.reshape,
        "Shape": movement.shape,
        "Size": movement.size,
        "Slice": movement.slice_,
        "SpaceToDepth": movement.space_to_depth,
        "Split": movement.split,
        "Squeeze": movement.squeeze,
        "Tile": movement.tile,
        "Transpose": movement.transpose,
        "Unsqueeze": movement.unsqueeze,
        "Add": elementwise.add,
        "Sub": elementwise.sub,
        "Mul": elementwise.mul,
        "Div": elementwise.div,
        "Pow": elementwise.power,
        "Mod": elementwise.mod,
        "Max": elementwise.maximum,
        "Min": elementwise.minimum,
        "Sum": elementwise.total,
        "Mean": elementwise.mean,
        "Where": elementwise.where,
        "Clip": elementwise.clip,
        "Relu": elementwise.relu,
        "LeakyRelu": elementwise.leaky_relu,
        "PRelu": elementwise.prelu,
        "ThresholdedRelu": elementwise.thresholded_relu,
        "Elu": elementwise.elu,
        "Celu": elementwise.celu,
        "Selu": elementwise.selu,
        "Sigmoid": elementwise.sigmoid,
        "HardSigmoid": elementwise.hard_sigmoid,
        "HardSwish": elementwise.hard_swish,
        "Swish": elementwise.swish,
        "Softplus": elementwise.softplus,
        "Softsign": elementwise.softsign,
        "Mish": elementwise.mish,
        "Gelu": elementwise.gelu,
        "Shrink": elementwise.shrink,
        "Erf": elementwise.erf,
        "IsInf": elementwise.is_inf,
        "IsNaN": np.isnan,
        "Reciprocal": elementwise.reciprocal,
        "Abs": np.abs,
        "Neg": np.negative,
        "Sign": np.sign,
        "Sqrt": np.sqrt,
        "Exp": np.exp,
        "Log": np.log,
        "Floor": np.floor,
        "Ceil": np.ceil,
        "Round": np.rint,  # halfway cases to even
        "Sin": np.sin,
        "Cos": np.cos,
        "Tan": np.tan,
        "Asin": np.arcsin,
        "Acos": np.arccos,
        "Atan": np.arctan,
        "Sinh": np.sinh,
        "Cosh": np.cosh,
        "Tanh": np.tanh,
        "Asinh": np.arcsinh,
        "Acosh": np.arccosh,
        "Atanh": np.arctanh,
        "Equal": np.equal,
        "Greater": np.greater,
        "GreaterOrEqual": np.greater_equal,
        "Less": np.less,
        "LessOrEqual": np.less_equal,
        "And": np.logical_and,
        "Or": np.logical_or,
        "Xor": np.logical_xor,
        "Not": np.logical_not,
    }.items()
}


class UnsupportedOperator(NotImplementedError):
    """The evaluator has no rule for a node of the model."""


def widen(value: np.ndarray) -> np.ndarray:
    """Floating-point tensors (bfloat16 too) as float64, others as they are."""
    value = np.asarray(value)
    floating = np.issubdtype(value.dtype, np.floating) or value.dtype == ml_dtypes.bfloat16
    return value.astype(np.float64) if floating else value


def cast(x: np.ndarray, to: int) -> np.ndarray:
    """Cast: rounded to the type's values, held in float64 where that is a floating-point type."""
    return widen(x.astype(helper.tensor_dtype_to_np_dtype(to)))


def constant(**attributes: Any) -> np.ndarray:
    """Constant: the one attribute it has is the value."""
    ((name, value),) = attributes.items()
    dtype = {
        "value_float": np.float64,
        "value_floats": np.float64,
        "value_int": np.int64,
        "value_ints": np.int64,
    }
    return value if name == "value" else np.asarray(value, dtype[name])


def constant_of_shape(shape: np.ndarray, value: np.ndarray | None) -> np.ndarray:
    """A tensor of the one-element `value`, float zero when absent."""
    return (
        np.full([int(n) for n in shape], 0.0)
        if value is None
        else np.full([int(n) for n in shape], value.item(), value.dtype)
    )


def supported(model: onnx.ModelProto) -> bool:
    """Whether every node of the model has a rule (some attributes can still be refused)."""
    try:
        return not model.functions and all(
            map(callable, (_rule(node, _opset(model)) for node in model.graph.node))
        )
    except UnsupportedOperator:
        return False


def evaluate(model: onnx.ModelProto, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """All outputs of the model by name; floating-point ones are float64 whatever the model declares.

    Raises UnsupportedOperator for a node without a rule, KeyError for an input that is missing.
    """
    opset = _opset(model)
    values = {
        initializer.name: widen(numpy_helper.to_array(initializer)) for initializer in model.graph.initializer
    }
    values |= {name: widen(value) for name, value in inputs.items()}
    for node in model.graph.node:
        arguments = [values[name] if name else None for name in node.input]
        while arguments and arguments[-1] is None:
            arguments.pop()
        attributes = {attribute.name: _attribute(attribute) for attribute in node.attribute}
        if node.op_type == "Split":
            attributes["outputs"] = len(node.output)
        with np.errstate(all="ignore"):
            results = _rule(node, opset)(*arguments, **attributes)
        results = results if isinstance(results, tuple) else (results,)
        values |= {name: widen(result) for name, result in zip(node.output, results, strict=False) if name}
    return {output.name: values[output.name] for output in model.graph.output}


def _opset(model: onnx.ModelProto) -> int:
    return next(entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx"))


def _rule(node: onnx.NodeProto, opset: int) -> Operator:
    """The function that holds for the node at this opset."""
    versions = [rule for since, rule in OPERATORS.get(node.op_type, ()) if since <= opset]
    if not versions or node.domain not in ("", "ai.onnx"):
        raise UnsupportedOperator(f"{node.domain or 'ai.onnx'}.{node.op_type} at opset {opset}")
    return versions[-1]


def _attribute(attribute: onnx.AttributeProto) -> Any:
    """An attribute as Python: text as str, tensors as arrays."""
    value = helper.get_attribute_value(attribute)
    if isinstance(value, onnx.TensorProto):
        return widen(numpy_helper.to_array(value))
    if isinstance(value, bytes):
        return value.decode()
    return value
