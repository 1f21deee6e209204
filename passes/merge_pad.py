"""Merge a Pad with zeros into the pads of the convs and average pools that read it.

Before:
    p = Pad (x, pads)                                                  # pads 0,0,1,2, 0,0,3,4
    y = Conv <pads = [1, 1, 1, 1], ...> (p, w)
After:
    y = Conv <pads = [2, 3, 4, 5], ...> (x, w)

A Pad that several convs read is merged into each. Refused, in words: a mode other than constant, a value
other than zero, pads that are negative, not constant, or of the batch or channels, and readers whose own
padding means something else: MaxPool pads with -inf, ConvTranspose cuts, AveragePool may not count its pads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from convopt.ir.values import (
    attribute,
    constant,
    dims_of,
    input_at,
    is_op,
    label,
    remove_if_unused,
    set_int,
    set_ints,
)
from convopt.ir.windows import kernel_of
from convopt.passes.base import Note, PassContext, PassReport


@dataclass(frozen=True)
class MergePad:
    name: ClassVar[str] = "merge-pad"

    def run(self, model: ir.Model, context: PassContext) -> PassReport:
        notes: list[Note] = []
        changed = 0
        # From the back, so that of two Pads in a row the second is gone when the first one's turn comes.
        for pad in reversed(list(model.graph)):
            if not is_op(pad, "Pad"):
                continue
            readers = [node for node, index in pad.outputs[0].uses() if index == 0 and is_op(node, *_READERS)]
            if not readers:
                continue
            pads = padding_of(pad)
            if isinstance(pads, str):
                notes.append(Note(pad.name or "", f"{label(pad)} stays: {pads}", refused=True))
                continue
            for reader in readers:
                reason = _why_not(reader, pads)
                if reason:
                    text = f"{label(pad)} not merged into {label(reader)}: {reason}"
                    notes.append(Note(pad.name or "", text, refused=True))
                    continue
                _merge(reader, pads)
                reader.replace_input_with(0, pad.inputs[0])
                notes.append(
                    Note(reader.name or "", f"{label(pad)} merged in: pads {list(attribute(reader, 'pads'))}")
                )
                changed += 1
            remove_if_unused(pad)
        return PassReport(changed, tuple(notes))


_READERS = ("Conv", "AveragePool", "MaxPool", "ConvTranspose")


def padding_of(pad: ir.Node) -> tuple[int, ...] | str:
    """Begin and end pads of all dims where they are zeros around the spatial dims, else why they aren't."""
    if attribute(pad, "mode", "constant") != "constant":
        return f"its mode is {attribute(pad, 'mode')}"
    filling = input_at(pad, 2)
    if filling is not None:
        value = constant(filling)
        if value is None:
            return "its value is no constant"
        if value.size and value.reshape(-1)[0] != 0:
            return f"its value is {value.reshape(-1)[0]}, not zero"
    amounts, dims = constant(input_at(pad, 1)), dims_of(pad.inputs[0])
    if amounts is None:
        return "its pads are no constant"
    if dims is None:
        return "the input's rank is unknown"
    rank = len(dims)
    axes, given = list(range(rank)), input_at(pad, 3)
    if given is not None:
        named = constant(given)
        if named is None:
            return "its axes are no constant"
        axes = [int(a) % rank for a in named.reshape(-1)]
    full = [0] * (2 * rank)
    for i, axis in enumerate(axes):
        full[axis], full[rank + axis] = int(amounts[i]), int(amounts[len(axes) + i])
    if min(full) < 0:
        return f"its pads {full} are partly negative"
    if any(full[i] for i in (0, 1, rank, rank + 1)):
        return f"its pads {full} touch the batch or the channels"
    return tuple(full)


def _why_not(reader: ir.Node, pads: tuple[int, ...]) -> str:
    if reader.op_type == "MaxPool":
        return "a MaxPool's own padding is -inf, not zero"
    if reader.op_type == "ConvTranspose":
        return "a ConvTranspose's own pads cut its output"
    if attribute(reader, "auto_pad", "NOTSET") not in ("", "NOTSET"):
        return f"its pads are left to auto_pad {attribute(reader, 'auto_pad')}"
    if reader.op_type == "Conv":
        return ""
    own = attribute(reader, "pads", ())
    if attribute(reader, "ceil_mode", 0):
        return "with ceil_mode, windows may reach beyond the pads"
    if any(own) and not attribute(reader, "count_include_pad", 0):
        return "the pool does not count its own pads but does count the Pad's zeros"
    kernel = kernel_of(reader) or ()
    rank = len(kernel)
    total = _total(own or (0,) * (2 * rank), pads)
    if any(total[i] >= kernel[i % rank] for i in range(2 * rank)):
        return f"pads {list(total)} would reach the kernel's extent {list(kernel)}"
    return ""


def _total(own: tuple[int, ...], pads: tuple[int, ...]) -> tuple[int, ...]:
    rank = len(pads) // 2
    spatial = (*pads[2:rank], *pads[rank + 2 :])
    return tuple(a + b for a, b in zip(own or (0,) * len(spatial), spatial, strict=True))


def _merge(reader: ir.Node, pads: tuple[int, ...]) -> None:
    set_ints(reader, "pads", _total(attribute(reader, "pads", ()), pads))
    if reader.op_type == "AveragePool":
        set_int(reader, "count_include_pad", 1)
