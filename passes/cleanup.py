"""Compute the same thing once, and drop what nobody reads: nodes, constants, optional outputs, opset imports.

Before:
    a = Relu (x)  b = Relu (x)  dead = Sigmoid (x)  y = Add (a, b)
After:
    a = Relu (x)  y = Add (a, a)
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir
from onnx_ir.passes import common

from convopt.ir.values import is_op, label
from convopt.passes.base import Note, PassContext, PassReport


@dataclass(frozen=True)
class Cleanup:
    name: ClassVar[str] = "cleanup"

    def run(self, model: ir.Model, context: PassContext) -> PassReport:
        counts = (_nodes(model), len(model.graph.initializers), len(model.opset_imports))
        kept = [n for n in model.graph if _is_its_own(n)]
        merge_equal = () if kept else (common.CommonSubexpressionEliminationPass(),)
        steps = (
            common.RemoveUnusedNodesPass(),
            common.DeduplicateInitializersPass(size_limit=1024),
            *merge_equal,
            common.RemoveUnusedNodesPass(),
            common.RemoveUnusedOpsetsPass(process_functions=False),
        )
        with _without_warnings():
            for step in steps:
                step(model)
        after = (_nodes(model), len(model.graph.initializers), len(model.opset_imports))
        notes = tuple(
            Note("", f"{b - a} {what} removed")
            for b, a, what in zip(counts, after, ("nodes", "constants", "opset imports"), strict=True)
            if b != a
        )
        notes += tuple(
            Note(n.name or "", f"equal nodes are kept, as beside {label(n)}", refused=True) for n in kept[:1]
        )
        return PassReport(sum(b - a for b, a in zip(counts, after, strict=True)), notes)


def _is_its_own(node: ir.Node) -> bool:
    """Random results beside those that onnx-ir knows of, and attributes that it can't compare."""
    return is_op(node, "Bernoulli", "Dropout") or any(
        a.type in (ir.AttributeType.TYPE_PROTO, ir.AttributeType.TYPE_PROTOS, ir.AttributeType.TENSORS)
        for a in node.attributes.values()
    )


@contextmanager
def _without_warnings() -> Iterator[None]:
    """onnx-ir warns of each constant that is also an input or an output and so can't be merged: no news."""

    def passes(record: logging.LogRecord) -> bool:
        return record.levelno > logging.WARNING

    logger = logging.getLogger(common.DeduplicateInitializersPass.__module__)
    logger.addFilter(passes)
    try:
        yield
    finally:
        logger.removeFilter(passes)


def _nodes(model: ir.Model) -> int:
    return sum(1 for _ in model.graph.all_nodes())
