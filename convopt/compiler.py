"""`optimize`: a model in, a compiled module out."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import onnx_ir as ir

from convopt.codegen.cache import KernelCache
from convopt.errors import InputError
from convopt.frontends.onnx_file import load as load_model
from convopt.lowering.program import Fallbacks, build_program
from convopt.passes import GRAPH_PASSES, PassContext, run_passes, without
from convopt.passes.assign_layout import AssignLayout
from convopt.passes.base import After
from convopt.passes.group_kernels import GroupKernels
from convopt.runtime.loaded import LoadedProgram
from convopt.runtime.module import CompiledModule
from convopt.runtime.signature import TensorInfo
from convopt.targets import Target, host_cpu
from convopt.targets.cpu import usable_cores

Progress = Callable[[str, int, int], None]


def optimize(
    source: Any,
    shapes: Mapping[str, Sequence[int]] | None = None,
    target: str = "cpu",
    precision: str = "fp32",
    threads: int | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    skip: Collection[str] = (),
    after: After | None = None,
    progress: Progress | None = None,
) -> CompiledModule:
    model = load_model(source)
    chip = host_cpu()
    threads = threads or usable_cores()
    cache = KernelCache(None if cache_dir is None else Path(cache_dir))

    def compile_shapes(bound: dict[str, tuple[int, ...]]) -> LoadedProgram:
        own = model.clone()
        context = PassContext(target=chip, shapes=bound)
        run_passes(own, without(GRAPH_PASSES, skip), context, after)
        return compile_graph(own, context, chip, threads, cache, progress)

    given = dict(shapes or {})
    programs = []
    static = {}
    for value in model.graph.inputs:
        dims = tuple(d if isinstance(d, int) else None for d in value.shape or ())
        if value.name in given:
            static[value.name] = tuple(given[value.name])
        elif None not in dims:
            static[value.name] = dims
    if len(static) == len(model.graph.inputs):
        programs.append(compile_shapes(static))
    return CompiledModule(
        programs,
        threads=threads,
        precision=precision,
        target=target,
        inputs=[_info(v) for v in model.graph.inputs],
        outputs=[_info(v) for v in model.graph.outputs],
        compile_shapes=compile_shapes,
    )


def _info(v):
    return TensorInfo(v.name or "", v.dtype.numpy().name, tuple(d if isinstance(d, int) else (d.value if d is not None else None) for d in v.shape or ()))


def compile_graph(model, context, chip, threads, cache, progress) -> LoadedProgram:
    refused: dict[str, str] = {}
    while True:
        lowered = model.clone()
        run_passes(lowered, (GroupKernels(tuple(refused.items())), AssignLayout()), context)
        try:
            return build_program(lowered, chip, threads, cache, {}, progress)
        except Fallbacks as fallbacks:
            new = {k: v for k, v in fallbacks.reasons.items() if k not in refused}
            assert new, fallbacks
            refused.update(new)
