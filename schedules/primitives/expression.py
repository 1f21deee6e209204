"""Elementwise expressions as values: the epilogue of a conv, the body of a pointwise kernel.

An Expression is a straight list of operations on numbered values, so it hashes, prints and compares; `emit`
turns it into vectors of TIR.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Op:
    """`name` applied to earlier values: value i < inputs is input i, value inputs + j is the j-th op."""

    name: str
    args: tuple[int, ...] = ()
    attrs: tuple[float, ...] = ()


@dataclass(frozen=True)
class Expression:
    inputs: int
    ops: tuple[Op, ...]
    results: tuple[int, ...]


def identity() -> Expression:
    return Expression(1, (), (0,))
