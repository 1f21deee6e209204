"""The runner: order, callback, names in errors, the log; and the check by data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx_ir as ir
import pytest

from convopt.errors import ConvoptError, ModelError
from convopt.ir.printing import model_text
from convopt.passes import GRAPH_PASSES, Note, Pass, PassContext, PassError, PassReport, run_passes, without
from convopt.passes.check import CheckEachPass, PassCheckError, relative_error
from tests.passes.support import parse

TEXT = """g (float[1,2,5,5] x, float[4,2,3,3] w, float[4] s, float[4] t, float[4] m, float[4] v)
    => (float[1,4,3,3] y) { c = Conv (x, w)  y = BatchNormalization (c, s, t, m, v) }"""


@dataclass(frozen=True)
class Spoil:
    """A wrong pass: halves the weight."""

    name: ClassVar[str] = "spoil"

    def run(self, model: ir.Model, context: PassContext) -> PassReport:
        value = model.graph.initializers["w"]
        assert value.const_value is not None
        value.const_value = ir.tensor(value.const_value.numpy() / 2, name="w")
        return PassReport(1)


@dataclass(frozen=True)
class Fail:
    error: Exception
    name: ClassVar[str] = "fail"

    def run(self, model: ir.Model, context: PassContext) -> PassReport:
        raise self.error


def test_callback_sees_every_pass_in_order() -> None:
    seen: list[tuple[int, str, int]] = []

    def after(index: int, one: Pass, model: ir.Model, report: PassReport) -> None:
        seen.append((index, one.name, report.changed))

    context = PassContext()
    reports = run_passes(parse(TEXT), GRAPH_PASSES, context, after)
    assert [(i, n) for i, n, _ in seen] == [(i, p.name) for i, p in enumerate(GRAPH_PASSES)]
    assert [r for _, r in context.log] == list(reports)
    assert ("fold-batchnorm", Note("c", "BatchNormalization 'y' folded in")) in context.notes("c")


def test_names_are_distinct() -> None:
    assert len({p.name for p in GRAPH_PASSES}) == len(GRAPH_PASSES)


def test_skip_by_name() -> None:
    passes = without(GRAPH_PASSES, ["fold-batchnorm"])
    model = parse(TEXT)
    run_passes(model, passes, PassContext())
    assert [n.op_type for n in model.graph] == ["Conv", "BatchNormalization"]
    with pytest.raises(ConvoptError, match="no pass is named 'fold-bn'; there are inline-functions"):
        without(GRAPH_PASSES, ["fold-bn"])


def test_unforeseen_error_names_the_pass_and_those_before() -> None:
    cause = KeyError("gone")
    with pytest.raises(PassError, match="pass fail failed, after cleanup, spoil: KeyError: 'gone'") as caught:
        run_passes(parse(TEXT), [GRAPH_PASSES[-1], Spoil(), Fail(cause)], PassContext())
    assert caught.value.__cause__ is cause


def test_the_models_error_keeps_its_text() -> None:
    with pytest.raises(ModelError) as caught:
        run_passes(parse(TEXT), [Spoil(), Fail(ModelError("the conv is wrong"))], PassContext())
    assert str(caught.value) == "the conv is wrong"
    assert caught.value.__notes__ == ["raised in pass fail, after spoil"]


def test_check_names_the_guilty_pass() -> None:
    model, context = parse(TEXT), PassContext()
    check = CheckEachPass(model, context)
    with pytest.raises(PassCheckError, match=r"pass spoil: output 'y' differs by .* of its scale"):
        run_passes(model, [*GRAPH_PASSES[:3], Spoil(), *GRAPH_PASSES[3:]], context, check)


def test_check_accepts_right_passes() -> None:
    model, context = parse(TEXT), PassContext()
    check = CheckEachPass(model, context)
    run_passes(model, GRAPH_PASSES, context, check)
    assert [n.node for n in check.notes if not n.refused] == [
        "canonicalise-conv",
        "fold-batchnorm",
        "cleanup",
    ]
    assert not [n for n in check.notes if n.refused]


def test_check_with_an_overriding_shape() -> None:
    text = "g (float[10,2,32,32] x, float[4,2,3,3] w) => (float[10,4,30,30] y) { y = Conv (x, w) }"
    model, context = parse(text), PassContext(shapes={"x": (1, 2, 9, 7)})
    check = CheckEachPass(model, context)
    run_passes(model, GRAPH_PASSES, context, check)
    assert check.notes and not [n for n in check.notes if n.refused]


def test_not_checkable_is_said_and_the_rest_is_checked() -> None:
    """onnxruntime refuses dilation beside SAME; once the pads are written out it is the reference."""
    text = """g (float[1,2,9,9] x, float[4,2,3,3] w, float[4] s, float[4] t, float[4] m, float[4] v)
        => (float[1,4,9,9] y) {
        c = Conv <auto_pad = "SAME_UPPER", dilations = [2, 2]> (x, w)
        y = BatchNormalization (c, s, t, m, v) }"""
    model, context = parse(text), PassContext()
    check = CheckEachPass(model, context)
    run_passes(model, GRAPH_PASSES, context, check)
    refused = [n.text for n in check.notes if n.refused]
    assert refused and refused[0].startswith("not checkable the model as given: ")
    assert "fold-batchnorm" in [n.node for n in check.notes if not n.refused]


def test_unbound_shapes_are_not_checkable() -> None:
    model, context = (
        parse("g (float[N,2] x) => (float[N,2] y) { a = Identity (x)  y = Relu (a) }"),
        PassContext(),
    )
    check = CheckEachPass(model, context)
    run_passes(model, GRAPH_PASSES, context, check)
    assert all("shapes are not bound" in n.text for n in check.notes if n.refused)


def test_relative_error_of_special_values() -> None:
    nan, inf = np.nan, np.inf
    same = np.array([nan, inf, -inf, 2.0], np.float32)
    assert relative_error(same, same) == 0
    assert not relative_error(same, np.array([nan, inf, -inf, nan], np.float32)) <= 1e9
    assert relative_error(same, np.array([nan, inf, -inf, 1.0], np.float32)) == 0.5
    assert not relative_error(same, np.array([nan, -inf, -inf, 2.0], np.float32)) <= 1e9


def test_text_elides_large_constants() -> None:
    text = model_text(parse(TEXT), limit=4)
    assert 'float[4,2,3,3] w = ["location": "elided"]' in text
    assert "float[4] s =  {" in text
    assert "float[4,2,3,3] w =  {" in model_text(parse(TEXT), limit=1000)
