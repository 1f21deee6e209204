"""Lowered groups as a Program: lifetimes, addresses, weights, steps."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import onnx_ir as ir

from convopt.codegen.cache import KernelCache, symbol_of
from convopt.codegen.device import DeviceCode
from convopt.codegen.link import link
from convopt.ir.groups import REFUSED, body_of
from convopt.ir.layout import CHANNELS_LAST, has_choice, layout_of
from convopt.ir.protos import whole_proto
from convopt.ir.values import Array, constant, static_shape
from convopt.lowering import arena
from convopt.lowering.base import Constant, KernelCall, Temporary
from convopt.lowering.storage import StoragePlan
from convopt.runtime.device_program import DeviceProgram, pack_binaries
from convopt.runtime.loaded import Loaded, LoadedProgram
from convopt.runtime.memory import Blob, Bytes, bytes_of
from convopt.runtime.program import (
    Address,
    IslandStep,
    KernelStep,
    Launch,
    Placement,
    Program,
    Space,
    Step,
    TensorSpec,
)
from convopt.targets import CpuTarget, GpuTarget

LAUNCH_SECONDS = 2e-6  # a launch on several threads and the wait for all of them


@dataclass
class LoweredGroup:
    """What one group became: kernel calls, an island, or nothing (a view)."""

    group: ir.Node
    calls: list[KernelCall] = field(default_factory=list)
    island: bool = False


def node_names(group: ir.Node) -> list[str]:
    return [node.name or "" for node in body_of(group)]


def placements(work: LoweredGroup) -> Iterable[Placement]:
    """Where each of the group's nodes runs."""
    label = "; ".join(c.label for c in work.calls if c.label)
    for node in body_of(work.group):
        if work.island:
            reason = node.metadata_props.get(REFUSED, "")
            yield Placement(node.name or "", node.op_type, "fallback", reason)
        elif work.group.op_type != "Relayout":
            yield Placement(node.name or "", node.op_type, "compiled" if work.calls else "view", label)


class Assembler:
    """Puts the lowered groups in a row: lifetimes, addresses, weights, steps.

    keys: of the compiled kernel of each call, by the call's id. codes: of the compiled kernels of a device.
    """

    def __init__(
        self,
        graph: ir.Graph,
        plan: StoragePlan,
        works: list[LoweredGroup],
        keys: dict[int, str],
        target: CpuTarget | GpuTarget,
        codes: Mapping[str, DeviceCode] | None = None,
    ) -> None:
        self.graph, self.plan, self.works, self.keys, self.target = graph, plan, works, keys, target
        self.codes = codes or {}
        self.islands: list[bytes] = []
        self._blob = Blob()
        self._known: dict[bytes, int] = {}
        self._memory: dict[object, arena.Buffer] = {}
        self._spaces: dict[ir.Value, tuple[Space, int]] = {}

    def program(self, meta: dict[str, object], output_names: Sequence[str]) -> Program:
        """output_names: of the model; what stands for an input that is an output has another in the graph."""
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
            tuple(replace(_spec(v), name=n) for v, n in zip(graph.outputs, output_names, strict=True)),
            size,
            arena.live_bytes(list(self._memory.values())),
            tuple(steps),
            tuple(p for work in self.works for p in placements(work)),
            dict(meta),
        )

    def weights(self) -> Bytes:
        return self._blob.joined()

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
        digest = hashlib.sha256(bytes_of(array).data).digest()
        if digest not in self._known:
            self._known[digest] = self._blob.add(array)
        return self._known[digest]

    def _steps(self, work: LoweredGroup) -> Iterable[Step]:
        for call in work.calls:
            yield from self._kernel_steps(call, node_names(work.group))
        if work.island:
            yield self._island_step(work.group)

    def _kernel_steps(self, call: KernelCall, nodes: list[str]) -> Iterable[KernelStep]:
        offsets, key = call.offsets or (0,) * len(call.operands), self.keys[id(call)]
        args = tuple(self._address(o, at) for o, at in zip(call.operands, offsets, strict=True))
        yield from kernel_steps(call, key, args, tuple(nodes), self.target, self.codes)

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
            tuple(node_names(group)),
            f"onnxruntime: {', '.join(sorted({n.op_type for n in body}))}",
        )


def kernel_steps(
    call: KernelCall,
    key: str,
    args: tuple[Address, ...],
    nodes: tuple[str, ...],
    target: CpuTarget | GpuTarget,
    codes: Mapping[str, DeviceCode],
) -> Iterator[KernelStep]:
    """The steps of one call: a device's code may have several kernels."""
    label = call.label or call.schedule.name
    if isinstance(target, GpuTarget):
        for kernel in codes[key].kernels:
            launch = Launch(kernel.grid, kernel.block, kernel.dynamic_shared)
            yield KernelStep(kernel.symbol, args, nodes=nodes, label=label, launch=launch, binary=key)
        return
    yield KernelStep(
        symbol_of(key),
        args,
        call.schedule.tasks(call.problem, target),
        call.schedule.scratch_bytes(call.problem, target),
        call.schedule.cost(call.problem, target).seconds < LAUNCH_SECONDS,
        nodes,
        label,
    )


def target_meta(target: CpuTarget | GpuTarget) -> dict[str, object]:
    """What a Program's meta says for its runtime: the kind of device, or the CPU's instructions."""
    return {"kind": target.kind} if isinstance(target, GpuTarget) else {"cpu_flags": list(target.cpu_flags)}


def device_codes(objects: Mapping[str, bytes], target: CpuTarget | GpuTarget) -> dict[str, DeviceCode]:
    """The compiled kernels of a device by key; of a CPU nothing."""
    if not isinstance(target, GpuTarget):
        return {}
    return {key: DeviceCode.from_bytes(data) for key, data in objects.items()}


def image_of(
    objects: Mapping[str, bytes],
    codes: Mapping[str, DeviceCode],
    cache: KernelCache,
    target: CpuTarget | GpuTarget,
) -> bytes:
    """The code of a Program's kernels: a device's binaries, or a CPU's linked objects. CompileError."""
    if isinstance(target, GpuTarget):
        return pack_binaries({key: code.binary for key, code in codes.items()})
    return link(objects, cache)


def loaded_program(
    program: Program, image: bytes, weights: Bytes, islands: tuple[bytes, ...], target: CpuTarget | GpuTarget
) -> Loaded:
    kind = DeviceProgram if isinstance(target, GpuTarget) else LoadedProgram
    return kind(program, image, weights, islands)


def _spec(value: ir.Value) -> TensorSpec:
    assert value.dtype is not None
    shape = static_shape(value)
    if shape is None:
        # Of unknown rank is of unknown extent: whatever the island makes is taken.
        dims = (-1,) if value.shape is None else value.shape
        shape = tuple(d if isinstance(d, int) else -1 for d in dims)
    name = "string" if value.dtype == ir.DataType.STRING else value.dtype.numpy().name
    return TensorSpec(value.name or "", name, shape, has_choice(value) and layout_of(value) == CHANNELS_LAST)


def _itemsize(value: ir.Value) -> int:
    assert value.dtype is not None
    return int(value.dtype.numpy().itemsize) if value.dtype != ir.DataType.STRING else 8


def _island_model(group: ir.Node, graph: ir.Graph) -> bytes:
    body = body_of(group).clone()
    opsets = {d: v for d, v in graph.opset_imports.items() if d != "convopt"}
    body.opset_imports.clear()
    body.opset_imports.update(opsets)
    model = ir.Model(body, ir_version=10)
    return bytes(whole_proto(model).SerializeToString())
