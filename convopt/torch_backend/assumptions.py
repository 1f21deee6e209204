"""What an exported program takes for granted of its inputs, checked at each call.

torch.export follows one path through the module. What decided it holds for the program alone: numbers, flags
and texts are those of the example, and comparisons of extents and strides come out as they did for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import sympy
import torch
from torch.export import ExportedProgram

from convopt.errors import InputError

# torch's own lower bound of dynamic extents, whether or not the module asks for it: 0 and 1 are let through,
# as by `ExportedProgram.module()`.
_UNBOUNDED_BELOW = 2


class Assumptions:
    """names and expected: of the program's inputs from the caller, without parameters; expected ones are the
    example's FakeTensors, numbers (SymInts where dynamic), texts and None.
    """

    def __init__(self, program: ExportedProgram, names: Sequence[str], expected: Sequence[Any]) -> None:
        self.names, self.expected = tuple(names), tuple(expected)
        extents = [e for value in self.expected for e in _extents(value)]
        symbolic = [e for e in extents if isinstance(e, torch.SymInt)]
        self._extents = [e.node.expr if isinstance(e, torch.SymInt) else sympy.Integer(e) for e in extents]
        symbols = {e for e in self._extents if e.is_Symbol}
        # Those that the extents give are left out; a stride with a symbol of its own is the caller's choice.
        self._strides = {
            expr: (index, axis)
            for index, value in enumerate(self.expected)
            for axis, stride in enumerate(value.stride() if isinstance(value, torch.Tensor) else ())
            if isinstance(stride, torch.SymInt)
            and (expr := stride.node.expr).is_Symbol
            and expr not in symbols
        }
        self._conditions = []
        if symbolic:
            guards = [guard.expr for guard in symbolic[0].node.shape_env.guards]
            # Others are about memory that the example was a part of.
            known = symbols | self._strides.keys()
            self._conditions = [expr for expr in guards if expr.free_symbols <= known]
        self._ranges = {s: r for s, r in program.range_constraints.items() if s in symbols}
        self._violated = lru_cache(maxsize=64)(self._find_violated)

    def check(self, values: Sequence[Any]) -> None:
        """InputError for the first assumption that doesn't hold; tensors have the example's ranks by then."""
        for name, value, expected in zip(self.names, values, self.expected, strict=True):
            if isinstance(expected, torch.SymInt) and type(value) is not int:
                raise InputError(f"input {name!r} is {value!r}; expected an integer")
            if isinstance(expected, (torch.Tensor, torch.SymInt)):
                continue
            if type(value) is not type(expected) or value != expected:
                found = "a tensor" if isinstance(value, torch.Tensor) else repr(value)
                raise InputError(
                    f"input {name!r} is {found}; expected {expected!r}, which the program was exported with"
                    " and holds for alone"
                )
        if self._extents and any(not e.is_Integer for e in self._extents):
            violated = self._violated(
                tuple(int(e) for value in values for e in _extents(value)),
                tuple(values[index].stride(axis) for index, axis in self._strides.values()),
            )
            if violated is not None:
                raise InputError(f"{violated}: the program was exported for extents where that is not so")

    def _find_violated(self, given: tuple[int, ...], strides: tuple[int, ...]) -> str | None:
        """What of these extents, all inputs' in order, and strides contradicts the export; None: nothing."""
        found: dict[Any, int] = {}
        for expr, extent in zip(self._extents, given, strict=True):
            if expr.is_Symbol:
                found.setdefault(expr, extent)
        found |= dict(zip(self._strides, strides, strict=True))
        places = self._places()
        for expr, place, extent in zip(self._extents, self._labels(), given, strict=True):
            if (wanted := expr.subs(found)) != extent:
                return f"{place} is {extent}, not {_text(expr, places)} = {wanted}"
        for symbol, bounds in self._ranges.items():
            below = bounds.lower > _UNBOUNDED_BELOW and found[symbol] < bounds.lower
            if below or found[symbol] > bounds.upper:
                return f"{places[symbol]} is {found[symbol]}, outside {bounds.lower} to {bounds.upper}"
        for condition in self._conditions:
            if condition.subs(found) == sympy.false:
                values = ", ".join(
                    f"{places[s]} = {found[s]}" for s in sorted(condition.free_symbols, key=str)
                )
                return f"{_text(condition, places)} is wrong for {values}"
        return None

    def _labels(self) -> list[str]:
        """For people, what each extent is: `x.shape[0]`, or the name of a number."""
        return [
            f"{name}.shape[{i}]" if isinstance(value, torch.Tensor) else name
            for name, value in zip(self.names, self.expected, strict=True)
            for i in range(len(_extents(value)))
        ]

    def _places(self) -> Mapping[Any, str]:
        found: dict[Any, str] = {}
        for expr, place in zip(self._extents, self._labels(), strict=True):
            found.setdefault(expr, place)
        for expr, (index, axis) in self._strides.items():
            found[expr] = f"{self.names[index]}.stride({axis})"
        return found


def _extents(value: Any) -> tuple[Any, ...]:
    """What may be symbolic of an input: a tensor's extents, an integer itself."""
    if isinstance(value, torch.Tensor):
        return tuple(value.shape)
    return (value,) if isinstance(value, (int, torch.SymInt)) and not isinstance(value, bool) else ()


def _text(expr: Any, places: Mapping[Any, str]) -> str:
    return str(expr.subs({s: sympy.Symbol(places[s]) for s in expr.free_symbols}))
