"""The table from group kinds to their lowerings, and the copies that every kind may need."""

from __future__ import annotations

import importlib
from itertools import pairwise

import onnx_ir as ir

from convopt.lowering.base import KernelCall, LoweringContext, Refused
from convopt.lowering.simple import simple_call
from convopt.lowering.storage import Place, Storage
from convopt.schedules.base import TensorView
from convopt.schedules.halo import HaloFill, HaloProblem
from convopt.schedules.pointwise_problem import PointwiseProblem
from convopt.schedules.primitives.expression import identity

_MODULES = {
    "Conv": "conv",
    "FusedConv": "fused_conv",
    "Gemm": "conv",
    "Move": "move",
    "Pointwise": "pointwise",
    "Pool": "pool",
    "Reduce": "reduce",
    "Resize": "resize",
    "Softmax": "reduce",
}


def lower_group(group: ir.Node, context: LoweringContext) -> list[KernelCall]:
    """The kernel calls of a group of any computing kind.

    Raises:
        Refused: this group can't become a kernel; the text says why.
    """
    module = importlib.import_module(f"convopt.lowering.{_MODULES[group.op_type]}")
    calls: list[KernelCall] = module.lower(group, context)
    return calls


def copy_call(source: ir.Value, output: ir.Value, context: LoweringContext) -> KernelCall:
    """The elements of `source`, in row-major order of its dims, as those of `output`."""
    view, to = context.views[source], context.views[output]
    if view.shape != to.shape:
        view, to = _common_shape(view, to)
    problem = PointwiseProblem((view,), (to,), identity())
    return simple_call(problem, (source, output), context, "copy")


def _common_shape(a: TensorView, b: TensorView) -> tuple[TensorView, TensorView]:
    """Both views over the finest dims that either has; equal runs of elements line up."""
    edges = sorted(_edges(a.shape) | _edges(b.shape), reverse=True)
    shape = tuple(outer // inner for outer, inner in pairwise(edges))
    if any(outer % inner for outer, inner in pairwise(edges)):
        raise Refused(f"no common dims of {a.shape} and {b.shape}")
    return _refined(a, shape), _refined(b, shape)


def _edges(shape: tuple[int, ...]) -> set[int]:
    """Elements inside each dim, from all of them to 1."""
    sizes = {1}
    size = 1
    for extent in reversed(shape):
        size *= extent
        sizes.add(size)
    return sizes


def _refined(view: TensorView, shape: tuple[int, ...]) -> TensorView:
    strides: list[int] = []
    dims = [(e, s) for e, s in zip(view.shape, view.strides, strict=True) if e != 1]
    for extent in reversed(shape):
        if extent == 1:
            strides.append(0)
            continue
        have, step = dims.pop()
        strides.append(step)
        if have != extent:
            dims.append((have // extent, step * extent))
    return TensorView(shape, tuple(reversed(strides)), view.dtype)


def halo_call(storage: Storage, place: Place) -> KernelCall:
    """Zeros for the border of a root."""
    problem = HaloProblem(place.view, storage.halo)
    return KernelCall(HaloFill(), problem, (storage.root,), "halo")
