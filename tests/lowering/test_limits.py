"""What kernels can't address is refused, not computed wrongly."""

from __future__ import annotations

import time

import numpy as np
import onnx
import pytest

from convopt.frontends.onnx_file import load
from convopt.grouping import lower_graph
from convopt.lowering.base import LoweringOptions
from convopt.lowering.program import Fallbacks, _Builder
from convopt.lowering.storage import Place
from convopt.passes import GRAPH_PASSES, PassContext, run_passes
from convopt.schedules.base import TensorView, row_major
from convopt.schedules.conv_problem import ConvProblem
from convopt.schedules.im2col import Im2col
from convopt.schedules.primitives.expression import identity
from convopt.selection.choose import choose_conv, conv_seconds, imbalance
from convopt.selection.unfold import best_unfolding, chunks, split
from convopt.targets import host_cpu


def test_tensors_beyond_32_bit_indices_are_refused() -> None:
    """The kernels' indices are int32; such a group falls back instead of wrapping around."""
    view = TensorView((3, 5), (2**30, 1))
    assert view.reach == 2**31 + 4
    graph = onnx.parser.parse_graph("g (float[3,5] x) => (float[3,5] y) { y = Relu (x) }")
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=9)
    options = LoweringOptions(host_cpu(), 1)
    lowered = lower_graph(load(model), PassContext(), {}, None, options)
    builder = _Builder(lowered.graph, options)
    value = lowered.graph.inputs[0]
    builder.plan.places[value] = Place(view, 0)
    with pytest.raises(Fallbacks, match=r"spans 2\*\*31 elements"):
        builder.lower()


def test_an_input_beyond_memory_is_refused_at_once() -> None:
    """What its convolution's matrix would be cut into is not listed: of each kind of piece one is priced."""
    graph = onnx.parser.parse_graph(f"""g (float[{2**40},3,8,8] x, float[4,3,3,3] w)
        => (float[N,4,10,10] y) {{ y = Conv <pads = [2,2,2,2]> (x, w) }}""")
    weight = onnx.numpy_helper.from_array(np.ones((4, 3, 3, 3), np.float32), "w")
    del graph.input[1:]
    graph.initializer.append(weight)
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=9)
    source, context, options = load(model), PassContext(), LoweringOptions(host_cpu(), 1)
    run_passes(source, GRAPH_PASSES, context)
    start = time.process_time()
    with pytest.raises(Fallbacks, match="211106232532992 elements from one end of a tensor to the other"):
        _Builder(lower_graph(source, context, {}, None, options).graph, options).lower()
    assert time.process_time() - start < 20


def test_pieces_are_priced_by_kind() -> None:
    """7 images of 9 rows, 4 rows a matrix: as the pieces one by one."""
    rows = row_major((1, 7, 1, 9, 6, 5))
    problem = ConvProblem(
        row_major((1, 7, 1, 9, 6, 8)),
        rows,
        (1, 3, 3),
        (1, 1, 1),
        (1, 1, 1),
        (0, 1, 1),
        identity(),
        bias=False,
    )
    target, cap = host_cpu(), 4 * 6 * 9 * 8 * 4
    pieces = chunks(problem, 7, cap)
    assert len(pieces) == 7 * 3
    total, schedule = 0.0, Im2col()
    for unfold, gemm in (split(problem, piece) for piece in pieces):
        total += schedule.cost(unfold, target).seconds * imbalance(schedule.tasks(unfold, target), 1)
        total += conv_seconds(choose_conv(gemm, target, 1), gemm, target, 1)
    assert best_unfolding(problem, target, 1, cap).seconds == pytest.approx(total)
