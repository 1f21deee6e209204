"""Elementwise expressions as values: the epilogue of a conv, the body of a pointwise kernel.

An Expression is a straight list of operations on numbered values, so it hashes, prints and compares;
`vector_math.emit` turns it into vectors of TIR. All arithmetic is float32; a truth value is 1.0 or 0.0.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class OpSpec:
    """How many arguments and attributes an operation has, and its rough cost in vector instructions."""

    args: int
    attrs: int = 0
    cost: int = 1


# What `vector_math` can emit. Attributes are in the order given; `where` is (condition, if true, if false).
OPS: dict[str, OpSpec] = {
    "const": OpSpec(0, 1, 0),  # value
    "add": OpSpec(2),
    "sub": OpSpec(2),
    "mul": OpSpec(2),
    "div": OpSpec(2, cost=4),
    "min": OpSpec(2, cost=3),
    "max": OpSpec(2, cost=3),
    "neg": OpSpec(1),
    "abs": OpSpec(1),
    "sign": OpSpec(1, cost=4),
    "sqrt": OpSpec(1, cost=5),
    "reciprocal": OpSpec(1, cost=4),
    "square": OpSpec(1),
    "floor": OpSpec(1),
    "ceil": OpSpec(1),
    "round": OpSpec(1),  # half to even
    "relu": OpSpec(1),
    "clip": OpSpec(1, 2, cost=2),  # low, high
    "leaky_relu": OpSpec(1, 1, cost=3),  # alpha
    "prelu": OpSpec(2, cost=3),  # x, slope
    "elu": OpSpec(1, 1, cost=14),  # alpha
    "selu": OpSpec(1, 2, cost=15),  # alpha, gamma
    "hard_sigmoid": OpSpec(1, 2, cost=3),  # alpha, beta
    "hard_swish": OpSpec(1, cost=4),
    "exp": OpSpec(1, cost=16),
    "log": OpSpec(1, cost=25),
    "pow": OpSpec(2, cost=60),
    "sigmoid": OpSpec(1, cost=18),
    "tanh": OpSpec(1, cost=18),
    "erf": OpSpec(1, cost=18),
    "gelu": OpSpec(1, cost=21),  # exact, by erf
    "softplus": OpSpec(1, cost=45),
    "less": OpSpec(2, cost=2),
    "less_equal": OpSpec(2, cost=2),
    "equal": OpSpec(2, cost=2),
    "not": OpSpec(1, cost=2),
    "where": OpSpec(3, cost=2),
}


@dataclass(frozen=True)
class Op:
    """`name` applied to earlier values: value i < inputs is input i, value inputs + j is the j-th op."""

    name: str
    args: tuple[int, ...] = ()
    attrs: tuple[float, ...] = ()


@dataclass(frozen=True)
class Expression:
    """`results` number the values to store. Raises ValueError if an op is unknown or out of order."""

    inputs: int
    ops: tuple[Op, ...]
    results: tuple[int, ...]

    def __post_init__(self) -> None:
        for position, op in enumerate(self.ops):
            spec = OPS.get(op.name)
            if spec is None or (len(op.args), len(op.attrs)) != (spec.args, spec.attrs):
                raise ValueError(f"{op} is not an operation that can be emitted")
            if not all(0 <= a < self.inputs + position for a in op.args):
                raise ValueError(f"{op} at {position} uses a value that is not computed before it")
        if not all(0 <= r < self.inputs + len(self.ops) for r in self.results):
            raise ValueError(f"results {self.results} of {len(self.ops)} ops on {self.inputs} inputs")

    @property
    def is_identity(self) -> bool:
        """Every result is an input: a copy, which needs no arithmetic type."""
        return all(r < self.inputs for r in self.results)

    @property
    def cost(self) -> int:
        """Vector instructions for one vector of results."""
        return sum(OPS[op.name].cost for op in self.ops)


def identity() -> Expression:
    return Expression(1, (), (0,))


def unary(name: str, *attrs: float) -> Expression:
    """One operation on one input, e.g. `unary("clip", 0.0, 6.0)`."""
    return Expression(1, (Op(name, (0,), attrs),), (1,))


@dataclass
class ExpressionBuilder:
    """Collects operations; equal ones are computed once."""

    inputs: int
    ops: list[Op] = field(default_factory=list)
    _known: dict[Op, int] = field(default_factory=dict)

    def add(self, name: str, *args: int, attrs: tuple[float, ...] = ()) -> int:
        """The number of the value `name(args)`."""
        op = Op(name, args, attrs)
        if op not in self._known:
            self._known[op] = self.inputs + len(self.ops)
            self.ops.append(op)
        return self._known[op]

    def const(self, value: float) -> int:
        return self.add("const", attrs=(float(value),))

    def build(self, *results: int) -> Expression:
        """The expression, without operations that no result needs."""
        needed, stack = set[int](), list(results)
        while stack:
            value = stack.pop()
            if value >= self.inputs and value not in needed:
                needed.add(value)
                stack.extend(self.ops[value - self.inputs].args)
        number = {v: v for v in range(self.inputs)}
        kept: list[Op] = []
        for value in sorted(needed):
            op = self.ops[value - self.inputs]
            number[value] = self.inputs + len(kept)
            kept.append(Op(op.name, tuple(number[a] for a in op.args), op.attrs))
        return Expression(self.inputs, tuple(kept), tuple(number[r] for r in results))
