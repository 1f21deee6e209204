"""Standard ONNX elementwise operators as an Expression; ELEMENTWISE is the list of those that have one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf, pi, sqrt

import onnx_ir as ir

from convopt.ir.values import attribute, input_at, scalar
from convopt.lowering.base import Refused
from convopt.schedules.primitives.expression import Expression, ExpressionBuilder

Translate = Callable[[ExpressionBuilder, ir.Node, list[int]], int]

_NUMBERS = (ir.DataType.FLOAT, ir.DataType.FLOAT16)
_TRUTHS = (*_NUMBERS, ir.DataType.BOOL)


def expression_of(
    nodes: Sequence[ir.Node], inputs: Sequence[ir.Value], outputs: Sequence[ir.Value]
) -> Expression:
    """What `nodes` (in topological order) compute of `inputs`; one result per output.

    Single-number initializers become constants of the expression; any other value must be an input or come
    from one of the nodes. Shapes play no role: the caller broadcasts the inputs.
    Raises Refused with the node and the reason.
    """
    builder = ExpressionBuilder(len(inputs))
    known = {value: number for number, value in enumerate(inputs)}
    for node in nodes:
        reason = why_not_elementwise(node)
        if reason is not None:
            raise Refused(f"{node.op_type} {node.name}: {reason}")
        args = [_number(builder, known, node, v) for v in node.inputs if v is not None]
        known[node.outputs[0]] = ELEMENTWISE[node.op_type](builder, node, args)
    return builder.build(*(known[v] for v in outputs))


def why_not_elementwise(node: ir.Node) -> str | None:
    """Why the node has no Expression, in words; None if it has one."""
    if node.domain not in ("", "ai.onnx") or node.op_type not in ELEMENTWISE:
        return f"{node.op_type} is not an elementwise operator with a kernel"
    allowed = _TRUTHS if node.op_type in _TRUTH_OPS else _NUMBERS
    for value in (*node.inputs, *node.outputs):
        if value is not None and value.dtype not in allowed:
            return f"{node.op_type} of {value.dtype}"
    if node.op_type == "Gelu" and attribute(node, "approximate", "none") not in ("none", "tanh"):
        return f"Gelu approximated by {attribute(node, 'approximate')}"
    return None


def _number(builder: ExpressionBuilder, known: dict[ir.Value, int], node: ir.Node, value: ir.Value) -> int:
    if value not in known:
        number = scalar(value)
        if number is None:
            raise Refused(f"{node.op_type} {node.name}: {value.name} is neither an operand nor a number")
        known[value] = builder.const(number)
    return known[value]


def _plain(name: str) -> Translate:
    return lambda b, node, args: b.add(name, *args)


def _swapped(name: str) -> Translate:
    return lambda b, node, args: b.add(name, *reversed(args))


def _with(name: str, **defaults: float) -> Translate:
    """An operation whose attributes are the node's, in this order."""
    return lambda b, node, args: b.add(
        name, *args, attrs=tuple(float(attribute(node, k, v)) for k, v in defaults.items())
    )


def _fold(name: str) -> Translate:
    def translate(b: ExpressionBuilder, node: ir.Node, args: list[int]) -> int:
        result = args[0]
        for arg in args[1:]:
            result = b.add(name, result, arg)
        return result

    return translate


def _mean(b: ExpressionBuilder, node: ir.Node, args: list[int]) -> int:
    return b.add("mul", _fold("add")(b, node, args), b.const(1.0 / len(args)))


def _clip_bounds(node: ir.Node) -> tuple[float, float] | None:
    """(low, high) if each is given as a number, as an attribute (before opset 11) or not at all."""
    bounds = []
    for index, name, default in ((1, "min", -inf), (2, "max", inf)):
        value = node.inputs[index] if index < len(node.inputs) else None
        bound = float(attribute(node, name, default)) if value is None else scalar(value)
        if bound is None:
            return None
        bounds.append(bound)
    return bounds[0], bounds[1]


def _clip(b: ExpressionBuilder, node: ir.Node, args: list[int]) -> int:
    bounds = _clip_bounds(node)
    if bounds is None:
        result, *given = args
        for index, op in ((1, "max"), (2, "min")):
            if input_at(node, index) is not None:
                result = b.add(op, result, given.pop(0))
        return result
    if bounds == (0.0, inf):
        return b.add("relu", args[0])
    return b.add("clip", args[0], attrs=bounds)


def _pow(b: ExpressionBuilder, node: ir.Node, args: list[int]) -> int:
    """Multiplications and roots for the usual constant exponents."""
    x = args[0]
    exponent = scalar(node.inputs[1])
    if exponent is None:
        return b.add("pow", *args)
    if exponent in (2, 3, 4, -2):
        square = b.add("square", x)
        if exponent == 4:
            return b.add("square", square)
        if exponent == 3:
            return b.add("mul", square, x)
        return square if exponent == 2 else b.add("reciprocal", square)
    if exponent in (1, -1):
        return x if exponent == 1 else b.add("reciprocal", x)
    if exponent in (0.5, -0.5):  # sqrt differs at -0 and -inf, of which C's pow loses the sign
        root = b.add("where", b.add("equal", x, b.const(-inf)), b.const(inf), b.add("sqrt", x))
        root = b.add("where", b.add("equal", x, b.const(0.0)), b.const(0.0), root)
        return root if exponent > 0 else b.add("reciprocal", root)
    return b.const(1.0) if exponent == 0 else b.add("pow", *args)


