"""A kernel that is wrong or can't be compiled: found and replaced, or an error where asked for."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import convopt
from convopt.errors import InputError, VerificationError
from convopt.ir.groups import body_of
from convopt.passes import PassContext, PassReport
from convopt.passes.check import PassCheckError
from convopt.passes.group_kernels import GroupKernels
from convopt.schedules.conv_direct import DirectConv
from convopt.schedules.conv_problem import Array, ConvProblem
from convopt.selection.choose import choose_conv
from tests.passes.support import draw, parse, run_unoptimised

pytestmark = pytest.mark.kernels

TEXT = """g (float[1,8,6,7] x, float[16,8,1,1] w, float[24,16,1,1] v, float[8,24,1,1] u, float[24] b)
    => (float[1,8,6,7] y) {
    first = Conv (x, w)  a = Relu (first)
    second = Conv (a, v, b)  c = Relu (second)
    y = Conv (c, u)
}"""


def model() -> ir.Model:
    return parse(TEXT)


def spoil(monkeypatch: pytest.MonkeyPatch, features: int, factor: float) -> None:
    """The packed weights of convolutions with so many features are wrong."""
    pack = DirectConv.pack

    def wrong(
        self: DirectConv, problem: ConvProblem, target: Any, weight: Array, bias: Array | None
    ) -> list[Array]:
        packed = pack(self, problem, target, weight, bias)
        if problem.features == features:
            packed[0] = packed[0] * np.float32(factor)
        return packed

    monkeypatch.setattr(DirectConv, "pack", wrong)


def places(module: convopt.CompiledModule) -> dict[str, tuple[str, str]]:
    return {p.node: (p.where, p.detail) for p in module.placement}


def assert_right(module: convopt.CompiledModule) -> None:
    proto = ir.to_proto(model())
    feeds = draw(proto, {}, seed=5)
    expected = run_unoptimised(proto, feeds)["y"]
    np.testing.assert_allclose(
        module.run(dict(feeds))["y"], expected, rtol=0, atol=1e-5 * np.abs(expected).max()
    )


def test_it_says_when_it_begins_and_ends() -> None:
    seen: list[tuple[str, int, int]] = []
    convopt.optimize(model(), verify=True, progress=lambda *step: seen.append(step))
    assert [step for step in seen if step[0] == "verify"] == [
        ("verify", 0, 2),
        ("verify", 1, 2),
        ("verify", 2, 2),
    ]
    assert seen[-1] == ("verify", 2, 2)


def test_right_kernels_are_reported_as_such() -> None:
    module = convopt.optimize(model(), verify=True, threads=1)
    assert all(where == "compiled" for where, _ in places(module).values())
    report = module.programs[-1].program.meta["verified"]
    assert report.startswith("equal to the model in onnxruntime within ")
    assert_right(module)
    by_name = convopt.optimize(model(), verify={}, threads=1)  # none given: all random
    assert by_name.programs[-1].program.meta["verified"] == report


@pytest.mark.parametrize("factor", [1.01, float("nan")])
def test_the_guilty_group_falls_back(factor: float, monkeypatch: pytest.MonkeyPatch) -> None:
    spoil(monkeypatch, 24, factor)
    unverified = convopt.optimize(model(), threads=1)
    with pytest.raises(AssertionError):
        assert_right(unverified)
    module = convopt.optimize(model(), verify=True, threads=1)
    found = places(module)
    for node in ("second", "c"):
        where, detail = found[node]
        assert where == "fallback"
        assert detail.startswith("verification: c differs by ") and "at most 1e-04 expected" in detail
    assert {found[node][0] for node in ("first", "a", "y")} == {"compiled"}
    assert "c differs by" in module.summary()
    assert_right(module)


def test_several_guilty_groups_fall_back(monkeypatch: pytest.MonkeyPatch) -> None:
    spoil(monkeypatch, 16, 1.01)
    spoil(monkeypatch, 24, 0.98)
    module = convopt.optimize(model(), verify=True, threads=1)
    found = places(module)
    assert [node for node, (where, _) in found.items() if where == "fallback"] == [
        "first",
        "a",
        "second",
        "c",
    ]
    assert_right(module)


def test_raise(monkeypatch: pytest.MonkeyPatch) -> None:
    convopt.optimize(model(), verify="raise", threads=1)
    spoil(monkeypatch, 8, 1.01)
    with pytest.raises(VerificationError, match=r"output 'y' differs from onnxruntime by .* at most 1e-04"):
        convopt.optimize(model(), verify="raise", threads=1)


def test_an_error_that_only_some_data_show(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative inputs end at the first Relu, whose weights are positive: given ones are used instead."""
    spoil(monkeypatch, 16, 1.01)
    negative = -np.ones((1, 8, 6, 7), np.float32)
    module = convopt.optimize(model(), verify={"x": negative}, threads=1)
    assert all(where == "compiled" for where, _ in places(module).values())
    module = convopt.optimize(model(), verify={"x": -negative}, threads=1)
    assert places(module)["first"][0] == "fallback"


