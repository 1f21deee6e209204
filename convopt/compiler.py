"""`optimize`: a model in, a compiled module out.

load -> graph passes -> group-kernels, assign-layout -> build_program -> (verify) -> CompiledModule
"""

from __future__ import annotations

import functools
import itertools
import os
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import onnx_ir as ir

from convopt import __version__
from convopt.arguments import (
    Verify,
    check_choices,
    check_count,
    check_kinds,
    extents_of,
    find_target,
    folder_of,
    precision_of,
    usable_target,
)
from convopt.codegen.cache import KernelCache
from convopt.errors import CompileError, DeviceMissing, InputError
from convopt.frontends.onnx_file import load as load_model
from convopt.grouping import (
    conv_problems,
    deterministic_price,
    kernel_passes,
    lower_graph,
    recorded,
    settled,
)
from convopt.ir.groups import expand_groups
from convopt.ir.layout import CHANNELS_LAST, boundary
from convopt.ir.values import dims_of, static_shape
from convopt.lowering.assemble import target_meta
from convopt.lowering.base import LoweringOptions, Progress
from convopt.lowering.program import Observe, build_program
from convopt.passes import GRAPH_PASSES, PassContext, run_passes, without
from convopt.passes.base import After, Pass, PassReport
from convopt.passes.check import CheckEachPass
from convopt.runtime.device import why_no_device
from convopt.runtime.device_program import DeviceProgram
from convopt.runtime.execution import MOST_THREADS
from convopt.runtime.loaded import Loaded
from convopt.runtime.module import CompiledModule
from convopt.runtime.signature import TensorInfo
from convopt.schedules.conv_problem import ConvProblem
from convopt.selection.conv_plan import Algorithm
from convopt.selection.plans import CAP
from convopt.targets import CpuTarget, GpuTarget, host_cpu
from convopt.targets.cpu import usable_cores
from convopt.tuning.session import tune_problems
from convopt.tuning.where import ELSEWHERE, why_not_here
from convopt.verification import Verifier

Array = np.ndarray[Any, Any]


def optimize(
    source: Any,
    shapes: Mapping[str, Sequence[int]] | None = None,
    *,
    target: str = "cpu",
    precision: str = "fp32",
    keep_fp32: Collection[str] = (),
    threads: int | None = None,
    verify: Verify = False,
    check: Literal["each-pass"] | None = None,
    skip: Collection[str] = (),
    algorithm: Algorithm = "auto",
    im2col_cap: int = CAP,
    workspace_cap: int | None = None,
    tune: float | None = None,
    deterministic: bool = False,
    cache_dir: str | os.PathLike[str] | None = None,
    max_programs: int = 8,
    after: After | None = None,
    progress: Progress | None = None,
    observe: Observe | None = None,
) -> CompiledModule:
    """Compiles a model, for this machine's CPU unless another target is named.

    source: a path, the file's bytes, an onnx.ModelProto or an onnx_ir.Model; it is not changed.
    shapes: input name -> extents, for dynamic dims (or to override declared ones). What they leave open is
        bound at the first call; another shape compiles another Program, of which `max_programs` are kept.
    target: "cpu", this machine's; "opencl"; or a chip as `convopt targets` lists them, e.g. "cuda:sm_90",
        which need not be here; "cuda", "rocm", "hip" and "dcu" are the one that is.
    precision: of what is stored inside, "fp32", "fp16" or "bf16"; sums are float32, inputs and outputs keep
        the model's dtypes. "bf16" multiplies in bfloat16, for which a CPU needs AMX or AVX512-BF16. "tf32"
        stores float32 and lets matrix units round what they multiply, on NVIDIA's GPUs from sm_80 on.
        keep_fp32: names of nodes whose products and results stay float32.
    threads: how many run a kernel; by default all usable cores.
    verify: True compares every Program with onnxruntime, unoptimised, on a random input, or on the given
        arrays (by name) where they fit; nodes that differ are kept in float32 first, then fall back. "raise"
        raises instead.
    check: "each-pass" runs a random input through before and after of every pass and names the guilty one.
    skip: names of graph passes to leave out.
    algorithm: of convolutions that have the choice; "auto" takes the cheaper by estimate.
    im2col_cap: bytes that an unfolded matrix may take. workspace_cap: bytes that all intermediates of a
        Program may take (None: no limit).
    tune: seconds to spend on measuring schedules, for each set of shapes. What was measured before into this
        cache_dir is used anyway. deterministic: equal bits for every number of threads, in every run on this
        chip; measurements are not used.
    cache_dir: where compiled kernels and measurements are kept ($CONVOPT_CACHE, else the user's cache
        folder).
    after: called behind each pass with (index, pass, model, report). progress: called with (stage, done,
        total). observe: called with the kernels of each Program for a GPU.

    Raises:
        ModelError: the model is unusable. InputError: an option or a shape is. CompileError: a Program
        beyond workspace_cap. CompilerMissing, DeviceMissing: this machine lacks the compiler, or the device
        that the target or verify="raise" asks for. VerificationError: with verify="raise".
    """
    check_choices(precision, verify, check, skip, algorithm)
    check_kinds(tune, deterministic, after=after, progress=progress, observe=observe)
    without(GRAPH_PASSES, skip)  # unknown names are said now, not at the first call
    options = lowering_options(target, precision, keep_fp32, threads, im2col_cap, algorithm)
    check_count("max_programs", max_programs)
    if workspace_cap is not None:
        check_count("workspace_cap", workspace_cap)
    model = load_model(source)
    cache = KernelCache(folder_of(cache_dir))
    if tune is not None and (deterministic or algorithm != "auto"):
        raise InputError("tune measures all schedules: it goes with neither deterministic nor algorithm")
    if tune is not None and (refusal := why_not_here(options.target)) is not None:
        raise DeviceMissing(f"tune measures on this machine: {refusal}; {ELSEWHERE}")
    compiler = _Compiler(
        model,
        options,
        cache,
        verify,
        check,
        tuple(skip),
        workspace_cap,
        tune,
        deterministic,
        after,
        progress,
        observe,
    )
    given, layouts = extents_of(shapes or {}), boundary(model.graph)
    bound = _bound_shapes(model, given)
    programs = [compiler.compile(bound)] if bound is not None else []
    if bound is None and given:
        compiler.check_shapes(given)
    return CompiledModule(
        programs,
        threads=options.threads,
        precision=precision,
        target=target,
        inputs=[info_of(v, given, layout) for v, layout in zip(model.graph.inputs, layouts[0], strict=True)],
        outputs=[info_of(v, {}, layout) for v, layout in zip(model.graph.outputs, layouts[1], strict=True)],
        compile_shapes=compiler.compile,
        max_programs=max_programs,
    )


