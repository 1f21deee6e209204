"""What the onnx package's shape inference takes without a word although the operator can't do it."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import onnx_ir as ir

from convopt.errors import ModelError
from convopt.ir.values import attribute, dims_of, input_at, label, static_shape


def check_shapes(node: ir.Node) -> None:
    """Looks at a standard operator whose outputs' shapes were inferred.

    Raises:
        ModelError: names the node, and what its shapes or attributes should be.
    """
    for value in node.outputs:
        if any(extent is not None and extent < 0 for extent in dims_of(value) or ()):
            raise ModelError(
                f"{label(node)} gives {value.name!r} the shape {value.shape}; expected extents of 0 or more"
            )
    if node.op_type in _CHECKS:
        _CHECKS[node.op_type](node)


def _reshape(node: ir.Node) -> None:
    before, after = static_shape(input_at(node, 0)), static_shape(node.outputs[0])
    if before is not None and after is not None and prod(before) != prod(after):
        raise ModelError(
            f"{label(node)} makes {list(after)} of {list(before)}; expected {prod(before)} elements (is the"
            " model fixed to other input shapes?)"
        )


def _transpose(node: ir.Node) -> None:
    perm, dims = attribute(node, "perm"), dims_of(input_at(node, 0))
    if perm is not None and dims is not None and len(perm) != len(dims):
        raise ModelError(f"{label(node)} has perm {list(perm)}; expected the {len(dims)} dims of its input")


def _depth_to_space(node: ir.Node) -> None:
    dims, block = dims_of(input_at(node, 0)), int(attribute(node, "blocksize"))
    if dims is not None and dims[1] is not None and dims[1] % block**2:
        raise ModelError(
            f"{label(node)} has {dims[1]} channels; expected a multiple of blocksize * blocksize = {block**2}"
        )


def _space_to_depth(node: ir.Node) -> None:
    dims, block = dims_of(input_at(node, 0)), int(attribute(node, "blocksize"))
    if dims is not None and any(extent is not None and extent % block for extent in dims[2:]):
        raise ModelError(
            f"{label(node)} has an input of {list(dims)}; expected multiples of {block} at the end"
        )


def _gemm(node: ir.Node) -> None:
    addend, wanted = static_shape(input_at(node, 2)), static_shape(node.outputs[0])
    if addend is None or wanted is None:
        return
    aligned = (1,) * (len(wanted) - len(addend)) + addend
    if len(aligned) != len(wanted) or any(a not in (1, b) for a, b in zip(aligned, wanted, strict=True)):
        raise ModelError(
            f"{label(node)} adds {list(addend)} to {list(wanted)}; expected a shape that broadcasts to it"
        )


_CHECKS: dict[str, Callable[[ir.Node], None]] = {
    "DepthToSpace": _depth_to_space,
    "Gemm": _gemm,
    "Reshape": _reshape,
    "SpaceToDepth": _space_to_depth,
    "Transpose": _transpose,
}
