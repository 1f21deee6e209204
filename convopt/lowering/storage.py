"""Where every value lives: which values share memory, the halo around it, the strides that follow.

A value is either the root of a piece of memory or a view into another value's. Concat's inputs are written
straight into their slot of its output; slices, transposes and reshapes are views of their input where strides
can express them. A convolution reads its padding from a halo of zeros around its input: the input's root is
allocated with it, and everything that lives in the root sees it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from math import prod

import onnx_ir as ir

from convopt.ir.groups import body_of
from convopt.ir.layout import CHANNELS_LAST, has_choice, layout_of, memory_order
from convopt.ir.values import attribute, constant, static_shape
from convopt.lowering.move_axes import concat_axis, slices_of, split_sizes, transpose_perm
from convopt.schedules.base import TensorView

Halo = tuple[tuple[int, int], ...]  # per logical dim: elements before and after


@dataclass(frozen=True)
class Place:
    """A view and the offset of its element 0 in the root's memory, in elements."""

    view: TensorView
    offset: int


@dataclass
class Storage:
    """The memory of a root."""

    root: ir.Value
    halo: Halo
    size: int = 0  # elements, halo included

    @property
    def has_halo(self) -> bool:
        return any(before or after for before, after in self.halo)


Transform = Callable[[Place], "Place | None"]


@dataclass
class _Alias:
    parent: ir.Value
    transform: Transform
    keeps_pixels: bool  # the same pixels, some of the channels or images: a halo stays a halo
    gapless: bool = False  # strides express it only if the root has no halo


@dataclass
class StoragePlan:
    """Answers where a value is; `copies` are the values that a consumer needs as a copy of its own."""

    storages: dict[ir.Value, Storage] = field(default_factory=dict)
    places: dict[ir.Value, Place] = field(default_factory=dict)
    aliases: dict[ir.Value, _Alias] = field(default_factory=dict)
    views: set[ir.Value] = field(default_factory=set)  # outputs of the model that are views of what they hold

    def root(self, value: ir.Value) -> ir.Value:
        while value in self.aliases:
            value = self.aliases[value].parent
        return value

    def place(self, value: ir.Value) -> Place:
        if value not in self.places:
            alias = self.aliases[value]
            found = alias.transform(self.place(alias.parent))
            assert found is not None, f"{value.name} was planned as a view"
            self.places[value] = found
        return self.places[value]

    def is_alias(self, value: ir.Value) -> bool:
        return value in self.aliases


def plan_aliases(graph: ir.Graph, fixed: Iterable[ir.Value]) -> StoragePlan:
    """Decides what is a view of what. `fixed` values (the model's inputs and outputs) are never in a slot."""
    plan = StoragePlan()
    untouchable = set(fixed)
    for group in graph:
        if group.op_type == "Move" and next(iter(body_of(group))).op_type == "Concat":
            _alias_concat(plan, group, untouchable)
    nominal: dict[ir.Value, Place] = {}
    for group in graph:
        transforms = _view_transforms(group)
        source = group.inputs[0] if transforms else None
        if source is None or constant(source) is not None:
            continue
        for output, (transform, keeps_pixels) in zip(group.outputs, transforms, strict=True):
            if output in untouchable:
                _alias_viewed(plan, group, nominal, untouchable)
                continue
            place = transform(_nominal(plan, nominal, source))
            wanted = memory_order(len(static_shape(output) or ()), layout_of(output))
            if place is None or output in plan.aliases or not _order_fits(place.view, wanted, output):
                continue
            plan.aliases[output] = _Alias(source, transform, keeps_pixels, group.op_type == "View")
    return plan


def _order_fits(view: TensorView, order: tuple[int, ...], value: ir.Value) -> bool:
    """Whether the view has its dims in the order that the value is said to have."""
    if not has_choice(value):
        return True
    steps = [view.strides[d] for d in order if view.shape[d] > 1]
    return all(a >= b for a, b in pairwise(steps))


