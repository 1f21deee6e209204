"""Every pass on small graphs: the text before and after, the count, idempotence, and equality by data."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import onnx_ir as ir
import pytest

from convopt.ir.printing import model_text
from convopt.passes import PassContext, run_passes
from convopt.passes.fold_constants import FoldConstants
from tests.passes.cases import CASES, Case
from tests.passes.support import assert_same, parse


@pytest.mark.parametrize("case", CASES, ids=[c.name for c in CASES])
def test_pass(case: Case, golden: Callable[..., None]) -> None:
    model = parse(case.text, case.opset)
    if case.opset >= 18 and case.one.name not in ("fold-constants", "inline-functions", "bind-shapes"):
        run_passes(model, [FoldConstants()], PassContext())  # passes run on inferred shapes
    before, text = ir.to_proto(model), model_text(model, limit=12)
    report = run_passes(model, [case.one], PassContext(shapes=case.shapes))[0]
    after = ir.to_proto(model)
    golden(text, "before")
    golden(model_text(model, limit=12), "after")
    assert report.changed == case.changed, report
    assert_same(before, after, {"x": (2, 3, 5), "x2": (2, 3, 1)} if case.shapes else {})

    again = run_passes(model, [case.one], PassContext(shapes=case.shapes))[0]
    assert again.changed == 0, again
    assert ir.to_proto(model).SerializeToString(deterministic=True) == after.SerializeToString(
        deterministic=True
    )


def test_no_orphans() -> None:
    """A golden file without its test is a leftover; --update-golden doesn't delete it."""
    expected = {f"test_pass[{c.name}].{part}.txt" for c in CASES for part in ("before", "after")}
    found = {p.name for p in (Path(__file__).parent / "golden").glob("test_pass*")}
    assert found == expected
