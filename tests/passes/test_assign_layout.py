"""Layouts: texts before and after, the copies that are made, and that they are the fewest bytes."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from math import prod
from pathlib import Path

import onnx_ir as ir
import pytest

from convopt.ir.groups import expand_groups
from convopt.ir.layout import CHANNELS_LAST, has_choice, layout_of
from convopt.ir.printing import model_text
from convopt.ir.values import static_shape
from convopt.passes import PassContext, run_passes
from convopt.passes.assign_layout import AssignLayout
from convopt.passes.group_kernels import GroupKernels
from tests.passes.grouping_cases import LAYOUTS
from tests.passes.support import assert_same
from tests.passes.test_group_kernels import prepared


def assign(model: ir.Model) -> list[str]:
    """Groups the model, assigns layouts; the names of the values that were copied."""
    run_passes(model, [GroupKernels()], PassContext())
    report = run_passes(model, [AssignLayout()], PassContext())[0]
    assert report.changed == len(report.notes) == len(relayouts(model))
    return [note.node for note in report.notes]


def relayouts(model: ir.Model) -> list[ir.Node]:
    return [n for n in model.graph if n.op_type == "Relayout"]


def copied_bytes(model: ir.Model) -> int:
    return sum(4 * prod(static_shape(n.outputs[0]) or ()) for n in relayouts(model))


@pytest.mark.parametrize("name", LAYOUTS)
def test_layout(name: str, golden: Callable[..., None]) -> None:
    model = prepared(LAYOUTS[name])
    before = ir.to_proto(model)
    run_passes(model, [GroupKernels()], PassContext())
    golden(model_text(model, limit=4), "before")
    run_passes(model, [AssignLayout()], PassContext())
    golden(model_text(model, limit=4), "after")

    for group in model.graph:
        for value in (*group.inputs, *group.outputs):
            assert value is not None
            if (
                group.op_type in ("Conv", "Pool", "Resize")
                and value.const_value is None
                and has_choice(value)
            ):
                assert layout_of(value) == CHANNELS_LAST, value.name
            if group.op_type == "Island":
                assert layout_of(value) != CHANNELS_LAST, value.name
    assert all(layout_of(v) != CHANNELS_LAST for v in (*model.graph.inputs, *model.graph.outputs))
    again = run_passes(model, [AssignLayout()], PassContext())[0]
    assert again.changed == 0, again.notes

    expand_groups(model.graph)
    assert_same(before, ir.to_proto(model))


def test_no_orphans() -> None:
    expected = {f"test_layout[{name}].{part}.txt" for name in LAYOUTS for part in ("before", "after")}
    found = {p.name for p in (Path(__file__).parent / "golden").glob("test_layout*")}
    assert found == expected


W = "float[8,8,1,1] w"


def test_one_copy_of_a_value_for_all_who_want_it() -> None:
    model = prepared(LAYOUTS["a copy for all"])
    assert assign(model).count("x") == 1


def test_channels_at_the_end_outside_cost_nothing() -> None:
    assert assign(prepared(LAYOUTS["channels at the end outside"])) == []


def test_a_chain_keeps_one_order() -> None:
    """Between two convolutions nothing is copied, however long the way."""
    chain = "  ".join(f"a{i + 1} = {op} (a{i})" for i, op in enumerate(["Relu", "Neg", "GlobalMaxPool"] * 3))
    text = (
        f"g (float[1,8,6,6] x, {W}) => (float[1,8,1,1] y) {{ a0 = Conv (x, w)  {chain}  y = Conv (a9, w) }}"
    )
    assert assign(prepared(text)) == ["x"]


def test_few_bytes_are_copied_where_greed_copies_many() -> None:
    """A small value, made large by Resize-free means, meets a row-major reader: copy it while it is small.

    Whoever takes each value's order from its producer carries channels-last through the Concat and copies its
    whole result; the cheapest place is in front, at the small operand.
    """
    text = f"""g (float[1,8,4,4] x, {W}, float[1,120,4,4] x2) => (float[1,128,4,4] y) {{
        a = Conv (x, w)  c = Concat <axis = 1> (a, x2)  d = Relu (c)  e = Neg (d)  y = Asinh (e) }}"""
    model = prepared(text)
    assert assign(model) == ["x", "a"]
    assert copied_bytes(model) == 2 * 8 * 16 * 4


def test_many_small_readers_against_one_large() -> None:
    """Five convolutions read parts of a value that comes row-major: one copy of the whole is cheapest."""
    parts = ", ".join(f"s{i}" for i in range(4))
    convs = "  ".join(f"y{i} = Conv (s{i}, w)" for i in range(4))
    outputs = ", ".join(f"float[1,8,4,4] y{i}" for i in range(4))
    text = f"""g (float[1,32,4,4] x, {W}) => ({outputs}) {{
        a = Asinh (x)  {parts} = Split <axis = 1, num_outputs = 4> (a)  {convs} }}"""
    model = prepared(text)
    copies = assign(model)
    assert copied_bytes(model) == 2 * 32 * 16 * 4  # in: once, whole or in parts; out: every y
    assert len(copies) in (5, 8)


CUTS = {
    "a diamond": f"""g (float[1,8,4,4] x, {W}) => (float[1,8,4,4] y, float[1,8,4,4] z) {{
        a = Conv (x, w)  r = Asinh (x)  s = Add (a, r)  y = Conv (s, w)  z = Acosh (s) }}""",
    "two ways round": f"""g (float[1,8,4,4] x, {W}) => (float[1,24,4,4] y) {{
        a = Conv (x, w)  b = Asinh (a)  c = Relu (a)  d = Concat <axis = 1> (a, b, c)  y = Neg (d) }}""",
    "large in the middle": f"""g (float[1,8,4,4] x, {W}, float[8,8,1,1] v) => (float[1,8,4,4] y) {{
        a = Conv (x, w)  b = Asinh (a)  c = Concat <axis = 1> (a, b, b, a)  d = Relu (c)
        e = Neg (d)  f, g1, h, i = Split <axis = 1, num_outputs = 4> (e)  j = Acosh (f)  k = Conv (i, v)
        y = Add (j, k) }}""",
}


@pytest.mark.parametrize("name", CUTS)
def test_no_assignment_copies_less(name: str) -> None:
    """All ways to choose the orders of the free groups, by brute force."""
    model = prepared(CUTS[name])
    run_passes(model, [GroupKernels()], PassContext())
    best = min(
        cost(model, dict(zip(free(model), choice, strict=True)))
        for choice in product([True, False], repeat=len(free(model)))
    )
    assign(model)
    assert copied_bytes(model) == best


def free(model: ir.Model) -> list[str]:
    return [n.name or "" for n in model.graph if n.op_type in ("Pointwise", "Move")]


def cost(model: ir.Model, last: dict[str, bool]) -> int:
    """Bytes copied if the groups in `last` work channels-last or not: one copy per value and order wanted."""

    def side(node: ir.Node | None) -> bool:
        if node is None or node.op_type == "Island":
            return False
        return last.get(node.name or "", True)  # convolutions want channels-last

    total = 0
    values = [*model.graph.inputs, *(v for n in model.graph for v in n.outputs)]
    for value in values:
        if not has_choice(value):
            continue
        wanted = {side(consumer) for consumer in value.consumers()}
        wanted |= {False} if value.is_graph_output() else set()
        total += len(wanted - {side(value.producer())}) * 4 * prod(static_shape(value) or ())
    return total
