"""Where each operator of a torch graph runs, and why."""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass

from torch.fx import GraphModule

from convopt.runtime.program import Placement, Program
from convopt.runtime.summary import convolutions_line

logger = logging.getLogger("convopt.torch")


@dataclass(frozen=True)
class GraphReport:
    """One graph, compiled for one set of input shapes.

    placement: every ATen operator: "compiled", "view" (costs nothing, torch does it), "folded" (computed
    beforehand) or "fallback" (stays in torch, `detail` says why). programs: of the compiled parts that it was
    cut into. module: the graph before the cut, whose nodes `placement` names. verified: whether the parts'
    first results were compared with torch's.
    """

    placement: tuple[Placement, ...]
    programs: tuple[Program, ...]
    module: GraphModule
    verified: bool = False

    @property
    def fallbacks(self) -> tuple[Placement, ...]:
        return tuple(place for place in self.placement if place.where == "fallback")

    def summary(self) -> str:
        """One line, then one for each compiled part and each operator that stays in torch."""
        counts = Counter(place.where for place in self.placement)
        text = ", ".join(f"{counts[where]} {where}" for where in ("compiled", "view", "folded", "fallback"))
        parts = f"{len(self.programs)} compiled part{'' if len(self.programs) == 1 else 's'}"
        lines = [f"{len(self.placement)} ATen operators in {parts}: {text}"]
        for program in self.programs:
            meta = program.meta
            lines.append(
                f"  on {meta['target']}, {meta['precision']}, threads: {meta['threads']};"
                f" {convolutions_line(program)}; kernels: {len(program.steps)}"
            )
        if self.verified:
            lines.append("  verified: the parts' first results against torch's")
        lines += [f"  stays in torch: {p.op} {p.node}: {p.detail}" for p in self.fallbacks]
        return "\n".join(lines)

    def log(self) -> None:
        """A line that is shown by default where anything stays in torch; the reasons as information."""
        if self.fallbacks:
            ops = Counter(place.op for place in self.fallbacks)
            text = ", ".join(f"{op} ({count})" if count > 1 else op for op, count in ops.most_common())
            logger.warning(
                "%d of %d operators stay in torch: %s", len(self.fallbacks), len(self.placement), text
            )
        logger.info("%s", self.summary())
