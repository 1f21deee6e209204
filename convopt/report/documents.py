"""Parts of JSON documents that several commands share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Literal

from convopt.runtime.program import Placement, Program

KINDS: tuple[Literal["compiled", "view", "folded", "fallback"], ...] = (
    "compiled",
    "view",
    "folded",
    "fallback",
)

PLACEMENT_FIELDS = {
    "nodes.compiled": "nodes that became kernels, alone or in one with others",
    "nodes.view": "nodes that cost nothing: another look at the same memory",
    "nodes.folded": "nodes that were computed beforehand",
    "nodes.fallback": "nodes that run in onnxruntime",
    "convs": "convolutions, transposed ones included",
    "convs_compiled": "those of them that became kernels",
    "schedules{}": "schedule: how many of those it computes",
    "fallbacks[].node": "name of a node that runs in onnxruntime",
    "fallbacks[].op": "its operator",
    "fallbacks[].reason": "why it was not compiled",
}

MEMORY_FIELDS = {
    "memory.arena_bytes": "of all intermediates together",
    "memory.live_bytes": "the largest sum of intermediates that are alive at once",
    "memory.arena_to_live": "arena_bytes / live_bytes; 1 is the least",
}


def memory_document(program: Program) -> dict[str, Any]:
    """What `MEMORY_FIELDS` describes."""
    return {
        "memory": {
            "arena_bytes": program.arena_bytes,
            "live_bytes": program.live_bytes,
            "arena_to_live": program.arena_to_live,
        }
    }


def memory_line(document: dict[str, Any]) -> str:
    """The same in words."""
    memory = document["memory"]
    arena = memory["arena_bytes"] / (1 << 20)
    return f"arena: {arena:.1f} MiB, {memory['arena_to_live']:.2f} times what is alive at once"


def placement_document(placement: Sequence[Placement]) -> dict[str, Any]:
    """Counts and reasons; `PLACEMENT_FIELDS` describes them."""
    from convopt.runtime.summary import CONVOLUTIONS, schedule_name

    counts = Counter(place.where for place in placement)
    convs = [place for place in placement if place.op in CONVOLUTIONS]
    compiled = [place for place in convs if place.where == "compiled"]
    return {
        "nodes": {kind: counts[kind] for kind in KINDS},
        "convs": len(convs),
        "convs_compiled": len(compiled),
        "schedules": dict(Counter(map(schedule_name, compiled)).most_common()),
        "fallbacks": [
            {"node": place.node, "op": place.op, "reason": place.detail}
            for place in placement
            if place.where == "fallback"
        ],
    }


def fallback_counts(document: dict[str, Any]) -> list[str]:
    """`3 Resize: the reason`, one text for each operator and reason."""
    counts = Counter((f["op"], f["reason"]) for f in document["fallbacks"])
    return [f"{count} {op}: {reason}" for (op, reason), count in counts.most_common()]


def placement_lines(document: dict[str, Any]) -> list[str]:
    """The same in words, a line for each fallback."""
    counts = ", ".join(f"{count} {kind}" for kind, count in document["nodes"].items())
    how = ", ".join(f"{count} {name}" for name, count in document["schedules"].items())
    lines = [
        f"convolutions compiled: {document['convs_compiled']} of {document['convs']}"
        + (f" ({how})" if how else ""),
        f"nodes: {counts}",
    ]
    lines += [f"fallback {f['op']} {f['node']}: {f['reason']}" for f in document["fallbacks"]]
    return lines
