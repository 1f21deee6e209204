"""A grouped model with layouts, as a Program: every group lowered, every value at an address.

plan aliases -> add halos -> lower each group -> compile the kernels -> lifetimes and arena -> steps
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import gcd, prod

import numpy as np
import onnx_ir as ir

from convopt.codegen.cache import KernelCache
from convopt.codegen.device import DeviceCode
from convopt.codegen.workers import KernelSource, compile_kernels
from convopt.errors import CompileError
from convopt.ir.groups import REFUSED, make_group
from convopt.ir.layout import layout_of, set_layout
from convopt.ir.values import constant, static_shape, unique_name
from convopt.lowering.assemble import (
    Assembler,
    LoweredGroup,
    device_codes,
    image_of,
    loaded_program,
    node_names,
    placements,
)
from convopt.lowering.base import KernelCall, LoweringContext, LoweringOptions, Progress, Refused
from convopt.lowering.conv import halo_of, needs_no_border
from convopt.lowering.families import copy_call, halo_call, lower_group
from convopt.lowering.storage import (
    Halo,
    Place,
    Storage,
    StoragePlan,
    allocate,
    may_have_halo,
    plan_aliases,
)
from convopt.runtime.loaded import Loaded
from convopt.runtime.program import IslandStep, Placement
from convopt.schedules.base import TensorView, row_major
from convopt.schedules.conv_amx import AmxConv
from convopt.targets import CpuTarget, GpuTarget


class Fallbacks(Exception):
    """Groups that can't be kernels after all: (node, reason). Grouping starts again without them."""

    def __init__(self, reasons: dict[str, str]) -> None:
        super().__init__("; ".join(f"{node}: {reason}" for node, reason in reasons.items()))
        self.reasons = reasons


@dataclass(frozen=True)
class DeviceCall:
    """A kernel call of a Program for a device, with the code that was made for it."""

    call: KernelCall
    code: DeviceCode


Observe = Callable[[Sequence[DeviceCall]], None]


def build_program(
    model: ir.Model,
    options: LoweringOptions,
    cache: KernelCache,
    meta: dict[str, object],
    progress: Progress | None = None,
    observe: Observe | None = None,
) -> Loaded:
    """Compiles the groups of `model` (after assign-layout) and links them into a Program.

    observe: gets the kernel calls of a Program for a device.

    Raises:
        Fallbacks: kernels that were refused or could not be compiled.
    """
    builder = _Builder(model.graph, options)
    works = builder.lower()
    calls = [call for work in works for call in work.calls]
    keys, objects = _compiled(works, options, cache, progress)
    codes = device_codes(objects, options.target)
    assembled = Assembler(builder.graph, builder.plan, works, keys, options.target, codes)
    uses_tiles = any(isinstance(c.schedule, AmxConv) for c in calls)
    if uses_tiles and isinstance(options.target, CpuTarget) and not options.target.emulated:
        meta = {**meta, "matrix_tiles": True}
    program = assembled.program(meta, builder.output_names)
    weights, islands = assembled.weights(), tuple(assembled.islands)
    if observe is not None and isinstance(options.target, GpuTarget):
        observe([DeviceCall(call, codes[keys[id(call)]]) for call in calls])
    image = image_of(objects, codes, cache, options.target)
    loaded = loaded_program(program, image, weights, islands, options.target)
    _check_islands(loaded, options.threads)
    return loaded


def _compiled(
    works: Sequence[LoweredGroup], options: LoweringOptions, cache: KernelCache, progress: Progress | None
) -> tuple[dict[int, str], dict[str, bytes]]:
    """(the kernel's key by the call's id, what it was compiled to by its key). Fallbacks: what wasn't."""
    calls = [call for work in works for call in work.calls]
    sources = {id(c): KernelSource(c.schedule, c.problem, options.target) for c in calls}
    report = None if progress is None else (lambda done, total: progress("compile kernels", done, total))
    compiled = compile_kernels(sources.values(), cache, report)
    if compiled.failures:
        raise Fallbacks(
            {
                name: compiled.failures[sources[id(call)].key]
                for work in works
                for call in work.calls
                if sources[id(call)].key in compiled.failures
                for name in node_names(work.group)
            }
        )
    return {i: s.key for i, s in sources.items()}, compiled.objects


def place_nodes(
    model: ir.Model,
    options: LoweringOptions,
    cache: KernelCache,
    wanted: Callable[[str], bool],
    progress: Progress | None = None,
) -> tuple[Placement, ...]:
    """Where `build_program` would have each node run; only groups with a node that is `wanted` are compiled.

    Raises:
        Fallbacks: kernels that were refused, or, of wanted nodes, could not be compiled.
    """
    works = _Builder(model.graph, options).lower()
    _compiled([w for w in works if any(map(wanted, node_names(w.group)))], options, cache, progress)
    return tuple(place for work in works for place in placements(work))


