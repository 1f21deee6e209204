"""A grouped model with layouts, as a Program: every group lowered, every value at an address.

plan aliases -> add halos -> lower each group -> compile the kernels -> lifetimes and arena -> steps
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from convopt.codegen.cache import KernelCache, symbol_of
from convopt.codegen.link import link
from convopt.codegen.workers import KernelSource, compile_kernels
from convopt.ir.groups import REFUSED, body_of, make_group
from convopt.ir.layout import layout_of, set_layout
from convopt.ir.values import Array, constant, static_shape, unique_name
from convopt.lowering import arena
from convopt.lowering.base import Constant, KernelCall, LoweringContext, LoweringOptions, Refused, Temporary
from convopt.lowering.conv import halo_of
from convopt.lowering.families import copy_call, halo_calls, lower_group
from convopt.lowering.storage import Halo, Place, StoragePlan, allocate, may_have_halo, plan_aliases
from convopt.runtime.loaded import LoadedProgram
from convopt.runtime.program import (
    Address,
    IslandStep,
    KernelStep,
    Placement,
    Program,
    Space,
    Step,
    TensorSpec,
)
from convopt.schedules.base import TensorView, row_major

Progress = Callable[[str, int, int], None]
Places = dict[ir.Value, Place]


class Fallbacks(Exception):
    """Groups that can't be kernels after all: (node, reason). Grouping starts again without them."""

    def __init__(self, reasons: dict[str, str]) -> None:
        super().__init__("; ".join(f"{node}: {reason}" for node, reason in reasons.items()))
        self.reasons = reasons


@dataclass
class _Work:
    """What one group became: kernel calls, an island, or nothing (a view)."""

    group: ir.Node
    calls: list[KernelCall] = field(default_factory=list)
    island: bool = False


def build_program(
    model: ir.Model,
    options: LoweringOptions,
    cache: KernelCache,
    meta: dict[str, object],
    progress: Progress | None = None,
) -> LoadedProgram:
    """Compiles the groups of `model` (after assign-layout) and links them into a Program.

    Raises:
        Fallbacks: kernels that were refused or could not be compiled.
    """
    builder = _Builder(model.graph, options)
    works = builder.lower()
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
                for name in _node_names(work.group)
            }
        )
    assembled = _Assembler(builder, works, {i: s.key for i, s in sources.items()})
    program = assembled.program(meta)
    return LoadedProgram(
        program, link(compiled.objects, cache), assembled.weights(), tuple(assembled.islands)
    )


def _node_names(group: ir.Node) -> list[str]:
    return [node.name or "" for node in body_of(group)]


class _Builder:
    """Decides where values live and which kernels compute them."""

    def __init__(self, graph: ir.Graph, options: LoweringOptions) -> None:
        self.graph, self.options, self.target = graph, options, options.target
        self._own_outputs()
        self.fixed = {*graph.inputs, *graph.outputs}
        self.plan: StoragePlan = plan_aliases(graph, self.fixed)
        self.halos: dict[ir.Value, Halo] = {}
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
            if group.op_type != "Conv":
                continue
            halo, value = halo_of(group), group.inputs[0]
            if value is None or not any(map(any, halo)):
                continue
            if not may_have_halo(self.plan, value, self.fixed):
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
        """Makes every output memory of its own: not an input, a constant, a view or the same value twice."""
        seen: set[ir.Value] = set()
        for index, value in enumerate(self.graph.outputs):
            producer = value.producer()
            if producer is None or value in seen or producer.op_type in ("View", "Move"):
                copy = self._copy(value, None)
                if producer is not None and value not in seen:  # the output keeps its name
                    value.name, copy.name = unique_name(self.graph, f"{value.name}_inner"), value.name
                self.graph.outputs[index] = copy
            seen.add(value)

    def _copy(self, value: ir.Value, before: ir.Node | None) -> ir.Value:
        name = unique_name(self.graph, f"{value.name}_copy")
        copy = ir.Value(name=name, type=value.type, shape=value.shape)
        node = ir.node("Identity", [value], outputs=[copy], name=name)
        if before is None:
            self.graph.append(node)
        else:
            self.graph.insert_before(before, node)
        group = make_group(self.graph, "Relayout", [node], keep=[copy])
        set_layout(group.outputs[0], layout_of(value))
        return group.outputs[0]

    def lower(self) -> list[_Work]:
        works, refused = [], {}
        context = self._context()
        for group in self.graph:
            work = _Work(group)
            works.append(work)
            if group.op_type == "Island":
                work.island = True
                work.calls = self._contiguous_inputs(group)
                continue
            pending = [v for v in group.outputs if not self.plan.is_alias(v) or self._computed(group, v)]
            try:
                for root in {self.plan.root(v) for v in pending}:
                    if self.plan.storages[root].has_halo and self._first_writer(root) is group:
                        work.calls += halo_calls(
                            self.plan.storages[root], self.plan.places[root], self.target
                        )
                if pending:
                    work.calls += self._calls(group, context)
            except Refused as reason:
                refused.update({name: str(reason) for name in _node_names(group)})
        if refused:
            raise Fallbacks(refused)
        return works

    def _context(self) -> LoweringContext:
        o = self.options
        return LoweringContext(_Views(self.plan), o.target, o.threads, o.im2col_cap, o.algorithm)

    def _computed(self, group: ir.Node, value: ir.Value) -> bool:
        """Whether an aliased output still has to be written: it lives in a Concat's output."""
        return self.plan.aliases[value].parent not in group.inputs

    def _first_writer(self, root: ir.Value) -> ir.Node | None:
        """The first group that writes into the root's memory."""
        if not hasattr(self, "_writers"):
            self._writers: dict[ir.Value, ir.Node] = {}
            for group in self.graph:
                for value in group.outputs:
                    if static_shape(value) is not None:
                        self._writers.setdefault(self.plan.root(value), group)
        return self._writers.get(root)

    def _calls(self, group: ir.Node, context: LoweringContext) -> list[KernelCall]:
        if group.op_type in ("View", "Relayout"):
            source = group.inputs[0]
            assert source is not None
            return [copy_call(source, group.outputs[0], context)]
        calls = lower_group(group, context)
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
            self.plan.storages[dense] = type(self.plan.storages[self.plan.root(value)])(
                dense, ((0, 0),) * len(wanted.shape), wanted.size
            )
            self.plan.places[dense] = Place(wanted, 0)
            calls.append(copy_call(value, dense, self._context()))
            group.replace_input_with(index, dense)
        return calls


