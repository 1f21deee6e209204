"""Expressions as vectors of TIR, with float32 functions of our own. Needs tvm.

LLVM turns exp, log, tanh or erf of a vector into one scalar libm call per lane; the polynomials here stay
in vector registers on every target. Errors are against float64, over all finite arguments:

- exp: 2 ulp, right overflow to infinity and gradual underflow to 0 (Cody and Waite's reduction with the
  polynomial of Cephes expf)
- log: 2 ulp, subnormal arguments too (Cephes logf)
- sigmoid, tanh, erf: 1e-6 absolute (rational minimax approximations as in Eigen's and XLA's float versions
  for tanh and erf)
- pow: 1e-5 relative, exp(y * log|x|) with the sign and the special cases of C's pow

A NaN comes out of every function that it goes into, as in onnxruntime. `larger(a, b)` is `a > b ? a : b`,
which gives b if either is NaN; hence constants come first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf, nan
from typing import Any

from tvm.tirx.script.builder import ir as T

from convopt.schedules.primitives.emit import hold, splat
from convopt.schedules.primitives.expression import Expression, Op

ROUND_TO_INTEGER = 12582912.0  # 1.5 * 2**23: x + this has round(x) in its low mantissa bits
ROUND_BITS = 0x4B400000  # its bits


def emit(expression: Expression, inputs: Sequence[Any], lanes: int, scope: str = "global") -> list[Any]:
    """The results as float32 vectors of `lanes` lanes, from as many float32 vectors.

    scope: of what is computed once, "local" in a GPU kernel (see `emit.register`).
    """
    if len(inputs) != expression.inputs:
        raise ValueError(f"{len(inputs)} inputs for an expression of {expression.inputs}")
    uses = [a for op in expression.ops for a in op.args]
    math = VectorMath(lanes, scope)
    values = [math.hold(x) if uses.count(i) > 1 else x for i, x in enumerate(inputs)]
    for op in expression.ops:
        value = math.apply(op, [values[a] for a in op.args])
        values.append(value if op.name == "const" else math.hold(value))
    return [values[r] for r in expression.results]


class VectorMath:
    """Functions from float32 vectors to float32 vectors, all of `lanes` lanes.

    An argument may be used several times inside: pass a held value, not a tree of operations.
    """

    def __init__(self, lanes: int, scope: str = "global") -> None:
        self.lanes, self.scope = lanes, scope
        self.on_gpu = scope == "local"
        self.float_type = "float32" if lanes == 1 else f"float32x{lanes}"
        self.int_type = "int32" if lanes == 1 else f"int32x{lanes}"

    def apply(self, op: Op, args: Sequence[Any]) -> Any:
        attrs = [self.const(a) for a in op.attrs]
        function: Callable[..., Any] = getattr(self, op.name + "_" if op.name == "not" else op.name)
        return attrs[0] if op.name == "const" else function(*args, *attrs)

    # Building blocks

    def const(self, value: float) -> Any:
        return splat(T.float32(value), self.lanes)

    def hold(self, value: Any) -> Any:
        return hold(value, self.lanes, scope=self.scope)

    def bits(self, x: Any) -> Any:
        return T.reinterpret(self.int_type, x)

    def from_bits(self, x: Any) -> Any:
        return T.reinterpret(self.float_type, x)

    def int(self, value: int) -> Any:
        return splat(T.int32(value), self.lanes)

    def truth(self, condition: Any) -> Any:
        return T.Select(condition, self.const(1.0), self.const(0.0))

    def polynomial(self, x: Any, coefficients: Sequence[float]) -> Any:
        """Horner's scheme, highest power first."""
        result = self.const(coefficients[0])
        for c in coefficients[1:]:
            result = result * x + self.const(c)
        return result

    def larger(self, a: Any, b: Any) -> Any:
        """`a > b ? a : b`: b if either is NaN, one instruction on CPUs. GPUs' own maximum drops a NaN."""
        return T.Select(a > b, a, b) if self.on_gpu else T.max(a, b)

    def smaller(self, a: Any, b: Any) -> Any:
        """`a < b ? a : b`, likewise."""
        return T.Select(a < b, a, b) if self.on_gpu else T.min(a, b)

    def clamp(self, x: Any, low: float, high: float) -> Any:
        return self.clip(x, self.const(low), self.const(high))

    # Arithmetic

    def add(self, x: Any, y: Any) -> Any:
        return x + y

    def sub(self, x: Any, y: Any) -> Any:
        return x - y

    def mul(self, x: Any, y: Any) -> Any:
        return x * y

    def div(self, x: Any, y: Any) -> Any:
        return x / y

    def max(self, x: Any, y: Any) -> Any:
        return T.Select(T.isnan(x), x, self.larger(x, y))

    def min(self, x: Any, y: Any) -> Any:
        return T.Select(T.isnan(x), x, self.smaller(x, y))

    def neg(self, x: Any) -> Any:
        return self.const(-1.0) * x

    def abs(self, x: Any) -> Any:
        return T.abs(x)

    def sign(self, x: Any) -> Any:
        zero = self.const(0.0)
        positive = T.Select(x > zero, self.const(1.0), x)  # keeps zero and NaN
        return T.Select(x < zero, self.const(-1.0), positive)

    def sqrt(self, x: Any) -> Any:
        return T.sqrt(x)

    def reciprocal(self, x: Any) -> Any:
        return self.const(1.0) / x

    def square(self, x: Any) -> Any:
        return x * x

    def floor(self, x: Any) -> Any:
        return T.floor(x)

    def ceil(self, x: Any) -> Any:
        return T.ceil(x)

    def round(self, x: Any) -> Any:
        return T.nearbyint(x)

    # Comparison and choice

    def less(self, x: Any, y: Any) -> Any:
        return self.truth(x < y)

    def less_equal(self, x: Any, y: Any) -> Any:
        return self.truth(x <= y)

    def equal(self, x: Any, y: Any) -> Any:
        return self.truth(x == y)

    def not_(self, x: Any) -> Any:
        return self.truth(x == self.const(0.0))

    def where(self, condition: Any, x: Any, y: Any) -> Any:
        return T.Select(condition != self.const(0.0), x, y)

    # Piecewise linear activations

    def relu(self, x: Any) -> Any:
        return self.larger(self.const(0.0), x)

    def clip(self, x: Any, low: Any, high: Any) -> Any:
        return self.smaller(high, self.hold(self.larger(low, x)))

    def leaky_relu(self, x: Any, alpha: Any) -> Any:
        return T.Select(x < self.const(0.0), alpha * x, x)

    def prelu(self, x: Any, slope: Any) -> Any:
        return self.leaky_relu(x, slope)

    def hard_sigmoid(self, x: Any, alpha: Any, beta: Any) -> Any:
        return self.clamp(self.hold(alpha * x + beta), 0.0, 1.0)

    def hard_swish(self, x: Any) -> Any:
        return x * self.hard_sigmoid(x, self.const(1 / 6), self.const(0.5))

    # Exponential and logarithm

    def _reduced_exp(self, x: Any) -> tuple[Any, Any]:
        """(p, n) with e**x = p * 2**n: p in [0.7, 1.42] a float32, n a whole int32 (any bits if x is NaN)."""
        shifted = self.hold(x * self.const(1.44269504088896341) + self.const(ROUND_TO_INTEGER))
        n = self.hold(shifted - self.const(ROUND_TO_INTEGER))
        # ln 2 in two parts, the first exact in few bits (Cody and Waite)
        r = self.hold(x - n * self.const(0.693359375))
        r = self.hold(r - n * self.const(-2.12194440e-4))
        coefficients = (
            1.9875691500e-4,
            1.3981999507e-3,
            8.3334519073e-3,
            4.1665795894e-2,
            1.6666665459e-1,
            5.0000001201e-1,
        )
        p = self.polynomial(r, coefficients) * (r * r) + r + self.const(1.0)
        return self.hold(p), self.hold_int(self.bits(shifted) - self.int(ROUND_BITS))

    def hold_int(self, value: Any) -> Any:
        return hold(value, self.lanes, "int32", self.scope)

    def _power_of_two(self, n: Any) -> Any:
        """2**n for -127 < n < 128; infinity for 128."""
        return self.from_bits(T.shift_left(n + self.int(127), self.int(23)))

    def exp(self, x: Any) -> Any:
        # Beyond these bounds the result is infinity or 0. Two steps of scaling reach the subnormals.
        p, n = self._reduced_exp(self.hold(self.clamp(x, -104.5, 89.0)))
        half = self.hold_int(T.shift_right(n, self.int(1)))
        return p * self._power_of_two(half) * self._power_of_two(n - half)

    def _exp_normal(self, x: Any) -> Any:
        """exp where a result below 1e-38 may be 1e-38 and one above 2e38 infinity: one scaling."""
        p, n = self._reduced_exp(self.hold(self.clamp(x, -87.3, 89.0)))
        return p * self._power_of_two(n)

    def log(self, x: Any) -> Any:
        tiny = x < self.const(1.17549435e-38)
        scaled = self.hold(T.Select(tiny, x * self.const(8388608.0), x))
        bits = self.hold_int(self.bits(scaled))
        exponent = T.Cast(self.float_type, T.shift_right(bits, self.int(23)) - self.int(126))
        exponent = self.hold(exponent - T.Select(tiny, self.const(23.0), self.const(0.0)))
        mantissa = T.bitwise_or(T.bitwise_and(bits, self.int(0x7FFFFF)), self.int(0x3F000000))
        m = self.hold(self.from_bits(mantissa))  # in [0.5, 1)
        low = m < self.const(0.707106781186547524)
        e = self.hold(T.Select(low, exponent - self.const(1.0), exponent))
        m = self.hold(T.Select(low, m + m, m) - self.const(1.0))
        z = self.hold(m * m)
        coefficients = (
            7.0376836292e-2,
            -1.1514610310e-1,
            1.1676998740e-1,
            -1.2420140846e-1,
            1.4249322787e-1,
            -1.6668057665e-1,
            2.0000714765e-1,
            -2.4999993993e-1,
            3.3333331174e-1,
        )
        y = self.polynomial(m, coefficients) * m * z + e * self.const(-2.12194440e-4) - z * self.const(0.5)
        result = self.hold(m + y + e * self.const(0.693359375))
        result = T.Select(x < self.const(inf), result, x)  # infinity and NaN
        result = T.Select(x == self.const(0.0), self.const(-inf), result)
        return T.Select(x < self.const(0.0), self.const(nan), result)

    def pow(self, x: Any, y: Any) -> Any:
        zero, one = self.const(0.0), self.const(1.0)
        magnitude = self.hold(T.abs(x))
        size = self.exp(self.hold(y * self.hold(self.log(magnitude))))
        size = self.hold(T.Select(magnitude == one, one, size))  # also with an infinite or no y
        half = self.hold(y * self.const(0.5))
        odd = T.floor(half) != half
        whole = T.floor(y) == y
        # Odd whole powers keep the sign; others lose it at zero and infinity, and are NaN elsewhere below.
        signed = T.Select(odd, self.const(-1.0), one) * size
        finite = T.Select(x < zero, T.Select(x > self.const(-inf), self.const(nan), size), size)
        negative = T.Select(whole, signed, finite)
        result = self.hold(T.Select(self.bits(x) < self.int(0), negative, size))
        return T.Select(y == zero, one, result)

    # Smooth activations

    def sigmoid(self, x: Any) -> Any:
        return self.const(1.0) / (self._exp_normal(self.hold(self.neg(x))) + self.const(1.0))

    def tanh(self, x: Any) -> Any:
        limit, given = 7.90531110763549805, x
        x = self.hold(self.clamp(x, -limit, limit))
        z = self.hold(x * x)
        p = (
            -2.76076847742355e-16,
            2.00018790482477e-13,
            -8.60467152213735e-11,
            5.12229709037114e-08,
            1.48572235717979e-05,
            6.37261928875436e-04,
            4.89352455891786e-03,
        )
        q = (1.19825839466702e-06, 1.18534705686654e-04, 2.26843463243900e-03, 4.89352518554385e-03)
        inside = x * self.polynomial(z, p) / self.polynomial(z, q)
        # 1e-7 short of 1 there, which 1 + tanh(x) times a large x, as in GELU, would make a wrong number of.
        above = T.Select(given >= self.const(limit), self.const(1.0), inside)
        return T.Select(given <= self.const(-limit), self.const(-1.0), above)

    def erf(self, x: Any) -> Any:
        x = self.hold(self.clamp(x, -4.0, 4.0))
        z = self.hold(x * x)
        p = (
            -2.72614225801306e-10,
            2.77068142495902e-08,
            -2.10102402082508e-06,
            -5.69250639462346e-05,
            -7.34990630326855e-04,
            -2.95459980854025e-03,
            -1.60960333262415e-02,
        )
        q = (
            -1.45660718464996e-05,
            -2.13374055278905e-04,
            -1.68282697438203e-03,
            -7.37332916720468e-03,
            -1.42647390514189e-02,
        )
        return x * self.polynomial(z, p) / self.polynomial(z, q)

    def gelu(self, x: Any) -> Any:
        error = self.erf(self.hold(x * self.const(0.707106781186547524)))
        return self.const(0.5) * x * (self.const(1.0) + error)

    def softplus(self, x: Any) -> Any:
        t = self.hold(self.exp(self.hold(self.neg(T.abs(x)))))
        small = t < self.const(1e-4)  # where 1 + t would round t away
        logarithm = self.hold(self.log(self.hold(t + self.const(1.0))))
        return self.larger(self.const(0.0), x) + T.Select(small, t - self.const(0.5) * t * t, logarithm)

    def elu(self, x: Any, alpha: Any) -> Any:
        grown = alpha * (self._exp_normal(x) - self.const(1.0))
        return T.Select(x < self.const(0.0), grown, x)

    def selu(self, x: Any, alpha: Any, gamma: Any) -> Any:
        return gamma * self.elu(x, alpha)
