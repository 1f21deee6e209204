"""InstanceNormalization and LayerNormalization as kernels: equal by data, refusals, and compiled."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from convopt.passes import PassContext, run_passes
from convopt.passes.fold_constants import FoldConstants
from convopt.passes.lower_normalization import LowerNormalization
from tests.lowering.compiled import check_text
from tests.passes.support import assert_same, parse

CASES = {
    "instance": """g (float[2,5,7,3] x, float[5] s, float[5] b) => (float[2,5,7,3] y) {
        y = InstanceNormalization <epsilon = 0.01> (x, s, b) }""",
    "instance, one dim": """g (float[3,4,11] x, float[4] s, float[4] b) => (float[3,4,11] y) {
        y = InstanceNormalization (x, s, b) }""",
    "layer, last dim": """g (float[2,3,33] x, float[33] s, float[33] b) => (float[2,3,33] y) {
        y = LayerNormalization (x, s, b) }""",
    "layer, without shift": """g (float[2,3,9] x, float[9] s) => (float[2,3,9] y) {
        y = LayerNormalization <axis = 2, epsilon = 0.1> (x, s) }""",
    "layer, several dims": """g (float[2,3,4,5] x, float[3,4,5] s, float[3,4,5] b) => (float[2,3,4,5] y) {
        y = LayerNormalization <axis = -3> (x, s, b) }""",
    "far from zero": """g (float[1,3,8,9] x, float[3] s, float[3] b) => (float[1,3,8,9] y) {
        hundred = Constant <value = float {300.0}> ()  z = Add (x, hundred)
        y = InstanceNormalization (z, s, b) }""",
}
REFUSED = {
    "its statistics are outputs": """g (float[2,3,9] x, float[9] s) => (float[2,3,9] y, float[2,3,1] m) {
        y, m = LayerNormalization (x, s) }""",
    "its statistics of FLOAT16 are computed in float32": """g (float16[2,3,9] x, float16[9] s)
        => (float16[2,3,9] y) { y = LayerNormalization (x, s) }""",
    "the shape of its input is not static": """g (float[N,3,9] x, float[9] s) => (float[N,3,9] y) {
        y = LayerNormalization (x, s) }""",
}


@pytest.mark.parametrize("name", CASES)
def test_the_rewritten_graph_computes_the_same(name: str) -> None:
    model = parse(CASES[name])
    run_passes(model, [FoldConstants()], PassContext())  # infers shapes
    before = ir.to_proto(model)
    (report,) = run_passes(model, [LowerNormalization()], PassContext())
    assert report.changed == 1
    assert not [node for node in model.graph if node.op_type.endswith("Normalization")]
    assert_same(before, ir.to_proto(model))
    assert run_passes(model, [LowerNormalization()], PassContext())[0].changed == 0


@pytest.mark.parametrize("reason", REFUSED)
def test_refusals(reason: str) -> None:
    model = parse(REFUSED[reason])
    before = ir.to_proto(model).SerializeToString(deterministic=True)
    (report,) = run_passes(model, [LowerNormalization()], PassContext())
    (note,) = report.notes
    assert (report.changed, note.refused, note.text) == (0, True, f"stays as it is: {reason}")
    assert ir.to_proto(model).SerializeToString(deterministic=True) == before


@pytest.mark.kernels
def test_compiled_after_a_convolution_nothing_falls_back() -> None:
    check_text("""g (float[2,6,9,7] x, float[8,6,3,3] w, float[8] s, float[8] b) => (float[2,8,9,7] y) {
        a = Conv <pads = [1, 1, 1, 1]> (x, w)  n = InstanceNormalization (a, s, b)  y = Relu (n) }""")
