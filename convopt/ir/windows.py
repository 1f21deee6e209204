"""Convolution and pooling windows: extents and pads, by the formulas of the ONNX operator specification.

All functions take one spatial dim at a time; sizes are in elements.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import onnx_ir as ir

from convopt.errors import ModelError
from convopt.ir.values import attribute, dims_of, input_at, label


@dataclass(frozen=True)
class Axis:
    """The window along one spatial dim: where it starts, how it steps, and the output's extent.

    `begin` and `end` are the pads (for ConvTranspose what is cut off its output). `output` is the extent by
    the specification, which may be 0 or less where the window doesn't fit.
    """

    kernel: int
    stride: int
    dilation: int
    begin: int
    end: int
    output: int
    output_padding: int = 0

    @property
    def effective(self) -> int:
        return effective_kernel(self.kernel, self.dilation)


def effective_kernel(kernel: int, dilation: int) -> int:
    """Extent that a dilated kernel covers."""
    return (kernel - 1) * dilation + 1


def split_total(total: int, upper: bool) -> tuple[int, int]:
    """(begin, end) of a total; the odd one goes to the end for SAME_UPPER, to the begin for SAME_LOWER."""
    small, large = total // 2, total - total // 2
    return (small, large) if upper else (large, small)


def same_pads(size: int, kernel: int, stride: int, dilation: int, upper: bool) -> tuple[int, int]:
    """Pads that make the output ceil(size / stride) long, with the dilated kernel (Conv-11, `auto_pad`)."""
    output = -(-size // stride)
    return split_total(max((output - 1) * stride + effective_kernel(kernel, dilation) - size, 0), upper)


def pool_extent(size: int, effective: int, stride: int, begin: int, end: int, ceil_mode: bool) -> int:
    """MaxPool-22: ceil_mode ignores windows that start in the end padding. Without it, as Conv-11."""
    room = size + begin + end - effective
    if not ceil_mode:
        return room // stride + 1
    output = -(-room // stride) + 1
    return output - 1 if (output - 1) * stride >= size + begin else output


def transpose_extent(
    size: int, effective: int, stride: int, begin: int, end: int, output_padding: int
) -> int:
    """ConvTranspose-11."""
    return stride * (size - 1) + output_padding + effective - begin - end


def kernel_of(node: ir.Node) -> tuple[int, ...] | None:
    """kernel_shape, from the weight's shape where a conv leaves it out; None where neither says it."""
    kernel = attribute(node, "kernel_shape")
    if node.op_type in ("Conv", "ConvTranspose"):
        weight = dims_of(input_at(node, 1))
        if weight is not None and None not in weight[2:]:
            stated = tuple(int(d or 0) for d in weight[2:])
            if kernel is not None and tuple(kernel) != stated:
                raise ModelError(
                    f"{label(node)} has kernel_shape {list(kernel)}; expected the weight's {list(stated)}"
                )
            return stated
    return None if kernel is None else tuple(int(k) for k in kernel)


def window_axes(node: ir.Node, sizes: Sequence[int]) -> tuple[Axis, ...] | None:
    """The windows of a Conv, ConvTranspose or pool over an input of these spatial sizes.

    None where the kernel's extents are not known.

    Raises:
        ModelError: an attribute's length doesn't fit the rank, or a stride, dilation or kernel below 1.
    """
    kernel = kernel_of(node)
    if kernel is None:
        return None
    rank = len(sizes)
    strides = _per_dim(node, "strides", 1, rank)
    dilations = _per_dim(node, "dilations", 1, rank)
    pads = _per_dim(node, "pads", 0, 2 * rank)
    if len(kernel) != rank:
        raise ModelError(
            f"{label(node)} has a kernel of {len(kernel)} dims; expected {rank}, as the input has"
        )
    if min((*kernel, *strides, *dilations), default=1) < 1:
        raise ModelError(
            f"{label(node)} has kernel {list(kernel)}, strides {list(strides)}, dilations {list(dilations)};"
            " expected 1 or more everywhere"
        )
    if node.op_type == "ConvTranspose":
        return _transposed_axes(node, sizes, kernel, strides, dilations, pads)
    mode = attribute(node, "auto_pad", "NOTSET") or "NOTSET"
    ceil_mode = bool(attribute(node, "ceil_mode", 0)) and mode == "NOTSET"
    axes = []
    for i, size in enumerate(sizes):
        begin, end = _begin_end(
            node, mode, size, kernel[i], strides[i], dilations[i], (pads[i], pads[rank + i])
        )
        effective = effective_kernel(kernel[i], dilations[i])
        output = pool_extent(size, effective, strides[i], begin, end, ceil_mode)
        axes.append(Axis(kernel[i], strides[i], dilations[i], begin, end, output))
    return tuple(axes)


def _begin_end(
    node: ir.Node, mode: str, size: int, kernel: int, stride: int, dilation: int, pads: tuple[int, int]
) -> tuple[int, int]:
    if mode == "NOTSET":
        return pads
    if mode == "VALID":
        return 0, 0
    if mode in ("SAME_UPPER", "SAME_LOWER"):
        return same_pads(size, kernel, stride, dilation, mode == "SAME_UPPER")
    raise ModelError(f"{label(node)} has auto_pad {mode!r}; expected NOTSET, VALID, SAME_UPPER or SAME_LOWER")


def _transposed_axes(
    node: ir.Node,
    sizes: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    pads: Sequence[int],
) -> tuple[Axis, ...]:
    """ConvTranspose-11: an output_shape, or SAME's input * stride, decides the pads.

    A total below 0 asks for more output than the windows reach: it becomes output padding.
    """
    rank = len(sizes)
    mode = attribute(node, "auto_pad", "NOTSET") or "NOTSET"
    extra = _per_dim(node, "output_padding", 0, rank)
    wanted = attribute(node, "output_shape")
    if wanted is not None and len(wanted) == rank + 2:  # some exporters give the whole shape
        wanted = wanted[2:]
    if wanted is not None and len(wanted) != rank:
        raise ModelError(f"{label(node)} has output_shape {list(wanted)}; expected {rank} spatial extents")
    axes = []
    for i, size in enumerate(sizes):
        effective, padding = effective_kernel(kernel[i], dilations[i]), extra[i]
        output = wanted[i] if wanted is not None else size * strides[i] if mode.startswith("SAME") else None
        if output is None:
            begin, end = _begin_end(
                node, mode, size, kernel[i], strides[i], dilations[i], (pads[i], pads[rank + i])
            )
        else:
            total = transpose_extent(size, effective, strides[i], 0, 0, padding) - output
            padding += max(-total, 0)
            begin, end = split_total(max(total, 0), mode == "SAME_UPPER")
        output = transpose_extent(size, effective, strides[i], begin, end, padding)
        axes.append(Axis(kernel[i], strides[i], dilations[i], begin, end, output, padding))
    return tuple(axes)


def _per_dim(node: ir.Node, name: str, default: int, count: int) -> tuple[int, ...]:
    values = attribute(node, name)
    if not values:
        return (default,) * count
    if len(values) != count:
        raise ModelError(f"{label(node)} has {name} {list(values)}; expected {count} numbers")
    return tuple(int(v) for v in values)
