"""Grouping: texts before and after, refusals, and that expanding gives the model back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import onnx_ir as ir
import pytest

from convopt.bench.real_models import MODELS, fetch
from convopt.bench.sample_inputs import sample_inputs
from convopt.frontends.onnx_file import load
from convopt.ir.groups import DOMAIN, REFUSED, body_of, expand_groups
from convopt.ir.printing import model_text
from convopt.passes import GRAPH_PASSES, PassContext, PassReport, run_passes
from convopt.passes.fold_constants import FoldConstants
from convopt.passes.group_kernels import GroupKernels
from tests.passes.grouping_cases import GROUPS, REFUSALS, SUBGRAPHS
from tests.passes.support import assert_same, parse, run_unoptimised


def group(model: ir.Model, **options: tuple[tuple[str, str], ...]) -> PassReport:
    return run_passes(model, [GroupKernels(**options)], PassContext())[0]


def prepared(text: str) -> ir.Model:
    """As the graph passes leave it: with shapes."""
    model = parse(text)
    run_passes(model, [FoldConstants()], PassContext())
    return model


@pytest.mark.parametrize("name", [*GROUPS, *SUBGRAPHS])
def test_group(name: str, golden: Callable[..., None]) -> None:
    model = prepared((GROUPS | SUBGRAPHS)[name])
    before = ir.to_proto(model)
    golden(model_text(model, limit=4), "before")
    report = group(model)
    after = model_text(model, limit=4)
    golden(after, "after")
    assert all(node.domain == DOMAIN for node in model.graph)
    assert report.changed == len(model.graph)

    assert group(model).changed == 0
    assert model_text(model, limit=4) == after

    expand_groups(model.graph)
    assert not any(node.domain == DOMAIN for node in model.graph.all_nodes())
    assert_same(before, ir.to_proto(model))


def test_no_orphans() -> None:
    expected = {
        f"test_group[{name}].{part}.txt" for name in [*GROUPS, *SUBGRAPHS] for part in ("before", "after")
    }
    found = {p.name for p in (Path(__file__).parent / "golden").glob("test_group*")}
    assert found == expected


@pytest.mark.parametrize("name", SUBGRAPHS)
def test_captured_values_are_operands_of_the_island(name: str) -> None:
    model = prepared(SUBGRAPHS[name])
    group(model)
    *_, island = (n for n in model.graph if n.op_type == "Island")
    body, operands = body_of(island), [v.name for v in island.inputs if v is not None]
    assert [v.name for v in body.inputs] == operands
    assert len(set(operands)) == len(operands)
    assert ("a" in operands) != ("a" in body.initializers)
    body.clone()  # reads nothing from around it


@pytest.mark.parametrize("reason", REFUSALS)
def test_refusals(reason: str) -> None:
    model = parse(REFUSALS[reason])
    report = group(model)
    (island,) = model.graph
    (node,) = body_of(island)
    assert (island.op_type, node.metadata_props[REFUSED]) == ("Island", reason)
    assert [(n.text, n.refused) for n in report.notes] == [(reason, True)]


def test_later_refusals_are_obeyed() -> None:
    model = prepared(GROUPS["a conv with its activation"])
    report = group(model, refused=(("c", "it crashed the compiler"),))
    kinds = [n.op_type for n in model.graph]
    assert kinds == ["Island", "Pointwise"]
    assert ("c", "it crashed the compiler") in [(n.node, n.text) for n in report.notes if n.refused]


def test_a_group_has_a_bounded_number_of_nodes_and_inputs() -> None:
    chain = "  ".join(f"a{i + 1} = Relu (a{i})" for i in range(60))
    model = prepared(f"g (float[2,3] x) => (float[2,3] y) {{ a0 = Neg (x)  {chain}  y = Abs (a60) }}")
    group(model)
    sizes = [len(body_of(n)) for n in model.graph]
    assert sum(sizes) == 62 and max(sizes) <= 24
    inputs = ", ".join(f"float[2,3] x{i}" for i in range(30))
    chain = "  ".join(f"a{i} = Add (a{i - 1}, x{i})" for i in range(1, 30))
    model = prepared(f"g ({inputs}) => (float[2,3] y) {{ a0 = Neg (x0)  {chain}  y = Abs (a29) }}")
    group(model)
    assert sum(len(body_of(n)) for n in model.graph) == 31
    assert max(len(n.inputs) for n in model.graph) <= 12


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_real_models_expand_to_themselves(name: str) -> None:
    model, inputs = load(fetch(name)), sample_inputs(name, 1)
    context = PassContext(shapes={key: array.shape for key, array in inputs.items()})
    run_passes(model, GRAPH_PASSES, context)
    before = ir.to_proto(model)
    group(model)
    text = model_text(model)
    assert group(model).changed == 0 and model_text(model) == text
    expand_groups(model.graph)
    expected, found = run_unoptimised(before, inputs), run_unoptimised(ir.to_proto(model), inputs)
    for output, array in expected.items():
        assert (found[output] == array).all(), output  # the same operators on the same numbers


def test_nothing_computes_an_output_without_elements() -> None:
    model = parse("g (float[0,3] x) => (float[0,3] y) { y = Relu (x) }")
    report = group(model)
    assert [n.op_type for n in model.graph] == ["Empty"]
    assert not any(n.refused for n in report.notes)
