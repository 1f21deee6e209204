"""Extents and pads against counting: a window is where the specification lets one start."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from convopt.ir import windows
from convopt.passes import PassContext, run_passes
from convopt.passes.canonicalise_conv import CanonicaliseConv
from tests.passes.support import assert_same, parse

SIZES, KERNELS, STRIDES, DILATIONS = (
    st.integers(1, 12),
    st.integers(1, 5),
    st.integers(1, 4),
    st.integers(1, 3),
)
PADS = st.integers(0, 4)


def _starts(size: int, effective: int, stride: int, begin: int, end: int, ceil_mode: bool) -> int:
    """Windows start at -begin, then every stride. Without ceil_mode they end inside the padded input; with it
    they need only to start before the end padding, one beyond the last that ends inside at most."""
    count, start = 0, -begin
    while start + effective <= size + end:
        count, start = count + 1, start + stride
    over = start - stride + effective < size + end  # the last window leaves a rest
    return count + 1 if ceil_mode and over and start < size else count


@given(SIZES, KERNELS, STRIDES, DILATIONS, PADS, PADS, st.booleans())
def test_pool_extent(
    size: int, kernel: int, stride: int, dilation: int, begin: int, end: int, ceil: bool
) -> None:
    effective = (kernel - 1) * dilation + 1
    assume(effective <= size + begin + end and end < kernel)  # a pool's pads are less than its kernel
    expected = _starts(size, effective, stride, begin, end, ceil)
    assert windows.pool_extent(size, effective, stride, begin, end, ceil) == expected


@given(SIZES, KERNELS, STRIDES, DILATIONS, st.booleans())
def test_same_pads(size: int, kernel: int, stride: int, dilation: int, upper: bool) -> None:
    begin, end = windows.same_pads(size, kernel, stride, dilation, upper)
    effective = (kernel - 1) * dilation + 1
    output = int(np.ceil(size / stride))
    assert windows.pool_extent(size, effective, stride, begin, end, False) == output
    assert 0 <= (end - begin if upper else begin - end) <= 1
    # No smaller total does: one less, if there is one, loses the last window.
    if begin + end:
        assert windows.pool_extent(size, effective, stride, begin, end - 1, False) < output


@given(SIZES, KERNELS, STRIDES, DILATIONS, PADS, PADS, st.integers(0, 3))
def test_transpose_undoes_conv(
    size: int, kernel: int, stride: int, dilation: int, begin: int, end: int, extra: int
) -> None:
    """A ConvTranspose's output is an input from which the conv of the same window makes `size`."""
    assume(extra < stride)
    effective = (kernel - 1) * dilation + 1
    output = windows.transpose_extent(size, effective, stride, begin, end, extra)
    assume(output > 0)
    assert windows.pool_extent(output, effective, stride, begin, end, False) == size


@settings(max_examples=100)
@given(
    st.sampled_from(["SAME_UPPER", "SAME_LOWER", "VALID", "NOTSET"]),
    st.sampled_from(["Conv", "ConvTranspose", "MaxPool", "AveragePool"]),
    st.tuples(st.integers(4, 9), st.integers(4, 9)),
    st.tuples(KERNELS, KERNELS),
    st.tuples(STRIDES, STRIDES),
    st.booleans(),
)
def test_written_out_equals_auto_pad(
    mode: str, op: str, size: tuple[int, int], kernel: tuple[int, int], stride: tuple[int, int], ceil: bool
) -> None:
    """By data, against onnxruntime, which knows auto_pad where there is no dilation."""
    assume(mode.startswith("SAME") or max(kernel) <= 4)
    # Where the stride exceeds the kernel, SAME needs no pads; onnxruntime takes negative ones.
    assume(not mode.startswith("SAME") or all(k >= s for k, s in zip(kernel, stride, strict=True)))
    pool = op.endswith("Pool")
    attributes = f'auto_pad = "{mode}", strides = [{stride[0]}, {stride[1]}]'
    attributes += f", kernel_shape = [{kernel[0]}, {kernel[1]}]"
    attributes += ", ceil_mode = 1" if pool and ceil and mode == "NOTSET" else ""
    inputs = "(x)" if pool else "(x, w)"
    model = parse(
        f"""g (float[1,2,{size[0]},{size[1]}] x, float[2,2,{kernel[0]},{kernel[1]}] w) => (float y) {{
            y = {op} <{attributes}> {inputs} }}"""
    )
    before = ir.to_proto(model)
    before.graph.output[0].type.tensor_type.ClearField("shape")
    assert run_passes(model, [CanonicaliseConv()], PassContext())[0].changed == 1
    node = model.graph[0]
    assert not {"auto_pad", "output_shape"} & set(node.attributes)
    assert_same(before, ir.to_proto(model))