def test_arrays_for_no_input() -> None:
    with pytest.raises(InputError, match="verify: the model has no input 'z'; expected x"):
        convopt.optimize(model(), verify={"z": np.ones(3, np.float32)}, threads=1)


def test_every_program_is_verified(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those that are compiled at a later call."""
    spoil(monkeypatch, 24, 1.01)
    dynamic = parse(TEXT.replace("1,8,6,7", "N,8,6,7"))
    module = convopt.optimize(dynamic, verify=True, threads=1)
    module(np.ones((2, 8, 6, 7), np.float32))
    assert places(module)["second"][0] == "fallback"


@dataclass(frozen=True)
class NoCode(DirectConv):
    """A schedule that the compiler process refuses."""

    def apply(self, problem: Any, target: Any, symbol: str) -> Any:
        raise RuntimeError("no code for this one")


def test_a_kernel_that_can_not_be_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    def choose(problem: ConvProblem, *arguments: Any) -> Any:
        schedule = choose_conv(problem, *arguments)
        if problem.features != 24:
            return schedule
        return NoCode(**{f.name: getattr(schedule, f.name) for f in fields(DirectConv)})

    monkeypatch.setattr("convopt.selection.plans_cpu.choose_conv", choose)
    module = convopt.optimize(model(), threads=1)
    found = places(module)
    assert found["second"] == found["c"] == ("fallback", "RuntimeError: no code for this one")
    assert {found[node][0] for node in ("first", "a", "y")} == {"compiled"}
    assert_right(module)


def test_each_pass_is_checked_down_to_the_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """A grouping that changes a body is named, as any other pass."""
    run = GroupKernels.run

    def wrong(self: GroupKernels, model: ir.Model, context: PassContext) -> PassReport:
        report = run(self, model, context)
        for group in model.graph:
            for node in body_of(group):
                if node.op_type == "Relu":
                    node.op_type = "Tanh"
        return report

    graph = onnx.parser.parse_graph("g (float[2,3] x) => (float[2,3] y) { t = Add (x, x) y = Relu (t) }")
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=9)
    monkeypatch.setattr(GroupKernels, "run", wrong)
    with pytest.raises(PassCheckError, match="group-kernels"):
        convopt.optimize(model, check="each-pass", threads=1)
    monkeypatch.setattr(GroupKernels, "run", run)
    convopt.optimize(model, check="each-pass", threads=1)


def test_strings_are_compared_too() -> None:
    text = """g (int64[3] x) => (string[3] y, float[3] z) {
        y = Cast <to = 8> (x)  f = Cast <to = 1> (x)  z = Neg (f) }"""
    module = convopt.optimize(parse(text), threads=1, verify="raise")
    assert module.programs[0].program.meta["verified"].startswith("equal to the model")
    assert module(np.arange(3))[0].tolist() == ["0", "1", "2"]


def test_weights_in_a_file_beside_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of kernels and of a node that falls back: onnxruntime gets models in memory, without a folder."""
    rng = np.random.default_rng(0)
    weight, matrix = rng.standard_normal((3, 3, 1, 1)), rng.integers(-9, 9, (5, 4))
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[1,3,2,5] x, int8[6,5] z) => (float[1,3,2,5] y, int32[6,4] q) {
        y = Conv (x, w)
        q = MatMulInteger (z, m)
    }"""
    proto = onnx.parser.parse_model(text)
    for name, array in (("w", weight.astype(np.float32)), ("m", matrix.astype(np.int8))):
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    folder = tmp_path / "model"
    folder.mkdir()
    path = folder / "m.onnx"
    onnx.save(proto, path, save_as_external_data=True, location="m.bin", size_threshold=0)
    monkeypatch.chdir(tmp_path)
    module = convopt.optimize(path, verify="raise", check="each-pass", threads=1)
    assert places(module)["q"][0] == "fallback"
    module.save(tmp_path / "m.convopt")
    (folder / "m.bin").unlink()
    x, z = rng.standard_normal((1, 3, 2, 5)).astype(np.float32), rng.integers(-9, 9, (6, 5)).astype(np.int8)
    y, q = convopt.load(tmp_path / "m.convopt")(x, z)
    np.testing.assert_allclose(y, np.einsum("kcij,nchw->nkhw", weight, x), rtol=0, atol=1e-5)
    np.testing.assert_array_equal(q, z.astype(np.int32) @ matrix)
