"""Lowers one group of an ONNX model and runs its kernels on numpy arrays, in any layout of its values."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper

from convopt.ir.groups import make_group
from convopt.lowering.base import Constant, KernelCall, LoweringContext, LoweringOptions, Temporary
from convopt.schedules.base import TensorView
from convopt.targets import host_cpu
from tests.kernel_harness import Operand, compile_kernel
from tests.oracle.evaluate import evaluate

Array = np.ndarray[Any, Any]


def single(
    op: str, inputs: Mapping[str, Array], constants: Mapping[str, Array] | None = None, opset: int = 18,
    outputs: int = 1, order: str = "", **attributes: Any,
) -> onnx.ModelProto:  # fmt: skip
    """A model of one node; `order` names its inputs, space-separated, "_" for one left out."""
    constants = constants or {}
    names = order.split() or [*inputs, *constants]
    node = helper.make_node(
        op,
        ["" if n == "_" else n for n in names],
        [f"y{i}" for i in range(outputs)],
        name="node",
        **attributes,
    )
    return model_of([node], inputs, constants, [f"y{i}" for i in range(outputs)], opset)


def model_of(
    nodes: list[onnx.NodeProto], inputs: Mapping[str, Array], constants: Mapping[str, Array],
    outputs: list[str], opset: int = 18,
) -> onnx.ModelProto:  # fmt: skip
    """A checked model with inferred shapes."""
    graph = helper.make_graph(
        nodes,
        "test",
        [
            helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
            for n, a in inputs.items()
        ],
        [helper.make_empty_tensor_value_info(name) for name in outputs],
        [onnx.numpy_helper.from_array(a, n) for n, a in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    return onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True, data_prop=True)


def grouped(model: onnx.ModelProto, kind: str) -> ir.Node:
    """All nodes of the model as one group."""
    graph = ir.from_proto(model).graph
    return make_group(graph, kind, list(graph))


def view_of(value: ir.Value, channels_last: bool, gap: int) -> TensorView:
    """Row-major or channels-last, with `gap` unused elements or rows behind each of the inner dims."""
    assert value.shape is not None and value.dtype is not None
    shape = tuple(int(d) for d in value.shape)  # type: ignore[arg-type]
    rank = len(shape)
    order = (0, *range(2, rank), 1) if channels_last and rank > 2 else tuple(range(rank))
    strides, step = [0] * rank, 1
    for position, d in enumerate(reversed(order)):
        strides[d] = step
        step *= shape[d] + (gap if position < 3 else 0)
    return TensorView(shape, tuple(strides), value.dtype.numpy().name)


def run_group(
    model: onnx.ModelProto,
    kind: str,
    lower: Callable[[ir.Node, LoweringContext], list[KernelCall]],
    inputs: Mapping[str, Array],
    folder: Path,
    channels_last: bool | Collection[str] = False,
    gap: int = 0,
    threads: int = 2,
) -> dict[str, Array]:
    """The outputs by name. channels_last: all values, none, or those named."""
    group, target = grouped(model, kind), host_cpu()
    values = [v for v in (*group.inputs, *group.outputs) if v is not None]
    operands: dict[Any, Operand] = {}
    for value in values:
        last = channels_last if isinstance(channels_last, bool) else value.name in channels_last
        operands[value] = Operand.make(view_of(value, last, gap))
        if value.name in inputs:
            operands[value].array[...] = inputs[value.name]
        elif value.const_value is not None:
            operands[value].array[...] = value.const_value.numpy()
    outside = {v: operands[v].outside() for v in group.outputs}
    views = {v: operands[v].view for v in values}
    buffers: dict[Any, Array] = {}
    for call in lower(group, LoweringContext(views, LoweringOptions(target, threads))):
        function = compile_kernel(call.schedule, call.problem, folder, target)
        addresses = []
        offsets = call.offsets or (0,) * len(call.operands)
        kinds = [view.dtype for view in call.problem.operands]
        for operand, offset, dtype in zip(call.operands, offsets, kinds, strict=True):
            if isinstance(operand, (Constant, Temporary)):
                if operand not in buffers:
                    buffers[operand] = (
                        np.ascontiguousarray(operand.array)
                        if isinstance(operand, Constant)
                        else np.full(operand.nbytes, 0xA5, np.uint8)
                    )
                base = buffers[operand].ctypes.data
            else:
                base = operands[operand].buffer.ctypes.data + operands[operand].start
            addresses.append(ctypes.c_void_p(base + offset * np.dtype(dtype).itemsize))
        tasks = call.schedule.tasks(call.problem, target)
        scratch = np.zeros(call.schedule.scratch_bytes(call.problem, target) + 64, np.uint8)
        aligned = ctypes.c_void_p(scratch.ctypes.data + -scratch.ctypes.data % 64)
        for begin, end in ((tasks // 3, tasks), (0, tasks // 3)):
            function(ctypes.c_int32(begin), ctypes.c_int32(end), aligned, *addresses)
    for value in group.outputs:
        assert np.array_equal(operands[value].outside(), outside[value]), "written outside an output"
    return {str(v.name): operands[v].array.copy() for v in group.outputs}


def check_group(
    model: onnx.ModelProto, kind: str, lower: Any, inputs: Mapping[str, Array], folder: Path,
    tolerance: float = 1e-5, **options: Any,
) -> dict[str, Array]:  # fmt: skip
    """Compares with the oracle: |got - want| <= tolerance * max(1, |want|)."""
    got = run_group(model, kind, lower, inputs, folder, **options)
    want = evaluate(model, inputs)
    assert got.keys() == want.keys()
    for name, expected in want.items():
        assert got[name].shape == expected.shape
        np.testing.assert_allclose(got[name], expected, rtol=tolerance, atol=tolerance, err_msg=name)
    return got
