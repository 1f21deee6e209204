"""What passes must leave alone, and the words in which they say so."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from convopt.errors import InputError, ModelError
from convopt.passes import GRAPH_PASSES, Note, PassContext, run_passes
from convopt.passes.bind_shapes import BindShapes
from convopt.passes.canonicalise_conv import CanonicaliseConv
from convopt.passes.fold_batchnorm import FoldBatchNorm
from convopt.passes.fold_constants import FoldConstants
from convopt.passes.merge_pad import MergePad
from convopt.passes.upgrade_opset import UpgradeOpset
from tests.passes.support import assert_same, parse

_STATS = "float[4] s, float[4] t, float[4] m, float[4] v"
_BN = "BatchNormalization"
_ALL_ONES = "<int64[8] pads = {0,0,1,1,0,0,1,1}>"


def _refusals(model: ir.Model) -> list[str]:
    context = PassContext()
    run_passes(model, [FoldConstants()], PassContext())
    before = ir.to_proto(model)
    run_passes(model, [CanonicaliseConv(), FoldBatchNorm(), MergePad()], context)
    assert_same(before, ir.to_proto(model))
    return [note.text for _, note in context.notes() if note.refused]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            f"""g (float[1,2,5,5] x, float[4,2,3,3] w, {_STATS}) => (float[1,4,3,3] c, float[1,4,3,3] y) {{
                c = Conv (x, w)  y = {_BN} (c, s, t, m, v) }}""",
            "BatchNormalization 'y' not folded into Conv 'c': the conv's output is an output of the model",
        ),
        (
            f"""g (float[1,2,5,5] x, float[4,2,3,3] w, {_STATS}) => (float[1,4,3,3] y) {{
                c = Conv (x, w)  r = Relu (c)  n = {_BN} (c, s, t, m, v)  y = Add (r, n) }}""",
            "BatchNormalization 'n' not folded into Conv 'c': the conv's output has other readers",
        ),
        (
            f"""g (float[1,2,5,5] x, float[4,2,3,3] xw, {_STATS}) => (float[1,4,3,3] y) {{
                c = Conv (x, xw)  y = {_BN} (c, s, t, m, v) }}""",
            "BatchNormalization 'y' not folded into Conv 'c': its weight or bias is no constant",
        ),
        (
            f"""g (float[1,2,5,5] x, float[4,2,3,3] w) => (float[1,4,5,5] y) {_ALL_ONES} {{
                p = Pad <mode = "reflect"> (x, pads)  y = Conv (p, w) }}""",
            "Pad 'p' stays: its mode is reflect",
        ),
        (
            f"""g (float[1,2,5,5] x, float[4,2,3,3] w, float one) => (float[1,4,5,5] y) {_ALL_ONES} {{
                p = Pad (x, pads, one)  y = Conv (p, w) }}""",
            "not zero",
        ),
        (
            """g (float[1,2,5,5] x, float[4,2,3,3] w) => (float[1,4,3,3] y)
                <int64[8] pads = {0,0,1,1,0,0,-1,-1}> { p = Pad (x, pads)  y = Conv (p, w) }""",
            "Pad 'p' stays: its pads [0, 0, 1, 1, 0, 0, -1, -1] are partly negative",
        ),
        (
            """g (float[1,1,5,5] x, float[4,2,3,3] w) => (float[1,4,5,5] y)
                <int64[8] pads = {0,0,1,1,0,1,1,1}> { p = Pad (x, pads)  y = Conv (p, w) }""",
            "touch the batch or the channels",
        ),
        (
            f"""g (float[1,2,5,5] x) => (float[1,2,5,5] y) {_ALL_ONES} {{
                p = Pad (x, pads)  y = MaxPool <kernel_shape = [3, 3]> (p) }}""",
            "Pad 'p' not merged into MaxPool 'y': a MaxPool's own padding is -inf, not zero",
        ),
        (
            f"""g (float[1,4,5,5] x, float[4,2,3,3] w) => (float[1,2,9,9] y) {_ALL_ONES} {{
                p = Pad (x, pads)  y = ConvTranspose (p, w) }}""",
            "a ConvTranspose's own pads cut its output",
        ),
        (
            f"""g (float[1,2,5,5] x) => (float[1,2,7,7] y) {_ALL_ONES} {{
                p = Pad (x, pads)  y = AveragePool <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (p) }}""",
            "the pool does not count its own pads but does count the Pad's zeros",
        ),
        (
            f"""g (float[1,2,6,6] x) => (float[1,2,4,4] y) {_ALL_ONES} {{
                p = Pad (x, pads)
                y = AveragePool <kernel_shape = [3, 3], strides = [2, 2], ceil_mode = 1,
                                 count_include_pad = 1> (p) }}""",
            "with ceil_mode, windows may reach beyond the pads",
        ),
    ],
)
def test_refused_in_words(text: str, words: str) -> None:
    refusals = _refusals(parse(text))
    assert any(words in refusal for refusal in refusals), refusals


@pytest.mark.parametrize(
    "operand",
    ["float[1,4,3,3] k", "float[3] k", "float[2,4,1,1] k", "float[1,1,4,1,1] k"],
    ids=["per-pixel", "per-column", "batch", "rank"],
)
def test_not_per_channel_stays(operand: str) -> None:
    """An Add that isn't one number per channel is an Add, and nothing to complain about."""
    model = parse(
        f"""g (float[1,2,5,5] x, float[4,2,3,3] w, {operand}) => (float y) {{
            c = Conv (x, w)  y = Add (c, k) }}"""
    )
    assert run_passes(model, [FoldConstants(), FoldBatchNorm()], PassContext())[1].changed == 0