def _gelu(b: ExpressionBuilder, node: ir.Node, args: list[int]) -> int:
    x = args[0]
    if attribute(node, "approximate", "none") == "none":
        return b.add("gelu", x)
    cube = b.add("mul", b.add("mul", b.add("square", x), x), b.const(0.044715))
    inner = b.add("tanh", b.add("mul", b.add("add", x, cube), b.const(sqrt(2 / pi))))
    return b.add("mul", b.add("mul", x, b.const(0.5)), b.add("add", inner, b.const(1.0)))


def _swish(b: ExpressionBuilder, node: ir.Node, args: list[int]) -> int:
    alpha = float(attribute(node, "alpha", 1.0))
    scaled = args[0] if alpha == 1.0 else b.add("mul", args[0], b.const(alpha))
    return b.add("mul", args[0], b.add("sigmoid", scaled))


def _mish(b: ExpressionBuilder, node: ir.Node, args: list[int]) -> int:
    return b.add("mul", args[0], b.add("tanh", b.add("softplus", args[0])))


def _softsign(b: ExpressionBuilder, node: ir.Node, args: list[int]) -> int:
    return b.add("div", args[0], b.add("add", b.add("abs", args[0]), b.const(1.0)))


def _celu(b: ExpressionBuilder, node: ir.Node, args: list[int]) -> int:
    alpha = float(attribute(node, "alpha", 1.0))
    return b.add("mul", b.add("elu", b.add("div", args[0], b.const(alpha)), attrs=(1.0,)), b.const(alpha))


def _thresholded_relu(b: ExpressionBuilder, node: ir.Node, args: list[int]) -> int:
    above = b.add("less", b.const(float(attribute(node, "alpha", 1.0))), args[0])
    return b.add("where", above, args[0], b.const(0.0))


def _equal(b: ExpressionBuilder, node: ir.Node, args: list[int]) -> int:
    """What equals itself is a number: TVM would simplify x == x to true, of NaN as well, but not x <= x."""
    x, y = args
    return b.add("less_equal" if x == y else "equal", x, y)


def _sub(b: ExpressionBuilder, node: ir.Node, args: list[int]) -> int:
    """x - x is 0 of finite numbers only: TVM would simplify it to 0, of NaN as well, but not |x| * 0."""
    x, y = args
    return b.add("mul", b.add("abs", x), b.const(0.0)) if x == y else b.add("sub", x, y)


def _xor(b: ExpressionBuilder, node: ir.Node, args: list[int]) -> int:
    return b.add("not", b.add("equal", *args))


def _cast(b: ExpressionBuilder, node: ir.Node, args: list[int]) -> int:
    """Loads and stores convert; only numbers must become truth values here."""
    source = node.inputs[0]
    if node.outputs[0].dtype != ir.DataType.BOOL or (source is not None and source.dtype == ir.DataType.BOOL):
        return args[0]
    return b.add("not", b.add("not", args[0]))


ELEMENTWISE: dict[str, Translate] = {
    "Abs": _plain("abs"),
    "Add": _plain("add"),
    "And": _plain("mul"),
    "Cast": _cast,
    "Ceil": _plain("ceil"),
    "Celu": _celu,
    "Clip": _clip,
    "Div": _plain("div"),
    "Elu": _with("elu", alpha=1.0),
    "Equal": _equal,
    "Erf": _plain("erf"),
    "Exp": _plain("exp"),
    "Floor": _plain("floor"),
    "Gelu": _gelu,
    "Greater": _swapped("less"),
    "GreaterOrEqual": _swapped("less_equal"),
    "HardSigmoid": _with("hard_sigmoid", alpha=0.2, beta=0.5),
    "HardSwish": _plain("hard_swish"),
    "LeakyRelu": _with("leaky_relu", alpha=0.01),
    "Less": _plain("less"),
    "LessOrEqual": _plain("less_equal"),
    "Log": _plain("log"),
    "Max": _fold("max"),
    "Mean": _mean,
    "Min": _fold("min"),
    "Mish": _mish,
    "Mul": _plain("mul"),
    "Neg": _plain("neg"),
    "Not": _plain("not"),
    "Or": _plain("max"),
    "PRelu": _plain("prelu"),
    "Pow": _pow,
    "Reciprocal": _plain("reciprocal"),
    "Relu": _plain("relu"),
    "Round": _plain("round"),
    "Selu": _with("selu", alpha=1.67326319217681884765625, gamma=1.05070102214813232421875),
    "Sigmoid": _plain("sigmoid"),
    "Sign": _plain("sign"),
    "Softplus": _plain("softplus"),
    "Softsign": _softsign,
    "Sqrt": _plain("sqrt"),
    "Sub": _sub,
    "Sum": _fold("add"),
    "Swish": _swish,
    "Tanh": _plain("tanh"),
    "ThresholdedRelu": _thresholded_relu,
    "Where": _plain("where"),
    "Xor": _xor,
}
# Those that read or write truth values.
_TRUTH_OPS = frozenset(
    ("And", "Cast", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Not", "Or", "Where", "Xor")
)
