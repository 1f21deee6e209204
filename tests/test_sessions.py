"""Arrays of the element types that numpy lacks, through onnxruntime and through whole models with islands."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

import convopt
from convopt.sessions import run_session

TYPES = {
    "bfloat16": TensorProto.BFLOAT16,
    "float8_e4m3fn": TensorProto.FLOAT8E4M3FN,
    "float8_e4m3fnuz": TensorProto.FLOAT8E4M3FNUZ,
    "float8_e5m2": TensorProto.FLOAT8E5M2,
    "float8_e5m2fnuz": TensorProto.FLOAT8E5M2FNUZ,
    "uint4": TensorProto.UINT4,
    "int4": TensorProto.INT4,
    "float32": TensorProto.FLOAT,
}
SHAPE = (5, 3)  # odd: the last byte of packed elements is half full


def values(dtype: str) -> np.ndarray:
    """Small integers, which every type holds exactly; negative ones where there are."""
    first = 0 if dtype == "uint4" else -7
    return np.arange(first, first + 15).reshape(SHAPE).astype(np.float32)


def casts(dtype: str) -> onnx.ModelProto:
    """y = x as float32, z = y as x's type."""
    number = TYPES[dtype]
    graph = helper.make_graph(
        [
            helper.make_node("Cast", ["x"], ["y"], to=TensorProto.FLOAT),
            helper.make_node("Cast", ["y"], ["z"], to=number),
        ],
        "g",
        [helper.make_tensor_value_info("x", number, SHAPE)],
        [
            helper.make_tensor_value_info("y", TensorProto.FLOAT, SHAPE),
            helper.make_tensor_value_info("z", number, SHAPE),
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def typed(dtype: str) -> np.ndarray:
    native = np.dtype(getattr(ml_dtypes, dtype, None) or dtype)
    return values(dtype).astype(native)


@pytest.mark.parametrize("dtype", TYPES)
def test_every_type_goes_in_and_comes_out(dtype: str) -> None:
    session = ort.InferenceSession(casts(dtype).SerializeToString(), providers=["CPUExecutionProvider"])
    z, y = run_session(session, ["z", "y"], {"x": typed(dtype)})
    np.testing.assert_array_equal(y, values(dtype))
    assert z.dtype.name == dtype and z.shape == SHAPE
    np.testing.assert_array_equal(z.astype(np.float32), values(dtype))


@pytest.mark.kernels
@pytest.mark.parametrize("dtype", TYPES)
def test_every_type_is_an_input_and_an_output_of_a_module(dtype: str) -> None:
    module = convopt.optimize(casts(dtype), threads=1)
    found = module.run({"x": typed(dtype)})
    np.testing.assert_array_equal(found["y"], values(dtype))
    assert found["z"].dtype.name == dtype
    np.testing.assert_array_equal(found["z"].astype(np.float32), values(dtype))


@pytest.mark.kernels
def test_a_bfloat16_model_around_an_operator_without_a_kernel_is_verified() -> None:
    """CumSum runs in onnxruntime; the Add before it is compiled, in float32."""
    graph = helper.make_graph(
        [
            helper.make_node("Add", ["x", "k"], ["a"], name="add"),
            helper.make_node("CumSum", ["a", "axis"], ["y"], name="sum"),
        ],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.BFLOAT16, SHAPE)],
        [helper.make_tensor_value_info("y", TensorProto.BFLOAT16, SHAPE)],
        [
            helper.make_tensor("k", TensorProto.BFLOAT16, [3], [1.0, 2.0, 3.0]),
            numpy_helper.from_array(np.array(0), "axis"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)
    module = convopt.optimize(model, threads=1, verify="raise", check="each-pass")
    y = module(typed("bfloat16"))
    np.testing.assert_array_equal(y.astype(np.float32), np.cumsum(values("bfloat16") + np.arange(1, 4), 0))
    assert "equal to" in str(module.programs[0].program.meta["verified"])
