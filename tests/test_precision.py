"""Reduced precision end to end, against the float64 oracle."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx_ir as ir
import pytest

import convopt
from convopt.errors import InputError, VerificationError
from convopt.targets import host_cpu
from tests.oracle.evaluate import evaluate
from tests.passes.support import draw, parse

pytestmark = pytest.mark.kernels

TEXT = """g (float[2,3,17,19] x, float[24,3,3,3] w, float[24] b, float[24,1,3,3] d, float[40,24,1,1] u,
           float[40,40,3,3] v, float[10,80] m) => (float[2,10] y) {
    stem = Conv <pads = [1, 1, 1, 1], strides = [2, 2]> (x, w, b)  a = Relu (stem)
    depth = Conv <pads = [1, 1, 1, 1], group = 24> (a, d)  e = Clip (depth)
    wide = Conv (e, u)
    three = Conv <pads = [1, 1, 1, 1]> (wide, v)  sum = Add (three, wide)  f = Relu (sum)
    pooled = MaxPool <kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]> (f)
    smooth = AveragePool <kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]> (f)
    both = Concat <axis = 1> (pooled, smooth)
    means = GlobalAveragePool (both)
    rows = Flatten (means)
    logits = Gemm <transB = 1> (rows, m)
    y = Softmax (logits)
}"""


def model() -> ir.Model:
    """Weights of both signs, whose products neither grow nor vanish from layer to layer."""
    found, rng = parse(TEXT), np.random.default_rng(3)
    for name, value in found.graph.initializers.items():
        shape = tuple(value.shape or ())
        fan_in = int(np.prod(shape[1:])) if len(shape) > 1 else 1
        array = (rng.standard_normal(shape) / np.sqrt(fan_in)).astype(np.float32)
        value.const_value = ir.Tensor(array, name=name)
    return found


def check(module: convopt.CompiledModule, source: ir.Model, tolerance: float) -> float:
    proto = ir.to_proto(source)
    feeds = draw(proto, {}, seed=4)
    expected, found = evaluate(proto, feeds), module.run(dict(feeds))
    worst = 0.0
    for name, array in expected.items():
        assert found[name].dtype == np.float32
        error = float(np.abs(found[name] - array).max() / np.abs(array).max())
        assert error <= tolerance  # a NaN is not
        worst = max(worst, error)
    return worst


def test_fp16_is_close_and_takes_less_memory() -> None:
    wide = convopt.optimize(model(), threads=2)
    narrow = convopt.optimize(model(), threads=2, precision="fp16")
    assert all(place.where != "fallback" for place in narrow.placement)
    check(wide, model(), 1e-5)
    assert check(narrow, model(), 2e-3) > 1e-5, "nothing was rounded"
    before, after = (m.programs[-1].program.arena_bytes for m in (wide, narrow))
    assert after < 0.6 * before
    assert narrow.precision == "fp16" and "fp16" in narrow.summary()


def test_keeping_every_node_is_float32() -> None:
    nodes = [place.node for place in convopt.optimize(model(), threads=1).placement]
    kept = convopt.optimize(model(), threads=1, precision="fp16", keep_fp32=nodes)
    check(kept, model(), 1e-5)
    assert f"{len(nodes)} nodes kept in fp32" in kept.summary()


def test_verify_keeps_what_overflows_in_float32() -> None:
    """A layer beyond float16's 65504, and one that brings its results back."""
    source = model()
    for name, factor in (("d", 1e6), ("u", 1e-6)):
        value = source.graph.initializers[name]
        assert value.const_value is not None
        value.const_value = ir.Tensor(value.const_value.numpy() * np.float32(factor), name=name)
    blind = convopt.optimize(source, threads=2, precision="fp16")
    with np.errstate(invalid="ignore"), pytest.raises(AssertionError):
        check(blind, source, 2e-3)
    module = convopt.optimize(source, threads=2, precision="fp16", verify=True)
    check(module, source, 4e-3)
    kept = module.programs[-1].program.meta["keep_fp32"]
    assert kept == ["depth", "e"]
    assert all(place.where != "fallback" for place in module.placement)
    assert "2 nodes kept in fp32: depth, e" in module.summary()
    with pytest.raises(VerificationError):
        convopt.optimize(source, threads=2, precision="fp16", verify="raise")


def test_each_pass_is_checked_with_the_rounding_it_may_do() -> None:
    convopt.optimize(model(), threads=1, precision="fp16", check="each-pass")