def lower_only(
    model: ir.Model, options: LoweringOptions, wanted: Callable[[str], bool] = lambda _: True
) -> None:
    """Everything before the kernels are compiled: asks `options.records` about each convolution.

    wanted: by a node's name; groups without such a node are left out.

    Raises:
        Fallbacks: groups that were refused.
    """
    _Builder(model.graph, options).lower(wanted)


def _check_islands(loaded: Loaded, threads: int) -> None:
    """Makes the islands' sessions now: what onnxruntime refuses is said here, not at the first call."""
    for step in loaded.program.steps:
        if not isinstance(step, IslandStep):
            continue
        try:
            loaded.islands.get(step.model, threads)
        except Exception as error:  # onnxruntime raises a type of its own for each refusal
            reasons = "; ".join(
                f"{p.op} {p.node!r}: {p.detail}" for p in loaded.program.placement if p.node in step.nodes
            )
            raise CompileError(
                f"nodes that have neither a kernel ({reasons}) nor run in onnxruntime: {error};"
                " expected operators and types that one of the two has (float32 instead of float64)"
            ) from error


class _Builder:
    """Decides where values live and which kernels compute them."""

    def __init__(self, graph: ir.Graph, options: LoweringOptions) -> None:
        self.graph, self.options, self.target = graph, options, options.target
        self.output_names = [value.name or "" for value in graph.outputs]
        self._own_outputs()
        self.fixed = {*graph.inputs, *graph.outputs}
        self.plan: StoragePlan = plan_aliases(graph, self.fixed)
        if reshaped := [v for v in graph.outputs if self._is_reshaped(v)]:
            self._replace_outputs(reshaped)
            self.fixed = {*graph.inputs, *graph.outputs}
            self.plan = plan_aliases(graph, self.fixed)
        self.halos: dict[ir.Value, Halo] = {}
        self.borderless: set[ir.Node] = set()
        if isinstance(self.target, CpuTarget):  # a GPU's kernels check where the input ends
            self._add_halos()
        allocate(self.plan, self._values(), self.halos)

    def _values(self) -> Iterable[ir.Value]:
        yield from self.graph.inputs
        for group in self.graph:
            yield from (v for v in group.outputs if static_shape(v) is not None)

    def _add_halos(self) -> None:
        """Gives every padded convolution's input a border of zeros, by a copy where it can't have one."""
        copies: dict[ir.Value, ir.Value] = {}
        for group in list(self.graph):
            if group.op_type not in ("Conv", "FusedConv"):
                continue
            halo, value = halo_of(group), group.inputs[0]
            if value is None or not any(map(any, halo)):
                continue
            if not may_have_halo(self.plan, value, self.fixed):
                if needs_no_border(group, self.options):
                    self.borderless.add(group)
                    continue
                if value not in copies:
                    copies[value] = self._copy(value, group)
                value = copies[value]
                group.replace_input_with(0, value)
            root = self.plan.root(value)
            known = self.halos.get(root, ((0, 0),) * len(halo))
            self.halos[root] = tuple(
                (max(a, c), max(b, d)) for (a, b), (c, d) in zip(known, halo, strict=True)
            )
        if copies:
            self.graph.sort()

    def _own_outputs(self) -> None:
        """Makes every output memory of its own: not an input, a constant, a part or the same value twice."""
        seen: dict[ir.Value, None] = {}  # in order
        for index, value in enumerate(self.graph.outputs):
            producer = value.producer()
            if producer is None or value in seen:
                self.graph.outputs[index] = self._copy(value, None)
            seen[value] = None
        parts = [v for v in seen if (p := v.producer()) and p.op_type == "Move" and len(p.outputs) > 1]
        self._replace_outputs(parts)

    def _is_reshaped(self, value: ir.Value) -> bool:
        """Whether it is a view of something that can't be computed in the output's memory."""
        producer = value.producer()
        return producer is not None and producer.op_type == "View" and value not in self.plan.views

    def _replace_outputs(self, values: Iterable[ir.Value]) -> None:
        """Copies of the values become the outputs, and take their names."""
        for value in values:
            index = list(self.graph.outputs).index(value)
            copy = self._copy(value, None)
            value.name, copy.name = unique_name(self.graph, f"{value.name}_inner"), value.name
            self.graph.outputs[index] = copy

    def _copy(self, value: ir.Value, before: ir.Node | None) -> ir.Value:
        name = unique_name(self.graph, f"{value.name}_copy")
        copy = ir.Value(name=name, type=value.type, shape=value.shape)
        node = ir.node("Identity", [value], outputs=[copy], name=name)
        if before is None:
            self.graph.append(node)
        else:
            self.graph.insert_before(before, node)
        kind = "Relayout"
        if value.dtype == ir.DataType.STRING:  # python's, in no memory that a kernel could copy
            kind, node.metadata_props[REFUSED] = "Island", "strings are not copied by kernels"
        group = make_group(self.graph, kind, [node], keep=[copy])
        set_layout(group.outputs[0], layout_of(value))
        return group.outputs[0]

    def lower(self, wanted: Callable[[str], bool] = lambda _: True) -> list[LoweredGroup]:
        works, refused = [], {}
        context = self._context()
        for group in self.graph:
            if not any(map(wanted, node_names(group))):
                continue
            work = LoweredGroup(group)
            works.append(work)
            if group.op_type == "Empty":
                continue
            if group.op_type == "Island":
                work.island = True
                work.calls = self._contiguous_inputs(group)
                continue
            pending = [v for v in group.outputs if self._is_computed(group, v)]
            try:
                for root in {self.plan.root(v) for v in pending}:
                    if self.plan.storages[root].has_halo and self._first_writer[root] is group:
                        place = self.plan.places[root]
                        work.calls.append(halo_call(self.plan.storages[root], place))
                if pending:
                    work.calls += self._calls(group, context)
            except Refused as reason:
                refused.update({name: str(reason) for name in node_names(group)})
        if refused:
            raise Fallbacks(refused)
        return works

    def _context(self) -> LoweringContext:
        views = _Views(self.plan, isinstance(self.target, GpuTarget))
        return LoweringContext(views, self.options, self.borderless)

    def _is_computed(self, group: ir.Node, value: ir.Value) -> bool:
        """Whether the group has to write this output: it is no view of the group's input, nor that of it."""
        alias = self.plan.aliases.get(value)
        return value not in self.plan.views and (alias is None or alias.parent not in group.inputs)

    @cached_property
    def _first_writer(self) -> dict[ir.Value, ir.Node]:
        """Root -> the first group that writes into its memory."""
        writers: dict[ir.Value, ir.Node] = {}
        for group in self.graph:
            for value in group.outputs:
                if static_shape(value) is not None:
                    writers.setdefault(self.plan.root(value), group)
        return writers

    def _calls(self, group: ir.Node, context: LoweringContext) -> list[KernelCall]:
        if group.op_type in ("View", "Relayout"):
            source = group.inputs[0]
            assert source is not None
            return [copy_call(source, group.outputs[0], context)]
        for value in (v for v in (*group.inputs, *group.outputs) if v is not None and constant(v) is None):
            _check_reach(prod(static_shape(value) or ()))  # before anything is chosen for it
        calls = lower_group(group, context)
        for view in (v for call in calls for v in call.problem.operands):
            _check_reach(view.reach)
        # What a Concat's inputs wrote straight into its output needs no copy.
        for value in {v for v in group.inputs if v is not None and v in self.plan.aliases}:
            if self.plan.aliases[value].parent is group.outputs[0]:
                calls.remove(next(c for c in calls if c.operands[0] is value))
        return calls

    def _contiguous_inputs(self, group: ir.Node) -> list[KernelCall]:
        """Copies of the island's inputs that are not gapless where they live."""
        calls = []
        for index, value in enumerate(group.inputs):
            if value is None or constant(value) is not None or static_shape(value) is None:
                continue
            place = self.plan.place(value)
            wanted = row_major(place.view.shape, place.view.dtype)
            if _same_memory(place.view, wanted):
                continue
            dense = ir.Value(name=f"{value.name}_dense", type=value.type, shape=value.shape)
            self.plan.storages[dense] = Storage(dense, ((0, 0),) * len(wanted.shape), wanted.size)
            self.plan.places[dense] = Place(wanted, 0)
            calls.append(copy_call(value, dense, self._context()))
            group.replace_input_with(index, dense)
        return calls


def _check_reach(reach: int) -> None:
    if reach >= 2**31:
        raise Refused(f"{reach} elements from one end of a tensor to the other, at most 2^31 - 1")


class _Views(dict[ir.Value, TensorView]):
    """The view of any value: planned ones from the plan, constants row-major.

    aligned: views say what their element 0 is aligned to, as roots lie at multiples of 64 bytes.
    """

    def __init__(self, plan: StoragePlan, aligned: bool) -> None:
        super().__init__()
        self.plan, self.aligned = plan, aligned

    def __missing__(self, value: ir.Value) -> TensorView:
        array = constant(value)
        if array is not None:
            view = row_major(array.shape, array.dtype.name)
        else:
            place = self.plan.place(value)
            view = place.view
            if self.aligned:
                nbytes = place.offset * np.dtype(view.dtype).itemsize
                view = replace(view, alignment=gcd(nbytes, view.alignment))
        self[value] = view
        return view


def _same_memory(a: TensorView, b: TensorView) -> bool:
    return all(x == y for x, y, e in zip(a.strides, b.strides, a.shape, strict=True) if e != 1)