def lowering_options(
    target: str,
    precision: str,
    keep_fp32: Collection[str],
    threads: int | None,
    im2col_cap: int,
    algorithm: Algorithm,
) -> LoweringOptions:
    """The options of `optimize` that decide kernels, checked; errors as there."""
    found = usable_target(find_target(target), precision)
    threads = usable_cores() if threads is None else threads
    stored = precision_of(precision, keep_fp32, found)
    check_count("threads", threads, MOST_THREADS)
    check_count("im2col_cap", im2col_cap)
    return LoweringOptions(found, threads, im2col_cap, algorithm, precision=stored)


def _bound_shapes(model: ir.Model, given: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]] | None:
    """Every input's extents, the caller's or the model's; None while a dim is open. Unknown names stay in."""
    bound = dict(given)
    for value in model.graph.inputs:
        if value.name in given:
            continue
        shape = static_shape(value)
        if shape is None:
            return None
        bound[value.name or ""] = shape
    return bound


def info_of(value: ir.Value, given: Mapping[str, tuple[int, ...]], layout: str) -> TensorInfo:
    """An input or output as the module declares it; given: the extents that the caller fixed, by name."""
    assert value.dtype is not None
    dtype = "string" if value.dtype == ir.DataType.STRING else value.dtype.numpy().name
    shape = given.get(value.name or "")
    if shape is None:
        if value.shape is None:
            return TensorInfo(value.name or "", dtype, None)
        dims = tuple(d if isinstance(d, int) else d.value for d in value.shape)
        return TensorInfo(value.name or "", dtype, dims, layout == CHANNELS_LAST)
    declared = dims_of(value) or shape
    # What the caller fixed of a dynamic dim may still differ from call to call; an overridden one may not.
    names = [d if isinstance(d, int) else d.value for d in value.shape or shape]
    free = all(d is None or d == e for d, e in zip(declared, shape, strict=False))
    return TensorInfo(value.name or "", dtype, tuple(names) if free else shape, layout == CHANNELS_LAST)


