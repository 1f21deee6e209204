"""From a model behind its graph passes to groups with layouts, and the convolutions among them."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import onnx_ir as ir

from convopt.errors import CompileError
from convopt.lowering.base import LoweringOptions
from convopt.lowering.program import Fallbacks, lower_only
from convopt.passes import PassContext, run_passes
from convopt.passes.assign_layout import AssignLayout
from convopt.passes.base import After, Pass
from convopt.passes.fuse_convs import FuseConvs
from convopt.passes.group_kernels import GroupKernels
from convopt.passes.lower_batchnorm import LowerBatchNorm
from convopt.passes.lower_normalization import LowerNormalization
from convopt.passes.narrow_storage import NarrowStorage
from convopt.schedules.conv_problem import ConvProblem
from convopt.selection.plans import choose_plan, plan_seconds
from convopt.targets import CpuTarget
from convopt.tuning.records import Collector, open_records

T = TypeVar("T")
DETERMINISTIC_THREADS = 4  # that deterministic choices are made for, whatever the module's number is


def kernel_passes(refused: Mapping[str, str], options: LoweringOptions) -> tuple[Pass, ...]:
    """From standard ONNX with static shapes to groups with layouts; `refused` (node: reason) fall back."""
    precision = options.precision
    narrow = () if precision.name == "fp32" else (NarrowStorage(precision),)
    fuse: tuple[Pass, ...] = ()
    if precision.name == "fp32" and options.algorithm == "auto" and isinstance(options.target, CpuTarget):
        fuse = (FuseConvs(options.target, options.threads),)
    arithmetic = LowerBatchNorm(), LowerNormalization()
    return *arithmetic, GroupKernels(tuple(refused.items())), AssignLayout(), *narrow, *fuse


def lower_graph(
    graph: ir.Model,
    context: PassContext,
    refused: Mapping[str, str],
    after: After | None,
    options: LoweringOptions,
) -> ir.Model:
    """A copy of the graph, cut into groups with layouts and storage; `refused` nodes become islands."""
    lowered = graph.clone()
    context = PassContext(target=context.target, shapes=context.shapes)
    run_passes(lowered, kernel_passes(refused, options), context, after)
    return lowered


def conv_problems(
    graph: ir.Model,
    context: PassContext,
    options: LoweringOptions,
    wanted: Callable[[str], bool] = lambda _: True,
) -> Counter[ConvProblem]:
    """Each convolution that the lowering chooses a plan for, with how often it occurs.

    graph: a model behind its graph passes; it is not changed. wanted: by a node's name.
    """
    refused: dict[str, str] = {}
    while True:
        collector = Collector()
        try:
            lower_only(
                lower_graph(graph, context, refused, None, options),
                replace(options, records=collector),
                wanted,
            )
            return collector.problems
        except Fallbacks as fallbacks:
            new = {node: why for node, why in fallbacks.reasons.items() if node not in refused}
            if not new:
                return collector.problems
            refused.update(new)


def settled(refused: dict[str, str], build: Callable[[], T]) -> T:
    """What `build` returns once `refused` holds every node that it refuses; it is called until then.

    CompileError: it refuses one that is in `refused` already.
    """
    while True:
        try:
            return build()
        except Fallbacks as fallbacks:
            new = {node: why for node, why in fallbacks.reasons.items() if node not in refused}
            if not new:
                raise CompileError(f"neither kernel nor fallback: {fallbacks}") from fallbacks
            refused.update(new)


@contextlib.contextmanager
def recorded(options: LoweringOptions, folder: Path, deterministic: bool) -> Iterator[LoweringOptions]:
    """The options with what was measured; deterministic ones are for a fixed number of threads."""
    if deterministic:
        on_cpu = isinstance(options.target, CpuTarget)
        yield replace(options, threads=DETERMINISTIC_THREADS) if on_cpu else options
        return
    with open_records(folder) as records:
        yield replace(options, records=records)


def deterministic_price(graph: ir.Model, context: PassContext, options: LoweringOptions) -> str:
    """What choosing for DETERMINISTIC_THREADS costs on the module's own number, in words."""
    o, text = options, "equal bits for every number of threads"
    if not isinstance(o.target, CpuTarget):  # its choices don't depend on the threads
        return text
    fixed = free = 0.0
    for problem, count in conv_problems(graph, context, o).items():
        for threads in (DETERMINISTIC_THREADS, o.threads):
            plan = choose_plan(problem, o.cpu, threads, o.algorithm, o.im2col_cap)
            seconds = count * plan_seconds(plan, problem, o.cpu, o.threads, o.im2col_cap)
            fixed, free = (fixed + seconds, free) if threads != o.threads else (fixed, free + seconds)
    if o.threads == DETERMINISTIC_THREADS or not free:
        return text
    return f"{text}; by estimate the convolutions take {fixed / free:.2f} times as long as with a free choice"
