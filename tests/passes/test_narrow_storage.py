"""Which values are stored in 16 bits, and that the lowered model still says what it computes."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from convopt.errors import InputError
from convopt.frontends.lowered import groups_to_functions
from convopt.ir.groups import expand_groups
from convopt.ir.precision import Precision
from convopt.passes import GRAPH_PASSES, PassContext, run_passes
from convopt.passes.assign_layout import AssignLayout
from convopt.passes.group_kernels import GroupKernels
from convopt.passes.narrow_storage import NarrowStorage
from tests.passes.support import draw, parse, run_unoptimised

TEXT = """g (float[1,8,6,7] x, float[16,8,1,1] w, float[8,16,3,3] v, float[1] n)
    => (float[1,8,6,7] y, float[1,16,1,1] z, float[16,21] q) {
    first = Conv (x, w)  a = Relu (first)
    second = Conv <pads = [1, 1, 1, 1]> (a, v)  b = Add (second, x)
    joined = Concat <axis = 1> (b, x)
    left, right = Split <axis = 1, num_outputs = 2> (joined)
    y = Mul (left, right)
    half = Div (a, n)  odd = Erf (half)
    flat = Reshape (x, shape3)  root = Abs (flat)  tall = Reshape (root, shape)
    rows = Reshape (odd, shape)
    last = Softmax (rows)
    back = Reshape (last, shape2)
    z = GlobalMaxPool (back)
    q = Sigmoid (tall)
}"""


def model() -> ir.Model:
    text = TEXT.replace("float[1] n)", "float[1] n, int64[2] shape, int64[4] shape2, int64[2] shape3)")
    parsed = parse(text)
    for name, extents in (("shape", [16, -1]), ("shape2", [1, 16, 6, 7]), ("shape3", [8, 42])):
        parsed.graph.initializers[name].const_value = ir.Tensor(np.array(extents), name=name)
    run_passes(parsed, GRAPH_PASSES, PassContext())
    return parsed


def narrowed(precision: Precision, refused: tuple[tuple[str, str], ...] = ()) -> ir.Model:
    found = model()
    run_passes(found, [GroupKernels(refused), AssignLayout(), NarrowStorage(precision)], PassContext())
    return found


def stored(found: ir.Model) -> dict[str, str]:
    return {v.name or "": v.dtype.name for group in found.graph for v in group.outputs if v.dtype}


@pytest.mark.parametrize(("name", "dtype"), [("fp16", "FLOAT16"), ("bf16", "BFLOAT16")])
def test_what_lies_between_kernels_is_narrow(name: str, dtype: str) -> None:
    types = stored(narrowed(Precision(name)))
    assert types["a"] == types["odd"] == types["rows"] == types["last"] == types["back"] == dtype
    assert types["y"] == types["z"] == "FLOAT"


def test_memory_shared_with_an_input_stays_wide() -> None:
    """A reshape of x is the caller's memory."""
    types = stored(narrowed(Precision("fp16")))
    assert types["flat"] == "FLOAT" and types["root"] == types["tall"] == "FLOAT16"


def test_islands_read_and_write_float32() -> None:
    types = stored(narrowed(Precision("fp16"), (("odd", "for this test"),)))
    assert types["odd"] == "FLOAT"
    assert types["a"] == "FLOAT16"


def test_kept_nodes() -> None:
    types = stored(narrowed(Precision("fp16", frozenset({"first"}))))
    assert types["a"] == "FLOAT" and types["last"] == "FLOAT16"


def test_an_unknown_node_is_named() -> None:
    with pytest.raises(InputError, match="keep_fp32: no node of the optimized model is named 'nowhere'"):
        narrowed(Precision("fp16", frozenset({"nowhere"})))


@pytest.mark.parametrize("to_standard", [lambda m: expand_groups(m.graph), groups_to_functions])
def test_the_lowered_model_says_what_is_rounded(to_standard: object) -> None:
    """The expanded model rounds where the kernels do: close to float32, and not equal."""
    before, found = ir.to_proto(model()), narrowed(Precision("fp16"))
    assert callable(to_standard)
    to_standard(found)
    feeds = draw(before, {})
    expected, got = run_unoptimised(before, feeds), run_unoptimised(ir.to_proto(found), feeds)
    for output, array in expected.items():
        assert got[output].dtype == np.float32
        np.testing.assert_allclose(got[output], array, rtol=2e-3, atol=2e-3)
    assert any(not np.array_equal(got[output], array) for output, array in expected.items())