def _nominal(plan: StoragePlan, known: dict[ir.Value, Place], value: ir.Value) -> Place:
    """The value's place if no root had a halo: enough to tell whether strides can express a view."""
    if value not in known:
        alias = plan.aliases.get(value)
        place = alias.transform(_nominal(plan, known, alias.parent)) if alias else None
        known[value] = place or Place(dense_view(value, ((0, 0),) * len(value.shape or ()))[0], 0)
    return known[value]


def dense_view(value: ir.Value, halo: Halo) -> tuple[TensorView, int, int]:
    """(view, offset of element 0, size) of a root with that halo, in elements."""
    shape = static_shape(value)
    assert shape is not None and value.dtype is not None
    strides, step, offset = [0] * len(shape), 1, 0
    layout = CHANNELS_LAST if any(map(any, halo)) else layout_of(value)  # only convolutions ask for halos
    for dim in reversed(memory_order(len(shape), layout)):
        strides[dim] = step
        offset += halo[dim][0] * step
        step *= shape[dim] + sum(halo[dim])
    dtype = value.dtype.numpy().name
    return TensorView(shape, tuple(strides), dtype), offset, step


def _alias_concat(plan: StoragePlan, group: ir.Node, untouchable: set[ir.Value]) -> None:
    output = group.outputs[0]
    body = body_of(group)
    order = list(next(iter(body)).inputs)
    axis, start = concat_axis(group), 0
    outer = dict(zip(body.inputs, group.inputs, strict=True))
    for inner in order:
        value = outer.get(inner) if inner is not None else None
        extent = (static_shape(inner) or ())[axis]
        if value is not None and _fits_slot(plan, value, output, untouchable):
            plan.aliases[value] = _Alias(output, slice_transform(axis, start, 1, extent), axis < 2)
        start += extent


def _alias_viewed(
    plan: StoragePlan, group: ir.Node, nominal: dict[ir.Value, Place], untouchable: set[ir.Value]
) -> None:
    """A reshaped or transposed value that is an output: what it is a view of is computed in its memory."""
    value, output = group.inputs[0], group.outputs[0]
    if group.op_type == "View":
        inverse = reshape_transform(static_shape(value) or ())
    else:
        node = next(iter(body_of(group)))
        if node.op_type != "Transpose":
            return
        perm = transpose_perm(node)
        inverse = transpose_transform(tuple(perm.index(d) for d in range(len(perm))))
    if value is None or not _computed_anywhere(plan, value, untouchable):
        return
    place = inverse(_nominal(plan, nominal, output))
    wanted = memory_order(len(static_shape(value) or ()), layout_of(value))
    if place is not None and _order_fits(place.view, wanted, value):
        plan.aliases[value] = _Alias(output, inverse, False)
        plan.views.add(output)


def _fits_slot(plan: StoragePlan, value: ir.Value, output: ir.Value, untouchable: set[ir.Value]) -> bool:
    same_order = layout_of(value) == layout_of(output) or not has_choice(value)
    return same_order and _computed_anywhere(plan, value, untouchable)


def _computed_anywhere(plan: StoragePlan, value: ir.Value, untouchable: set[ir.Value]) -> bool:
    """Whether its producer can write it wherever it is told to."""
    producer = value.producer()
    if producer is None or producer.op_type in ("View", "Island") or value in untouchable:
        return False
    if producer.op_type == "Move" and next(iter(body_of(producer))).op_type in (
        "Slice",
        "Split",
        "Transpose",
    ):
        return False
    return value not in plan.aliases


