"""Lowered TIR of one device function as HIP C++ that people can read. Needs tvm.

TVM prints CUDA, whose vector types, half precision and headers HIP does not share. Vectors here are clang's
(`f16x8`, `f32x4`), loops to unroll stay loops, single values are variables, and constants keep all their
bits.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import tirx

from convopt.errors import CompileError

# TVM's name of an element's type -> that of a scalar and the stem of a vector's (f16x8), see `hip_prelude`.
TYPES = {
    "float32": ("float", "f32"), "float16": ("f16", "f16"), "int32": ("int", "i32"), "uint32": ("u32", "u32"),
    "int16": ("i16", "i16"), "uint16": ("u16", "u16"), "int8": ("i8", "i8"), "uint8": ("u8", "u8"),
    "bool": ("bool", "bool"), "int64": ("i64", "i64"),
}  # fmt: skip
# Operator and precedence of C; the operands of & | ^ << >> get parentheses that C does not need.
_BINARY = {
    "Add": ("+", 12), "Sub": ("-", 12), "Mul": ("*", 13), "Div": ("/", 13), "Mod": ("%", 13),
    "LShift": ("<<", 11), "RShift": (">>", 11), "LT": ("<", 10), "LE": ("<=", 10), "GT": (">", 10),
    "GE": (">=", 10), "EQ": ("==", 9), "NE": ("!=", 9), "BitwiseAnd": ("&", 8), "BitwiseXor": ("^", 7),
    "BitwiseOr": ("|", 6), "And": ("&&", 5), "Or": ("||", 4),
}  # fmt: skip
_MIXED = {"&", "|", "^", "<<", ">>"}
_SELECT, _UNARY, _ATOM = 3, 14, 16
_SCOPES = {"shared": "tile", "shared.dyn": "tile"}
Text = tuple[str, int]  # an expression and its precedence


def print_kernel(function: Any, symbol: str, threads: int) -> str:
    """The definition of the kernel. CompileError: TIR that no schedule is known to write."""
    return _Printer(function, symbol, threads).text()


class _Printer:
    def __init__(self, function: Any, symbol: str, threads: int) -> None:
        self.function, self.symbol, self.threads = function, symbol, threads
        self.names: dict[Any, str] = {}
        self.scalars: set[Any] = set()  # buffers of one element, printed as variables
        self.counts: dict[str, int] = {}
        self.indices: dict[str, str] = {}  # of blocks and threads: their definitions
        self.lines: list[str] = []
        self.depth = 1

    def text(self) -> str:
        parameters = []
        for index, parameter in enumerate(self.function.params):
            self.names[parameter] = f"p{index}"
            element = _element(str(parameter.ty.element_type.dtype))
            parameters.append(f"{element}* __restrict__ p{index}")
        self.statement(self.function.body)
        head = f'extern "C" __global__ void __launch_bounds__({self.threads})\n{self.symbol}('
        used = set(re.findall(r"\w+", "\n".join(self.lines)))
        begin = [line for name, line in self.indices.items() if name in used]
        return "\n".join([f"{head}{', '.join(parameters)}) {{", *begin, *self.lines, "}"]) + "\n"

    def emit(self, line: str) -> None:
        self.lines.append("  " * self.depth + line)

    def fresh(self, stem: str) -> str:
        self.counts[stem] = self.counts.get(stem, -1) + 1
        return f"{stem}{self.counts[stem]}"

    # Statements

    def statement(self, node: Any) -> None:
        kind = type(node).__name__
        method: Callable[[Any], None] | None = getattr(self, f"_statement_{kind}", None)
        if method is None:
            raise CompileError(f"{self.symbol}: HIP source has no {kind}")
        method(node)

    def _block(self, node: Any) -> None:
        self.depth += 1
        self.statement(node)
        self.depth -= 1

    def _statement_SeqStmt(self, node: Any) -> None:
        statements = list(node.seq)
        while statements:
            first = statements.pop(0)
            # `hold` allocates one element and stores to it at once: one definition.
            if isinstance(first, tirx.AllocBuffer) and statements and _stores_to(statements[0], first.buffer):
                self._allocate(first.buffer, self.expression(statements.pop(0).value))
            else:
                self.statement(first)

    def _statement_AllocBuffer(self, node: Any) -> None:
        self._allocate(node.buffer, None)

    def _allocate(self, buffer: Any, value: str | None) -> None:
        element, scope = _element(str(buffer.dtype)), buffer.scope()
        extent = 1
        for n in buffer.shape:
            extent *= int(n)
        if scope in _SCOPES:
            name = self.names[buffer] = self.fresh(_SCOPES[scope])
            if scope == "shared.dyn":
                self.emit(f"extern __shared__ __attribute__((aligned(16))) {element} {name}[];")
            else:
                self.emit(f"__shared__ __attribute__((aligned(16))) {element} {name}[{extent}];")
        elif scope != "local":
            raise CompileError(f"{self.symbol}: HIP source has no memory {scope!r}")
        elif extent == 1:
            name = self.names[buffer] = self.fresh("i" if element == "int" else "v")
            self.scalars.add(buffer)
            self.emit(f"{element} {name};" if value is None else f"{element} {name} = {value};")
        else:
            name = self.names[buffer] = self.fresh("r")
            self.emit(f"__attribute__((aligned(16))) {element} {name}[{extent}];")

    def _statement_DeclBuffer(self, node: Any) -> None:
        pointer = node.data
        if isinstance(pointer, tvm.ir.Var):
            self.names[node.buffer] = self.names[pointer]  # a parameter under a buffer's name
            return
        source = self._buffer_of(pointer)
        element = _element(str(node.buffer.dtype))
        name = self.names[node.buffer] = self.fresh("view")
        self.emit(f"{element}* {name} = reinterpret_cast<{element}*>({self._pointer(source)});")

    def _buffer_of(self, pointer: Any) -> Any:
        if isinstance(pointer, tvm.ir.Call) and _operator(pointer) == "tirx.buffer_data":
            return pointer.args[0]
        raise CompileError(f"{self.symbol}: HIP source has no pointer {pointer}")

    def _statement_AttrStmt(self, node: Any) -> None:
        if node.attr_key != "thread_extent":
            raise CompileError(f"{self.symbol}: HIP source has no attribute {node.attr_key}")
        tag = str(node.node.thread_tag)
        name = "thread" if tag == "threadIdx.x" else tag.replace("Idx.", "_")
        self.names[node.node.var] = name
        self.indices[name] = f"  const int {name} = {tag};"
        self.statement(node.body)

    def _statement_For(self, node: Any) -> None:
        name = self.names[node.loop_var] = self.fresh("n")
        begin, extent = self.expression(node.min), node.extent
        constant = isinstance(node.min, tirx.IntImm) and isinstance(extent, tirx.IntImm)
        end = str(int(node.min) + int(extent)) if constant else self.expression(node.min + extent)
        if node.kind == tirx.ForKind.UNROLLED:
            self.emit("#pragma unroll")
        elif node.kind == tirx.ForKind.SERIAL and _has_unrolled(node):
            # Unrolling it too lets the compiler load everything at the start: measured with LLVM 19, the 8x4
            # tile of halves took 256 registers and spilled, now 157.
            self.emit("#pragma unroll 1")
        elif node.kind != tirx.ForKind.SERIAL:
            raise CompileError(f"{self.symbol}: HIP source has no {node.kind} loop")
        self.emit(f"for (int {name} = {begin}; {name} < {end}; ++{name}) {{")
        self._block(node.body)
        self.emit("}")

    def _statement_IfThenElse(self, node: Any) -> None:
        self.emit(f"if ({self.expression(node.condition)}) {{")
        self._block(node.then_case)
        if node.else_case is not None:
            self.emit("} else {")
            self._block(node.else_case)
        self.emit("}")

    def _statement_BufferStore(self, node: Any) -> None:
        lanes = _lanes(node.value)
        place = self._place(node.buffer, node.indices, lanes)
        self.emit(f"{place} = {self.expression(node.value)};")

    def _statement_Bind(self, node: Any) -> None:
        value = self.expression(node.value)
        name = self.names[node.var] = self.fresh("b")
        self.emit(f"const {_type_of(node.value)} {name} = {value};")

    def _statement_Evaluate(self, node: Any) -> None:
        call = node.value
        if isinstance(call, tvm.ir.Call) and _operator(call) == "tirx.tvm_storage_sync":
            self.emit("__syncthreads();")
        elif not isinstance(call, tirx.IntImm):  # a constant is TVM's empty statement
            self.emit(f"{self.expression(call)};")

    # Expressions

    def expression(self, node: Any, at_least: int = 0) -> str:
        """Its text, in parentheses where it binds less than `at_least`."""
        text, precedence = self._expression(node)
        return text if precedence >= at_least else f"({text})"

    def _expression(self, node: Any) -> Text:
        kind = type(node).__name__
        if kind in _BINARY:
            return self._binary(node, *_BINARY[kind])
        method: Callable[[Any], Text] | None = getattr(self, f"_expression_{kind}", None)
        if method is None:
            raise CompileError(f"{self.symbol}: HIP source has no {kind}")
        return method(node)

    def _binary(self, node: Any, sign: str, precedence: int) -> Text:
        operands = []
        for side, operand in ((0, node.a), (1, node.b)):
            text, inner = self._expression(operand)
            mixed = inner < _UNARY and (sign in _MIXED or inner <= 8)
            if inner < precedence + side or mixed:
                text = f"({text})"
            operands.append(text)
        return f"{operands[0]} {sign} {operands[1]}", precedence

    def _expression_Var(self, node: Any) -> Text:
        return self.names[node], _ATOM

    def _expression_IntImm(self, node: Any) -> Text:
        value, dtype = int(node), str(node.ty.dtype)
        if dtype == "bool":
            return ("true" if value else "false"), _ATOM
        if dtype in ("uint32", "uint16", "uint8"):
            return f"{value}u", _ATOM
        if value == -(2**31):
            return "(-2147483647 - 1)", _ATOM
        return str(value), _ATOM if value >= 0 else _UNARY

    def _expression_FloatImm(self, node: Any) -> Text:
        dtype = str(node.ty.dtype)
        text = _float(float(node.value))
        if dtype == "float16":
            return f"(f16){text}", _UNARY
        return text, _UNARY if text.startswith("-") else _ATOM

    def _expression_Cast(self, node: Any) -> Text:
        lanes = _lanes(node)
        if lanes == 1:
            return f"({_type_of(node)}){self.expression(node.value, _UNARY)}", _UNARY
        return f"__builtin_convertvector({self.expression(node.value)}, {_type_of(node)})", _ATOM

    def _expression_Broadcast(self, node: Any) -> Text:
        return f"({_type_of(node)})({self.expression(node.value)})", _UNARY

    def _expression_Not(self, node: Any) -> Text:
        return f"!{self.expression(node.a, _UNARY)}", _UNARY

    def _expression_Select(self, node: Any) -> Text:
        return self._choice(node.condition, node.true_value, node.false_value)

    def _choice(self, condition: Any, yes: Any, no: Any) -> Text:
        parts = [self.expression(part, _SELECT + 1) for part in (condition, yes, no)]
        return f"{parts[0]} ? {parts[1]} : {parts[2]}", _SELECT

    def _expression_Min(self, node: Any) -> Text:
        return self._extreme("min", node)

    def _expression_Max(self, node: Any) -> Text:
        return self._extreme("max", node)

    def _extreme(self, name: str, node: Any) -> Text:
        function = {"float32": f"f{name}f", "float16": f"f16_{name}"}.get(_dtype(node), f"int_{name}")
        return f"{function}({self.expression(node.a)}, {self.expression(node.b)})", _ATOM

    def _expression_TensorLoad(self, node: Any) -> Text:
        return self._place(node.source, node.indices, _lanes(node)), _ATOM

    def _expression_Call(self, node: Any) -> Text:
        operator, arguments = _operator(node), list(node.args)
        if operator in ("tirx.call_extern", "tirx.call_pure_extern"):
            texts = ", ".join(map(self.expression, arguments[1:]))
            return f"{arguments[0].value}({texts})", _ATOM
        if operator == "tirx.address_of":
            load = arguments[0]
            return f"&{self._place(load.source, load.indices, 1)}", _UNARY
        if operator == "tirx.reinterpret":
            return f"__builtin_bit_cast({_type_of(node)}, {self.expression(arguments[0])})", _ATOM
        if operator == "tirx.isnan":
            held = self.expression(arguments[0], _UNARY)
            return f"{held} != {held}", _BINARY["NE"][1]
        if operator == "tirx.if_then_else":
            return self._choice(*arguments)
        raise CompileError(f"{self.symbol}: HIP source has no {operator}")

    # Memory

    def _pointer(self, buffer: Any) -> str:
        return f"&{self.names[buffer]}" if buffer in self.scalars else self.names[buffer]

    def _place(self, buffer: Any, indices: Sequence[Any], lanes: int) -> str:
        (index,) = indices
        name = self.names[buffer]
        if lanes == 1:
            return name if buffer in self.scalars else f"{name}[{self.expression(index)}]"
        if not isinstance(index, tvm.tirx.Ramp) or int(index.stride) != 1:
            raise CompileError(f"{self.symbol}: HIP source has no gathered vector {buffer.name}[{index}]")
        first = self.expression(index.base, 13)
        place = name if first == "0" else f"({name} + {first})"
        return f"*({_vector(str(buffer.dtype), lanes)}*){place}"


def _stores_to(statement: Any, buffer: Any) -> bool:
    """Whether the statement gives the buffer's only element its first value."""
    if not isinstance(statement, tirx.BufferStore) or not statement.buffer.same_as(buffer):
        return False
    return [int(n) for n in buffer.shape] == [1] and buffer.scope() == "local"