@dataclass
class _Compiler:
    """Makes Programs of one model for the input shapes that come."""

    model: ir.Model
    options: LoweringOptions
    cache: KernelCache
    verify: Verify
    check: str | None
    skip: tuple[str, ...]
    workspace_cap: int | None
    tune: float | None
    deterministic: bool
    after: After | None
    progress: Progress | None
    observe: Observe | None

    def compile(self, shapes: Mapping[str, Sequence[int]]) -> Loaded:
        start = time.perf_counter()
        graph, context = self.model.clone(), self._context(shapes)
        after = self._observer(graph, context)
        passes: tuple[Pass, ...] = without(GRAPH_PASSES, self.skip)
        run_passes(graph, passes, context, after)
        if self.tune is not None:
            problems = conv_problems(graph, context, self.options)
            tune_problems(problems, self.tune, self.options, self.cache, self.progress)
        refused: dict[str, str] = {}
        with recorded(self.options, self.cache.root, self.deterministic) as options:
            loaded = self._program(graph, context, options, refused, after)
            if self.verify is not False:  # no arrays by name are a random input
                loaded = self._verified(graph, context, options, loaded, refused, after)
        if self.deterministic:
            loaded.program.meta["deterministic"] = deterministic_price(graph, context, self.options)
        loaded.program.meta["compile_seconds"] = time.perf_counter() - start
        if self.workspace_cap is not None and loaded.program.arena_bytes > self.workspace_cap:
            raise CompileError(
                f"the intermediates of input shapes {dict(shapes)} take {loaded.program.arena_bytes} bytes;"
                f" workspace_cap is {self.workspace_cap}: raise it, or run a smaller batch"
            )
        return loaded

    def check_shapes(self, given: Mapping[str, tuple[int, ...]]) -> None:
        """Raises InputError for shapes that name no input or don't fit one."""
        run_passes(
            self.model.clone(),
            [p for p in GRAPH_PASSES if p.name == "bind-shapes"],
            PassContext(shapes=given),
        )

    def _observer(self, graph: ir.Model, context: PassContext) -> After:
        """Called behind each pass: the check (groups are read as their bodies), the caller, progress."""
        checker = CheckEachPass(graph, context) if self.check else None
        count = len(without(GRAPH_PASSES, self.skip)) + len(kernel_passes({}, self.options))
        done = itertools.count(1)

        def after(index: int, one: Pass, model: ir.Model, report: PassReport) -> None:
            if checker is not None:
                standard = model.clone()
                expand_groups(standard.graph)
                checker(index, one, standard, report)
            if self.after is not None:
                self.after(index, one, model, report)
            if self.progress is not None:
                self.progress("passes", min(next(done), count), count)

        return after

    def _context(self, shapes: Mapping[str, Sequence[int]]) -> PassContext:
        return PassContext(target=self.options.target, shapes=shapes)

    def _program(
        self,
        graph: ir.Model,
        context: PassContext,
        options: LoweringOptions,
        refused: dict[str, str],
        after: After | None,
    ) -> Loaded:
        """The Program of a graph; `refused` grows by what turns out not to be compilable."""
        meta = {
            "convopt": __version__,
            "target": self.options.target.name,
            "threads": self.options.threads,
            "precision": options.precision.name,
            "keep_fp32": sorted(options.precision.keep_fp32),
            **target_meta(self.options.target),
        }

        def build() -> Loaded:
            lowered = lower_graph(graph, context, refused, after, options)
            return build_program(lowered, options, self.cache, meta, self.progress, self.observe)

        return settled(refused, build)

    def _verified(
        self,
        graph: ir.Model,
        context: PassContext,
        options: LoweringOptions,
        loaded: Loaded,
        refused: dict[str, str],
        after: After,
    ) -> Loaded:
        if isinstance(loaded, DeviceProgram) and (refusal := why_no_device(loaded.kind)) is not None:
            if self.verify == "raise":
                raise DeviceMissing(f"can't verify: {refusal}")
            loaded.program.meta["verified"] = f"not verified: {refusal}"
            return loaded
        given = self.verify if isinstance(self.verify, Mapping) else {}
        report = self.progress or (lambda stage, done, total: None)
        report("verify", 0, 2)
        verifier = Verifier(self.model, graph, context, given, options.precision.tolerance)
        report("verify", 1, 2)
        while (difference := verifier.difference(loaded)) is not None:
            if self.verify == "raise":
                raise difference
            lowered = lower_graph(graph, context, refused, None, options)
            build = functools.partial(build_program, options=options, cache=self.cache, meta={})
            probed = verifier.probe(lowered, build)
            if lossy := probed.lossy(options.precision):
                options = replace(options, precision=options.precision.keeping(lossy))
                loaded = self._program(graph, context, options, refused, None)
                continue
            guilty = probed.guilty()
            if not guilty:
                # Every group is right by itself: rounding that the model amplifies.
                loaded.program.meta["verified"] = f"{difference}, and no node by itself: rounding adds up"
                return loaded
            refused.update(guilty)
            loaded = self._program(graph, context, options, refused, after)
        loaded.program.meta["verified"] = verifier.report
        report("verify", 2, 2)
        return loaded


def model_problems(
    source: Any,
    shapes: Mapping[str, Sequence[int]] | None,
    threads: int,
    skip: Collection[str] = (),
    im2col_cap: int = CAP,
    target: CpuTarget | GpuTarget | None = None,
    precision: str = "fp32",
    wanted: Callable[[str], bool] = lambda _: True,
) -> tuple[Counter[ConvProblem], LoweringOptions]:
    """The convolutions that `optimize` would compile of a model, and with which options; compiles nothing.

    target: by default this machine's CPU. wanted: by a node's name.

    Raises:
        ModelError: the model is unusable. InputError: a shape or the precision is, or dims are left open.
    """
    check_choices(precision, False, None, skip, "auto")
    model = load_model(source)
    bound = _bound_shapes(model, extents_of(shapes or {}))
    if bound is None:
        dynamic = [f"{v.name} {v.shape}" for v in model.graph.inputs if static_shape(v) is None]
        raise InputError(f"dynamic dims: give the shape of every input: {', '.join(dynamic)}")
    found = usable_target(target or host_cpu(), precision)
    options = LoweringOptions(found, threads, im2col_cap, precision=precision_of(precision, (), found))
    context = PassContext(target=options.target, shapes=bound)
    run_passes(model, without(GRAPH_PASSES, tuple(skip)), context, None)
    return conv_problems(model, context, options, wanted), options