def _view_transforms(group: ir.Node) -> list[tuple[Transform, bool]]:
    """Per output, how it is a view of input 0; empty for groups that compute."""
    if group.op_type == "View":
        shape = static_shape(group.outputs[0])
        assert shape is not None
        return [(reshape_transform(shape), False)]
    if group.op_type != "Move":
        return []
    node = next(iter(body_of(group)))
    if node.op_type == "Transpose":
        return [(transpose_transform(transpose_perm(node)), False)]
    if node.op_type == "Slice":
        ranges = slices_of(node)
        if ranges is None or any(step < 0 for _, _, step, _ in ranges):
            return []
        return [(_chain([slice_transform(*r) for r in ranges]), all(axis < 2 for axis, *_ in ranges))]
    if node.op_type == "Split":
        axis, start, result = attribute(node, "axis", 0), 0, []
        axis %= len(static_shape(node.inputs[0]) or ())
        for extent in split_sizes(node):
            result.append((slice_transform(axis, start, 1, extent), axis < 2))
            start += extent
        return [r for r, v in zip(result, node.outputs, strict=True) if v in set(body_of(group).outputs)]
    return []


def _chain(transforms: list[Transform]) -> Transform:
    def apply(place: Place) -> Place | None:
        for transform in transforms:
            result = transform(place)
            if result is None:
                return None
            place = result
        return place

    return apply


def slice_transform(axis: int, start: int, step: int, extent: int) -> Transform:
    def apply(place: Place) -> Place:
        view = place.view
        shape, strides = list(view.shape), list(view.strides)
        offset = place.offset + start * strides[axis]
        shape[axis], strides[axis] = extent, strides[axis] * step
        return Place(TensorView(tuple(shape), tuple(strides), view.dtype), offset)

    return apply


def transpose_transform(perm: tuple[int, ...]) -> Transform:
    def apply(place: Place) -> Place:
        shape = tuple(place.view.shape[p] for p in perm)
        return Place(
            TensorView(shape, tuple(place.view.strides[p] for p in perm), place.view.dtype), place.offset
        )

    return apply


def reshape_transform(shape: tuple[int, ...]) -> Transform:
    def apply(place: Place) -> Place | None:
        strides = reshaped_strides(place.view, shape)
        return None if strides is None else Place(TensorView(shape, strides, place.view.dtype), place.offset)

    return apply


def reshaped_strides(view: TensorView, shape: tuple[int, ...]) -> tuple[int, ...] | None:
    """Strides that give the view's elements, in row-major order, the new shape; None if none do."""
    old = [(e, s) for e, s in zip(view.shape, view.strides, strict=True) if e != 1]
    strides: list[int] = []
    position = 0
    new = list(shape)
    i = 0
    while i < len(new):
        if new[i] == 1:
            strides.append(1)
            i += 1
            continue
        if position >= len(old):
            return None
        # The smallest runs of old and new dims with the same number of elements.
        first_old, first_new = position, i
        have, want = old[position][0], new[i]
        position, i = position + 1, i + 1
        while have != want:
            if have < want:
                have *= old[position][0]
                position += 1
            else:
                want *= new[i]
                i += 1
        run = old[first_old:position]
        if any(a != b * e for (_, a), (e, b) in pairwise(run)):
            return None
        step, piece = run[-1][1], []
        for extent in reversed(new[first_new:i]):
            piece.append(step)
            step *= extent
        strides.extend(reversed(piece))
    return tuple(strides) if position == len(old) else None


def allocate(plan: StoragePlan, values: Iterable[ir.Value], halos: dict[ir.Value, Halo]) -> None:
    """Fixes every root's halo, size and strides; all places are known afterwards."""
    for value in values:
        if plan.is_alias(value):
            continue
        rank = len(static_shape(value) or ())
        halo = halos.get(value, ((0, 0),) * rank)
        view, offset, size = dense_view(value, halo)
        plan.storages[value] = Storage(value, halo, size)
        plan.places[value] = Place(view, offset)


def may_have_halo(plan: StoragePlan, value: ir.Value, fixed: set[ir.Value]) -> bool:
    """Whether zeros can be put around this value: its root is ours, and no view needs it gapless."""
    while value in plan.aliases:
        if not plan.aliases[value].keeps_pixels:
            return False
        value = plan.aliases[value].parent
    producer = value.producer()
    if value in fixed or producer is None or producer.op_type == "Island":
        return False
    return not any(a.gapless and plan.root(child) is value for child, a in plan.aliases.items())


def elements(value: ir.Value) -> int:
    return prod(static_shape(value) or (1,))