def _has_unrolled(loop: Any) -> bool:
    """Whether a loop to unroll lies in this one: its body is long then."""
    kinds: list[Any] = []
    tvm_ffi.structural_walk(loop.body, (tirx.For, lambda inner, *rest: kinds.append(inner.kind)))
    return tirx.ForKind.UNROLLED in kinds


def _operator(call: Any) -> str:
    return str(call.op.name) if isinstance(call.op, tvm.ir.Op) else str(call.op)


def _dtype(node: Any) -> str:
    return str(node.ty.dtype)


def _lanes(node: Any) -> int:
    return int(tvm.DataType(_dtype(node)).lanes)


def _element(dtype: str) -> str:
    return _names(dtype)[0]


def _vector(dtype: str, lanes: int) -> str:
    return f"{_names(dtype)[1]}x{lanes}"


def _names(dtype: str) -> tuple[str, str]:
    if dtype not in TYPES:
        raise CompileError(f"HIP source has no {dtype}")
    return TYPES[dtype]


def _type_of(node: Any) -> str:
    data = tvm.DataType(_dtype(node))
    scalar = str(data.with_lanes(1)) if data.lanes > 1 else _dtype(node)
    return _element(scalar) if data.lanes == 1 else _vector(scalar, int(data.lanes))


def _float(value: float) -> str:
    """The shortest text that is this float32."""
    number = np.float32(value)
    if np.isnan(number):
        return '__builtin_nanf("")'
    if np.isinf(number):
        return "__builtin_inff()" if number > 0 else "-__builtin_inff()"
    text = (
        np.format_float_scientific(number, trim="-")
        if number and not 1e-4 <= abs(number) < 1e7
        else str(number)
    )
    return f"{text}f" if "." in text or "e" in text else f"{text}.0f"