class _Views(dict[ir.Value, TensorView]):
    """The view of any value: planned ones from the plan, constants row-major."""

    def __init__(self, plan: StoragePlan) -> None:
        super().__init__()
        self.plan = plan

    def __missing__(self, value: ir.Value) -> TensorView:
        array = constant(value)
        view = self.plan.place(value).view if array is None else row_major(array.shape, array.dtype.name)
        self[value] = view
        return view


def _same_memory(a: TensorView, b: TensorView) -> bool:
    return all(x == y for x, y, e in zip(a.strides, b.strides, a.shape, strict=True) if e != 1)


class _Assembler:
    """Puts the lowered groups in a row: lifetimes, addresses, weights, steps."""

    def __init__(self, builder: _Builder, works: list[_Work], keys: dict[int, str]) -> None:
        self.builder, self.works, self.keys = builder, works, keys
        self.plan, self.graph = builder.plan, builder.graph
        self.islands: list[bytes] = []
        self._blob: list[bytes] = []
        self._blob_size = 0
        self._known: dict[bytes, int] = {}
        self._memory: dict[object, arena.Buffer] = {}
        self._spaces: dict[ir.Value, tuple[Space, int]] = {}

    def program(self, meta: dict[str, object]) -> Program:
        graph = self.graph
        self._spaces.update({v: ("input", i) for i, v in enumerate(graph.inputs)})
        self._spaces.update({v: ("output", i) for i, v in enumerate(graph.outputs)})
        self._lifetimes()
        size = arena.plan(list(self._memory.values()))
        steps: list[Step] = []
        for work in self.works:
            steps.extend(self._steps(work))
        return Program(
            tuple(map(_spec, graph.inputs)),
            tuple(map(_spec, graph.outputs)),
            size,
            arena.live_bytes(list(self._memory.values())),
            tuple(steps),
            tuple(p for work in self.works for p in self._placements(work)),
            dict(meta),
        )

    def weights(self) -> bytes:
        return b"".join(self._blob)

    def _lifetimes(self) -> None:
        """When each piece of arena memory is in use, in steps of the list of groups."""
        for step, work in enumerate(self.works):
            touched: list[ir.Value] = [*work.group.outputs, *(v for v in work.group.inputs if v is not None)]
            for call in work.calls:
                for operand in call.operands:
                    if isinstance(operand, Temporary):
                        self._use(operand, operand.nbytes, step)
                    elif isinstance(operand, ir.Value):
                        touched.append(operand)
            for value in touched:
                self._touch(value, step)

    def _touch(self, value: ir.Value, step: int) -> None:
        if constant(value) is not None or static_shape(value) is None:
            return
        root = self.plan.root(value)
        if root not in self._spaces:
            self._use(root, self.plan.storages[root].size * _itemsize(root), step)

    def _use(self, key: object, nbytes: int, step: int) -> None:
        buffer = self._memory.setdefault(key, arena.Buffer(nbytes, step, step))
        buffer.last = step

    def _address(self, operand: object, offset: int = 0) -> Address:
        if isinstance(operand, Constant):
            return Address("weights", 0, self._constant(operand.array) + offset * operand.array.itemsize)
        if isinstance(operand, Temporary):
            return Address("arena", 0, self._memory[operand].offset + offset * 4)
        assert isinstance(operand, ir.Value)
        array = constant(operand)
        if array is not None:
            return Address("weights", 0, self._constant(array) + offset * array.itemsize)
        if static_shape(operand) is None:
            return Address("output", list(self.graph.outputs).index(operand), 0)
        root = self.plan.root(operand)
        within = (self.plan.place(operand).offset + offset) * _itemsize(operand)
        if root in self._spaces:
            space, index = self._spaces[root]
            return Address(space, index, within)
        return Address("arena", 0, self._memory[root].offset + within)

    def _constant(self, array: Array) -> int:
        """The offset of the array's bytes among the weights; equal arrays are stored once."""
        data = np.ascontiguousarray(array).tobytes()
        digest = hashlib.sha256(data).digest()
        if digest not in self._known:
            self._known[digest] = self._blob_size
            padded = data + b"\0" * (-len(data) % arena.ALIGNMENT)
            self._blob.append(padded)
            self._blob_size += len(padded)
        return self._known[digest]

    def _steps(self, work: _Work) -> Iterable[Step]:
        for call in work.calls:
            yield self._kernel_step(call, _node_names(work.group))
        if work.island:
            yield self._island_step(work.group)

    def _kernel_step(self, call: KernelCall, nodes: list[str]) -> KernelStep:
        target = self.builder.target
        offsets = call.offsets or (0,) * len(call.operands)
        return KernelStep(
            symbol_of(self.keys[id(call)]) if id(call) in self.keys else "",
            tuple(self._address(o, at) for o, at in zip(call.operands, offsets, strict=True)),
            call.schedule.tasks(call.problem, target),
            call.schedule.scratch_bytes(call.problem, target),
            tuple(nodes),
            call.label or call.schedule.name,
        )

    def _island_step(self, group: ir.Node) -> IslandStep:
        self.islands.append(_island_model(group, self.graph))
        body = body_of(group)

        def bound(inner: ir.Value, outer: ir.Value) -> tuple[TensorSpec, Address]:
            spec = _spec(outer)
            return TensorSpec(inner.name or "", spec.dtype, spec.shape), self._address(outer)

        pairs = zip(body.inputs, group.inputs, strict=True)
        return IslandStep(
            len(self.islands) - 1,
            tuple(bound(i, o) for i, o in pairs if o is not None),
            tuple(bound(i, o) for i, o in zip(body.outputs, group.outputs, strict=True)),
            tuple(_node_names(group)),
            f"onnxruntime: {', '.join(sorted({n.op_type for n in body}))}",
        )

    def _placements(self, work: _Work) -> Iterable[Placement]:
        label = "; ".join(c.label for c in work.calls if c.label)
        for node in body_of(work.group):
            if work.island:
                reason = node.metadata_props.get(REFUSED, "")
                yield Placement(node.name or "", node.op_type, "fallback", reason)
            elif work.group.op_type != "Relayout":
                yield Placement(node.name or "", node.op_type, "compiled" if work.calls else "view", label)


def _spec(value: ir.Value) -> TensorSpec:
    assert value.dtype is not None
    shape = static_shape(value)
    if shape is None:
        shape = tuple(d if isinstance(d, int) else -1 for d in value.shape or ())
    name = "string" if value.dtype == ir.DataType.STRING else value.dtype.numpy().name
    return TensorSpec(value.name or "", name, shape)


def _itemsize(value: ir.Value) -> int:
    assert value.dtype is not None
    return int(value.dtype.itemsize) if value.dtype != ir.DataType.STRING else 8


def _island_model(group: ir.Node, graph: ir.Graph) -> bytes:
    body = body_of(group).clone()
    opsets = {d: v for d, v in graph.opset_imports.items() if d != "convopt"}
    body.opset_imports.clear()
    body.opset_imports.update(opsets)
    model = ir.Model(body, ir_version=10)
    return bytes(ir.to_proto(model).SerializeToString())
