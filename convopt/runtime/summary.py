"""A module in words: what was compiled and how, what fell back and why, and its memory."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from convopt.runtime.device_program import DeviceProgram, islands_on_cpu
from convopt.runtime.loaded import Loaded
from convopt.runtime.program import IslandStep, Placement, Program

if TYPE_CHECKING:
    from convopt.runtime.module import CompiledModule

MOST_NAMES = 8  # of nodes kept in fp32 that a summary lists
CONVOLUTIONS = ("Conv", "ConvTranspose")


def schedule_name(placement: Placement) -> str:
    """The schedule in the detail of a convolution: the last word of the labels, which are joined by "; ".

    "halo; im2col 1 images 9x64; 1x1 s1 1x576->64 @1x1x56x56 direct" is "im2col + direct".
    """
    labels = placement.detail.split("; ")
    last = labels[-1].split()
    name = last[-1] if last else "unnamed"
    return f"im2col + {name}" if any(label.startswith("im2col ") for label in labels) else name


def summarize(module: CompiledModule) -> str:
    """The text of `CompiledModule.summary`: the boundary, then each Program."""
    threads = f"{module.threads} thread{'s' if module.threads > 1 else ''}"
    lines = [f"compiled for {module.target}, {module.precision}, {threads}"]
    for title, tensors in (("input", module.inputs), ("output", module.outputs)):
        lines += [f"  {title} {info.name}: {info.dtype} {info.dims}" for info in tensors]
    programs = module.programs
    if not programs:
        lines.append("nothing compiled yet: the shapes come with the first call")
    for loaded in programs:
        lines += _program(loaded)
    return "\n".join(lines)


def convolutions_line(program: Program) -> str:
    """How many convolutions are compiled, and by which schedules."""
    convolutions = [place for place in program.placement if place.op in CONVOLUTIONS]
    compiled = [place for place in convolutions if place.where == "compiled"]
    schedules = Counter(schedule_name(place) for place in compiled)
    how = ", ".join(f"{count} {name}" for name, count in schedules.most_common())
    return f"convs compiled: {len(compiled)} of {len(convolutions)}" + (f" ({how})" if how else "")


def _program(loaded: Loaded) -> list[str]:
    program = loaded.program
    islands = sum(isinstance(step, IslandStep) for step in program.steps)
    where = Counter(place.where for place in program.placement)
    shapes = ", ".join(f"{spec.name} {spec.shape}" for spec in program.inputs)
    lines = [
        f"program for {shapes or 'no inputs'}"
        + (f" on {program.meta['target']}" if "target" in program.meta else ""),
        f"  {convolutions_line(program)}",
        f"  nodes: {where['compiled']} compiled, {where['view']} views, {where['folded']} folded, "
        f"{where['fallback']} fallback",
        f"  steps: {len(program.steps) - islands} kernels, {islands} islands" + _copies(loaded),
        f"  memory: arena {_size(program.arena_bytes)}, {program.arena_to_live:.2f} times the "
        f"{_size(program.live_bytes)} alive at once, "
        f"weights {_size(loaded.weights.nbytes)}, code {_size(len(loaded.image))}",
    ]
    if kept := program.meta.get("keep_fp32"):
        names = ", ".join(kept[:MOST_NAMES]) + (", ..." if len(kept) > MOST_NAMES else "")
        lines.append(f"  {len(kept)} nodes kept in fp32: {names}")
    if verified := program.meta.get("verified"):
        lines.append(f"  verified: {verified}")
    if deterministic := program.meta.get("deterministic"):
        lines.append(f"  deterministic: {deterministic}")
    for place in program.placement:
        if place.where == "fallback":
            lines.append(f"  fallback {place.op} {place.node}: {place.detail}")
    return lines


def _copies(loaded: Loaded) -> str:
    """Where the islands beside a device run, and what they cost."""
    if not isinstance(loaded, DeviceProgram):
        return ""
    total = sum(isinstance(step, IslandStep) for step in loaded.program.steps)
    copied = islands_on_cpu(loaded)
    copies = sum(len(step.inputs) + len(step.outputs) for step in copied)
    text = f" in {loaded.islands.provider(loaded.kind)} without copies" if total > len(copied) else ""
    if copied:
        which = f", {len(copied)} of them" if text else ""
        text += f"{which} on the CPU, {copies} copies between it and the device"
    return text


def _size(nbytes: int) -> str:
    if nbytes < 1 << 20:
        return f"{nbytes / (1 << 10):.1f} KiB"
    return f"{nbytes / (1 << 20):.1f} MiB"
