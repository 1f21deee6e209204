"""Joins a depthwise convolution with those before and behind it, where that is faster by estimate.

Before::

    e = convopt.Conv(x, w0)     # 1x1, 16 to 96 channels
    d = convopt.Conv(e, w1)     # depthwise
    y = convopt.Conv(d, w2, x)  # 1x1 and the sum with x

After::

    y = convopt.FusedConv(x, w0, w1, w2)

What lay between is then never in memory as a whole, so it must be read by nothing else. Of the three ways,
with the one before, the one behind or both, the one that saves most is taken.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from convopt.ir.groups import body_of, merge_groups
from convopt.ir.layout import layout_of, set_layout
from convopt.lowering.fused_conv import is_depthwise, problem_of_groups
from convopt.passes.base import Note, PassContext, PassReport
from convopt.selection.fused import FusedChoice, choose_fused
from convopt.targets import CpuTarget


@dataclass(frozen=True)
class FuseConvs:
    """For groups with layouts; the estimate is for so many threads."""

    name: ClassVar[str] = "fuse-convs"
    target: CpuTarget
    threads: int

    def run(self, model: ir.Model, context: PassContext) -> PassReport:
        graph = model.graph
        notes: list[Note] = []
        merged, fused_groups = set[ir.Node](), 0
        for group in list(graph):
            if group.op_type != "Conv" or group in merged or not is_depthwise(_conv(group)):
                continue
            name = _conv(group).name or ""
            best: tuple[FusedChoice, tuple[ir.Node, ...]] | None = None
            for chain in _chains(group):
                choice = self._choice(chain, name, notes)
                if choice is not None and (best is None or _saved(choice) > _saved(best[0])):
                    best = choice, chain
            if best is None:
                continue
            choice, chain = best
            saved = f"{choice.seconds * 1e6:.0f} us instead of {choice.separate * 1e6:.0f} by estimate"
            joined = ", ".join(_conv(g).name or "" for g in chain)
            notes.append(Note(name, f"one kernel of {joined}: {saved}"))
            merged.update(chain)
            layout = layout_of(chain[-1].outputs[0])
            fused = merge_groups(graph, "FusedConv", chain)
            set_layout(fused.outputs[0], layout)
            fused_groups += 1
        return PassReport(fused_groups, tuple(notes))

    def _choice(self, chain: Sequence[ir.Node], name: str, notes: list[Note]) -> FusedChoice | None:
        """How the chain is computed as one kernel; None, with a note of why, where it isn't."""
        try:
            choice = choose_fused(problem_of_groups(chain), self.target, self.threads)
        except ValueError as error:
            notes.append(Note(name, str(error), refused=True))
            return None
        if choice.pays:
            return choice
        reason = f"as one kernel {choice.seconds * 1e6:.0f} us, apart {choice.separate * 1e6:.0f} by estimate"
        notes.append(Note(name, reason, refused=True))
        return None


def _saved(choice: FusedChoice) -> float:
    return choice.separate - choice.seconds


def _conv(group: ir.Node) -> ir.Node:
    return next(iter(body_of(group)))


def _chains(depthwise: ir.Node) -> Iterator[tuple[ir.Node, ...]]:
    """The depthwise group with its neighbours: both, the one behind, the one before."""
    before, behind = _before(depthwise), _behind(depthwise)
    if before is not None and behind is not None:
        yield before, depthwise, behind
    if behind is not None:
        yield depthwise, behind
    if before is not None:
        yield before, depthwise


def _before(group: ir.Node) -> ir.Node | None:
    """The convolution that makes what the group's convolution reads, for nobody else."""
    value = group.inputs[0]
    producer = None if value is None else value.producer()
    if producer is None or not _feeds(producer, group):
        return None
    return producer


def _behind(group: ir.Node) -> ir.Node | None:
    """The convolution that reads the group's result, and alone does so."""
    readers = list(group.outputs[0].consumers())
    return readers[0] if len(readers) == 1 and _feeds(group, readers[0]) else None


def _feeds(producer: ir.Node, reader: ir.Node) -> bool:
    """Whether both are convolutions and what the one makes is nothing but the other's input."""
    pair = producer, reader
    if any(g.op_type != "Conv" or _conv(g).op_type != "Conv" for g in pair) or len(producer.outputs) != 1:
        return False
    value, first = producer.outputs[0], body_of(reader).inputs[0]
    uses = list(value.uses())
    return (
        not value.is_graph_output()
        and [(use.node, use.idx) for use in uses] == [(reader, 0)]
        and _conv(reader).inputs[0] is first
        and all(node.inputs[0] is first or first not in node.inputs for node in body_of(reader))
    )
