"""Each compiled part beside what torch computes of the same inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import GraphModule

from convopt.passes.check import relative_error
from convopt.torch_backend.part import CompiledPart
from convopt.verification import LEAST_SCALE, tolerance


def verified(
    module: GraphModule, parts: Sequence[CompiledPart], args: Sequence[Any]
) -> tuple[list[str], str] | None:
    """(names of the nodes, what differs) of the first part that differs; None where none does."""
    found: list[tuple[list[str], str]] = []

    def compare(part: torch.nn.Module, inputs: tuple[Any, ...], outputs: Any) -> None:
        assert isinstance(part, CompiledPart)
        if found:
            return
        expected = part.original[0](*inputs)
        pairs = [(expected, outputs)] if part.single else zip(expected, outputs, strict=True)
        for want, have in pairs:
            error, bound = _error(want, have)
            if not error <= bound:
                names = [n.name for n in part.original[0].graph.nodes if n.op == "call_function"]
                text = f"differs from torch by {error:.2e} of its scale; expected at most {bound:.0e}"
                found.append((names, text))
                return

    handles = [part.register_forward_hook(compare) for part in parts]
    try:
        with torch.no_grad():
            module(*args)
    finally:
        for handle in handles:
            handle.remove()
    return found[0] if found else None


def _error(want: torch.Tensor, have: torch.Tensor) -> tuple[float, float]:
    """The error relative to the scale of what torch computes, and how large it may be."""
    if want.dtype == torch.bool:
        return float(not torch.equal(want, have)), 0.0
    bound = {torch.float16: 2e-3, torch.bfloat16: 1e-2}
    expected, array = want.float().cpu().numpy(), have.float().cpu().numpy()
    return relative_error(expected, array, LEAST_SCALE), bound.get(want.dtype, tolerance(expected.dtype))
