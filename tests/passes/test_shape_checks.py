"""Models that the onnx package infers shapes for although the operator can't do it: one error for each."""

from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest

from convopt.errors import ModelError
from convopt.frontends.onnx_file import load
from convopt.passes import GRAPH_PASSES, PassContext, run_passes

REFUSED = {
    "a reshape of another batch": (
        "g (float[4,6] x) => (float y) <int64[2] s = {2,6}> { y = Reshape (x, s) }",
        r"Reshape 'y' makes \[2, 6\] of \[4, 6\]; expected 24 elements",
    ),
    "a transposition of fewer dims": (
        "g (float[2,3] x) => (float y) { y = Transpose <perm = [0]> (x) }",
        r"Transpose 'y' has perm \[0\]; expected the 2 dims",
    ),
    "channels that are no blocks": (
        "g (float[1,3,4,4] x) => (float y) { y = DepthToSpace <blocksize = 2> (x) }",
        "DepthToSpace 'y' has 3 channels; expected a multiple of blocksize . blocksize = 4",
    ),
    "pixels that are no blocks": (
        "g (float[1,3,4,5] x) => (float y) { y = SpaceToDepth <blocksize = 2> (x) }",
        r"SpaceToDepth 'y' has an input of \[1, 3, 4, 5\]; expected multiples of 2",
    ),
    "an addend that makes more of it": (
        "g (float[1,3] x, float[3,2] x2, float[4,2] x3) => (float y) { y = Gemm (x, x2, x3) }",
        r"Gemm 'y' adds \[4, 2\] to \[1, 2\]; expected a shape that broadcasts to it",
    ),
    "a negative scale": (
        "g (float[2,3] x) => (float y) <float[2] s = {-1.0, 2.0}> { y = Resize (x, , s) }",
        r"Resize 'y' gives 'y' the shape \[-2,6\]; expected extents of 0 or more",
    ),
    "a weight of another type": (
        "g (float[1,1,2,2] x) => (float y) <int64[1,1,1,1] w = {1}> { y = Conv (x, w) }",
        "Conv 'y' has a weight of INT64; expected FLOAT, as its input has",
    ),
    "a bias of another type": (
        "g (float[1,1,2,2] x, float[1,1,1,1] x2, double[1] x3) => (float y) { y = Conv (x, x2, x3) }",
        "Conv 'y' has a bias of DOUBLE; expected FLOAT, as its input has",
    ),
    "a branch that is missing": (
        """g (float[2] x) => (float[2] y) <bool c = {1}> {
            y = If (c) <else_branch = e () => (float[2] a) { a = Neg (x) }> }""",
        "If 'y' has no then_branch",
    ),
}


@pytest.mark.parametrize(("text", "words"), REFUSED.values(), ids=REFUSED.keys())
def test_refused(text: str, words: str) -> None:
    _refuse(f'<ir_version: 8, opset_import: ["" : 18]> {text}', words)


def test_an_old_softmax_beyond_the_rank() -> None:
    text = """<ir_version: 8, opset_import: ["" : 11]>
    g (float[2,3] x) => (float y) { y = Softmax <axis = 9> (x) }"""
    _refuse(text, "Softmax 'y' has axis 9; expected one of the 2 dims")


def test_functions_that_call_themselves() -> None:
    text = """<ir_version: 8, opset_import: ["" : 18, "local" : 1]>
    g (float[2] x) => (float[2] y) { y = local.F (x) }
    <domain: "local", opset_import: ["" : 18, "local" : 1]> F (a) => (b) { b = local.F (a) }"""
    _refuse(text, "functions can't be inlined: Cyclic dependency")


def _refuse(text: str, words: str) -> None:
    model: ir.Model = load(onnx.parser.parse_model(text))
    with pytest.raises(ModelError, match=words):
        run_passes(model, GRAPH_PASSES, PassContext())


@pytest.mark.parametrize("kind", ["optional(float[2])", "sparse_tensor(float[2])"])
def test_what_is_no_tensor_at_the_boundary(kind: str) -> None:
    text = f'<ir_version: 8, opset_import: ["" : 18]> g ({kind} x) => (float[2] y) {{ y = Foo (x) }}'
    with pytest.raises(ModelError, match="input 'x' is optional or sparse; expected a tensor"):
        load(onnx.parser.parse_model(text))
