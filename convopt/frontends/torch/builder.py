"""What a translation of an ATen operator works with: tensors of the graph in, ONNX nodes out.

Inside a translated graph every floating-point tensor is float32, whatever its dtype in torch: 16-bit values
are widened where they enter and rounded once where they leave, so that all accumulation is in float32. Truth
values are BOOL. Integer tensors take part as constants, or as numbers that enter widened to float32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
import torch

from convopt.ir.values import new_constant, unique_name

OPSET = 20
FLOATS = (torch.float32, torch.float16, torch.bfloat16)


class Untranslatable(Exception):
    """This operator stays in torch; the text says why."""


class Missing:
    """A result of an operator that no translation gives; `why` says so where it is read."""

    def __init__(self, why: str) -> None:
        self.why = why


@dataclass(frozen=True)
class OnDemand:
    """A result of an operator that is worth its nodes only where something reads it."""

    make: Callable[[], ir.Value]


@dataclass(frozen=True)
class Tensor:
    """A tensor argument. `dtype` and `stride` are torch's; `array`: contents, None if only a call knows."""

    value: ir.Value
    shape: tuple[int, ...]
    dtype: torch.dtype
    stride: tuple[int, ...]
    array: torch.Tensor | None = None

    @classmethod
    def like(cls, value: ir.Value, tensor: torch.Tensor, array: torch.Tensor | None = None) -> Tensor:
        """`value` for what torch has as `tensor`, maybe a FakeTensor with static extents."""
        shape, stride = tuple(map(int, tensor.shape)), tuple(map(int, tensor.stride()))
        return cls(value, shape, tensor.dtype, stride, array)

    @property
    def rank(self) -> int:
        return len(self.shape)


Operand = Tensor | ir.Value | float | bool | Sequence[int] | None


class Builder:
    """The ONNX graph under construction. `stem` names the ATen node in hand, `out` its result in torch."""

    def __init__(self) -> None:
        self.graph = ir.Graph([], [], nodes=[], opset_imports={"": OPSET}, name="torch")
        self.stem = ""
        self.out: Any = None

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the (first) result of the ATen node in hand."""
        out = self.out[0] if isinstance(self.out, (tuple, list)) else self.out
        return tuple(map(int, out.shape))

    def op(self, op_type: str, *inputs: Operand, outputs: int = 1, **attributes: Any) -> Any:
        """A standard ONNX node's output, or the tuple of its `outputs`."""
        values = [ir.Value(name=unique_name(self.graph, f"{self.stem}/{op_type}")) for _ in range(outputs)]
        typed = {name: _attribute(name, value) for name, value in attributes.items()}
        node = ir.node(op_type, [self.operand(i) for i in inputs], typed, outputs=values, name=values[0].name)
        self.graph.append(node)
        return values[0] if outputs == 1 else tuple(values)

    def operand(self, given: Operand) -> ir.Value | None:
        """Numbers become float32 scalars, truth values BOOL ones, lists of integers int64 vectors."""
        if given is None or isinstance(given, ir.Value):
            return given
        if isinstance(given, Tensor):
            return given.value
        if isinstance(given, bool):
            return self.constant(np.array(given))
        if isinstance(given, (int, float)):
            return self.constant(np.array(given, np.float32))
        return self.constant(np.array(list(given), np.int64))

    def constant(self, array: np.ndarray[Any, Any]) -> ir.Value:
        return new_constant(self.graph, array, f"{self.stem}/constant")

    def reshape(self, value: Operand, shape: Sequence[int]) -> ir.Value:
        made: ir.Value = self.op("Reshape", value, [*map(int, shape)])
        return made

    def per_channel(self, tensor: Tensor, rank: int) -> ir.Value:
        """A vector over the channels, with the dims that make it broadcast over N, C, spatial..."""
        return self.reshape(tensor, (1, tensor.shape[0], *(1,) * (rank - 2)))


def _attribute(name: str, value: Any) -> Any:
    """Integers in a row get their type here: onnx-ir takes 0.3 ms to find out by its protocols."""
    if isinstance(value, (list, tuple)) and value and all(type(item) is int for item in value):
        return ir.AttrInt64s(name, value)
    return value


def held(tensor: Tensor | None, what: str) -> np.ndarray[Any, Any] | None:
    """What a tensor holds, as float32; None for None. Untranslatable where only a call knows it."""
    if tensor is None:
        return None
    if tensor.array is None:
        raise Untranslatable(f"{what} is computed, not a parameter")
    return as_array(tensor.array)


def as_array(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """The elements, floating-point ones as float32, without a copy where they are that already."""
    tensor = tensor.detach().cpu().resolve_neg()
    if tensor.is_floating_point():
        tensor = tensor.to(torch.float32)
    array: np.ndarray[Any, Any] = np.ascontiguousarray(
        tensor.numpy()
    )  # turns channels-last faster than torch
    return array