def test_a_saved_module_keeps_its_precision(tmp_path: object) -> None:
    path = f"{tmp_path}/m.convopt"
    convopt.optimize(model(), threads=1, precision="fp16").save(path)
    loaded = convopt.load(path)
    assert loaded.precision == "fp16"
    check(loaded, model(), 2e-3)


def test_wrong_options() -> None:
    with pytest.raises(InputError, match="precision is 'int8'; expected fp32, tf32, fp16, bf16"):
        convopt.optimize(model(), precision="int8")
    with pytest.raises(InputError, match="keep_fp32 is the text 'stem'; expected a list"):
        convopt.optimize(model(), precision="fp16", keep_fp32="stem")
    with pytest.raises(InputError, match="keep_fp32 goes with precision"):
        convopt.optimize(model(), keep_fp32=["stem"])
    with pytest.raises(InputError, match="no node of the optimized model is named 'x'"):
        convopt.optimize(model(), precision="fp16", keep_fp32=["x"])


@pytest.fixture(params=["amx", "dot"])
def emulated(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """This machine as if it had the unit, by plain loops."""
    target = replace(host_cpu(), bf16=request.param, emulated=True)
    monkeypatch.setattr("convopt.arguments.host_cpu", lambda: target)
    return str(request.param)


def test_bf16_through_the_matrix_unit(emulated: str) -> None:
    """Products of bfloat16 in every layer that has pairs of channels; the stem's three have none."""
    module = convopt.optimize(model(), threads=2, precision="bf16")
    assert check(module, model(), 2e-2) > 1e-4
    schedules = {p.node: p.detail.split()[-1] for p in module.placement if p.op == "Conv"}
    unit = {"amx": "amx", "dot": "direct-pairs"}[emulated]
    assert schedules["wide"] == unit and schedules["three"] in (unit, "winograd"), schedules
    assert schedules["stem"] == "direct" and schedules["depth"] == "depthwise"


def test_a_kept_layer_multiplies_in_float32(emulated: str) -> None:
    module = convopt.optimize(model(), threads=1, precision="bf16", keep_fp32=["wide"])
    details = {p.node: p.detail for p in module.placement}
    assert details["wide"].endswith(" direct")
    check(module, model(), 2e-2)


@pytest.mark.skipif(host_cpu().bf16 is None, reason="this CPU has neither AMX nor AVX512-BF16")
def test_bf16_native() -> None:
    for threads in (1, 2):
        module = convopt.optimize(model(), threads=threads, precision="bf16", verify=True)
        assert all(place.where != "fallback" for place in module.placement)
        check(module, model(), 3e-2)


@pytest.mark.skipif(host_cpu().bf16 is not None, reason="this CPU multiplies in bfloat16")
def test_bf16_is_refused_in_words() -> None:
    with pytest.raises(InputError, match=r'precision "bf16": cpu:\S+ has neither AMX nor AVX512-BF16'):
        convopt.optimize(model(), precision="bf16")


@pytest.mark.opencl
def test_kept_weights_are_not_rounded_on_a_device() -> None:
    """Small integers are stored in 16 bits as they are; weights 2^-12 above 1 are not."""
    source = parse("""g (float[1,8,5,7] x, float[6,8,3,3] w) => (float[1,6,5,7] y) {
    r = Relu (x)
    [c] y = Conv <pads = [1,1,1,1]> (r, w)
}""")
    weight = np.full((6, 8, 3, 3), 1 + 2.0**-12, np.float32)
    source.graph.initializers["w"].const_value = ir.Tensor(weight, name="w")
    proto = ir.to_proto(source)
    rng = np.random.default_rng(0)
    feeds = {"x": rng.integers(1, 5, (1, 8, 5, 7)).astype(np.float32)}
    expected = evaluate(proto, feeds)

    def compiled(keep_fp32: list[str]) -> convopt.CompiledModule:
        return convopt.optimize(proto, target="opencl", precision="fp16", keep_fp32=keep_fp32, verify=False)

    def errors(module: convopt.CompiledModule) -> list[float]:
        found = module.run(feeds)
        return [float(np.abs(found[n] - a).max() / np.abs(a).max()) for n, a in expected.items()]

    rounded = compiled([])
    products = [place.node for place in rounded.placement if place.op == "Conv"]
    assert products == ["c"] and min(errors(rounded)) > 1e-4
    assert max(errors(compiled(products))) < 1e-6
