"""The roofline's arithmetic, against counts made by hand from the operators' definitions."""

import onnx
import onnx_ir as ir
import pytest

from convopt.analysis.roofline import Roof, conv_costs
from convopt.errors import InputError
from convopt.ir.precision import Precision


def _costs(text: str):
    proto = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {text}')
    return conv_costs(ir.from_proto(proto))


def test_grouped_conv() -> None:
    (cost,) = _costs(
        "g (float[2,6,9,8] x, float[4,3,3,2] w, float[4] b) => (float[2,4,5,4] y)"
        "{ y = Conv <group = 2, strides = [2, 2], pads = [1, 0, 1, 0]> (x, w, b) }"
    )
    assert (cost.m, cost.n, cost.k, cost.groups) == (2 * 5 * 4, 2, 3 * 3 * 2, 2)
    # Each of the 2 x 4 x 5 x 4 outputs is a sum of 3 channels x 3 x 2 products.
    assert cost.flop == 2 * (2 * 4 * 5 * 4) * (3 * 3 * 2)
    assert cost.nbytes == 4 * (2 * 6 * 9 * 8 + 4 * 3 * 3 * 2 + 4 + 2 * 4 * 5 * 4)


def test_transposed_conv() -> None:
    (cost,) = _costs(
        "g (float[1,6,5,5] x, float[6,2,2,2] w) => (float[1,4,10,10] y)"
        "{ y = ConvTranspose <group = 2, strides = [2, 2]> (x, w) }"
    )
    # Each of the 6 x 5 x 5 inputs meets 2 channels x 2 x 2 weights.
    assert cost.flop == 2 * (6 * 5 * 5) * (2 * 2 * 2)
    assert (cost.m, cost.n, cost.k, cost.groups) == (25, 2 * 2 * 2, 3, 2)


def test_half_precision_moves_half_the_bytes() -> None:
    (cost,) = _costs("g (float16[1,8,4,4] x, float16[8,8,1,1] w) => (float16[1,8,4,4] y) { y = Conv (x, w) }")
    assert cost.nbytes == 2 * (8 * 16 + 64 + 8 * 16)


def test_stored_halves_move_half_the_bytes() -> None:
    text = "g (float[1,8,4,4] x, float[8,8,1,1] w) => (float[1,8,4,4] y) { z = Conv (x, w) y = Conv (z, w) }"
    proto = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {text}')
    proto.graph.node[0].name, proto.graph.node[1].name = "a", "b"
    shape = onnx.helper.make_tensor_value_info("z", onnx.TensorProto.FLOAT, (1, 8, 4, 4))
    proto.graph.value_info.append(shape)
    whole = 8 * 16 + 64 + 8 * 16
    for name, bytes_each in (("fp32", 4), ("tf32", 4), ("fp16", 2), ("bf16", 2)):
        costs = conv_costs(ir.from_proto(proto), Precision(name, frozenset("b")))
        assert [cost.nbytes for cost in costs] == [bytes_each * whole, 4 * whole]


def test_the_roof_bounds_by_its_lower_side() -> None:
    (cost,) = _costs("g (float[1,8,4,4] x, float[8,8,1,1] w) => (float[1,8,4,4] y) { y = Conv (x, w) }")
    assert cost.intensity == 2048 / (4 * (128 + 64 + 128))
    thin, wide = Roof(flops=1e9, bandwidth=1e8), Roof(flops=1e9, bandwidth=1e12)
    assert (cost.bound(thin), cost.bound(wide)) == ("memory", "compute")
    assert cost.seconds(thin) == pytest.approx(cost.nbytes / 1e8)
    assert cost.seconds(wide) == pytest.approx(cost.flop / 1e9)


def test_unbound_shapes_are_refused_by_name() -> None:
    with pytest.raises(InputError, match="has no static shape"):
        _costs("g (float[N,8,4,4] x, float[8,8,1,1] w) => (float[N,8,4,4] y) { y = Conv (x, w) }")