def test_pad_with_another_reader_is_kept_for_it() -> None:
    model = parse(
        f"""g (float[1,2,5,5] x, float[4,2,3,3] w) => (float[1,4,5,5] y, float[1,2,7,7] z) {_ALL_ONES} {{
            p = Pad (x, pads)  y = Conv (p, w)  z = Relu (p) }}"""
    )
    before = ir.to_proto(model)
    assert run_passes(model, [MergePad()], PassContext())[0].changed == 1
    assert [n.op_type for n in model.graph] == ["Pad", "Conv", "Relu"]
    assert_same(before, ir.to_proto(model))


def test_same_pads_of_unbound_dims_are_left() -> None:
    text = """g (float[1,2,H,W] x, float[4,2,3,3] w) => (float[1,4,P,Q] y) {
        y = Conv <auto_pad = "SAME_UPPER"> (x, w) }"""
    report = run_passes(parse(text), [CanonicaliseConv()], PassContext())[0]
    assert report.changed == 0
    assert report.notes == (
        Note("y", "Conv 'y' keeps its form: its pads depend on spatial dims that are not bound", True),
    )


@pytest.mark.parametrize(
    ("shapes", "words"),
    [
        ({"z": (1, 2, 5, 5)}, "a shape is given for 'z'; the model's inputs are x"),
        ({"x": (2, 5, 5)}, "has 3 dims; expected 4"),
        ({"x": (1, 2, -5, 5)}, "expected integers of 0 or more"),
        ({"x": (1, 2, 5.0, 5)}, "expected integers of 0 or more"),
    ],
)
def test_shapes_that_do_not_fit(shapes: dict[str, tuple[int, ...]], words: str) -> None:
    model = parse("g (float[N,2,H,W] x) => (float[N,2,H,W] y) { y = Relu (x) }")
    with pytest.raises(InputError, match=words.replace("[", r"\[")):
        run_passes(model, [BindShapes()], PassContext(shapes=shapes))


def test_declared_shape_is_overridden() -> None:
    """Exporters leave their example's shape in the file; the caller's counts, to the outputs."""
    model = parse("g (float[10,2,32,32] x, float[4,2,3,3] w) => (float[10,4,30,30] y) { y = Conv (x, w) }")
    context = PassContext(shapes={"x": (1, 2, 64, 48)})
    reports = run_passes(model, GRAPH_PASSES, context)
    assert model.graph.outputs[0].shape == ir.Shape((1, 4, 62, 46))
    assert any("overriding 10 -> 1 at dim 0" in n.text for r in reports for n in r.notes)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "g (float[1,3,2,5] x, float[4,3,3,3] w) => (float[1,4,1,1] y) { y = Conv (x, w) }",
            "Conv 'y' has no output along spatial dim 0: input extent 2, dilated kernel 3, pads 0 and 0",
        ),
        (
            "g (float[1,4,9,9] x, float[4,3,3,3] w) => (float[1,4,7,7] y) { y = Conv (x, w) }",
            "Conv 'y' has 4 input channels; expected 3",
        ),
        (
            "g (float[1,3,9] x, float[4,3,3,3] w) => (float[1,4,7] y) { y = Conv (x, w) }",
            "expected the same rank",
        ),
        (
            "g (float[1,3,9,9] x, float[4,3,3,3] w) => (float[1,4,7,7] y) {"
            " y = Conv <strides = [1]> (x, w) }",
            r"Conv 'y' has strides \[1\]; expected 2 numbers",
        ),
        (
            "g (float[1,3,9,9] x, float[4,3,3,3] w) => (float[1,4,7,7] y) {"
            " y = Conv <dilations = [0, 1]> (x, w) }",
            "expected 1 or more everywhere",
        ),
        (
            "g (float[1,3,9,9] x, float[4,3,3,3] w) => (float[1,4,7,7] y) {"
            ' y = Conv <auto_pad = "SOME"> (x, w) }',
            "auto_pad 'SOME'; expected NOTSET, VALID",
        ),
        (
            "g (float[2,3] x, float[4,2] w) => (float[2,2] y) { y = MatMul (x, w) }",
            r"MatMul 'y': .*\(input shapes \[2,3\], \[4,2\]\)",
        ),
        (
            "g (float[2,3] x) => (float[2,3] y) { y = Frobnicate (x) }",
            "Frobnicate 'y' is no operator of opset 18",
        ),
        (
            "g (int64[2] x, int64 zero) => (int64[2] y) { q = Div (zero, zero)  y = Add (x, q) }",
            "Div 'q' can't be computed from its constant inputs: integer division by 0",
        ),
    ],
)
def test_contradictions_name_the_node(text: str, words: str) -> None:
    model = parse(text)
    for value in model.graph.initializers.values():
        if value.name == "zero":
            import numpy as np

            value.const_value = ir.tensor(np.zeros((), np.int64), name="zero")
    with pytest.raises(ModelError, match=words):
        run_passes(model, [FoldConstants()], PassContext())


@pytest.mark.parametrize(
    ("text", "opset", "words"),
    [
        (
            "g (float[2,3] x) => (float[2,3] y, float[2,3] z) { y, k = Dropout (x)  z = Relu (k) }",
            9,
            "gives its mask",
        ),
        (
            "g (float[1,4,3,3] x, float[4] s, float[4] t, float[4] m, float[4] v) => (float[1,4,3,3] y) {"
            " y = BatchNormalization <spatial = 0> (x, s, t, m, v) }",
            8,
            "spatial = 0; expected statistics per channel",
        ),
    ],
)
def test_training_forms_are_refused(text: str, opset: int, words: str) -> None:
    with pytest.raises(ModelError, match=words):
        run_passes(parse(text, opset), [UpgradeOpset()], PassContext())
