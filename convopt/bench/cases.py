"""One convolution as a benchmark case, its text form, and the ONNX models that hold it."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Literal

from convopt.errors import InputError

if TYPE_CHECKING:
    import onnx

    from convopt.schedules.conv_problem import ConvProblem

Layout = Literal["NCHW", "NHWC"]


@dataclass(frozen=True)
class ConvCase:
    """A 2-D convolution without bias: input n x c x h x w, weight k x c/groups x r x s."""

    n: int
    c: int
    h: int
    w: int
    k: int
    r: int
    s: int
    stride: int = 1
    pad: int = 0
    dilation: int = 1
    groups: int = 1

    def __post_init__(self) -> None:
        for field in fields(self):
            value, least = getattr(self, field.name), 0 if field.name == "pad" else 1
            if value < least:
                raise InputError(f"conv case: {field.name}={value}, expected at least {least}")
        if self.c % self.groups or self.k % self.groups:
            raise InputError(f"conv case: groups={self.groups} does not divide c={self.c} and k={self.k}")
        if min(self.output_size) < 1:
            raise InputError(f"conv case: the kernel does not fit into the padded input of {self.text}")

    @property
    def output_size(self) -> tuple[int, int]:
        """Output height and width, by the formula of ONNX's Conv."""
        return (
            (self.h + 2 * self.pad - self.dilation * (self.r - 1) - 1) // self.stride + 1,
            (self.w + 2 * self.pad - self.dilation * (self.s - 1) - 1) // self.stride + 1,
        )

    @property
    def flop(self) -> int:
        """A multiply and an add are two; multiplications by padding count."""
        height, width = self.output_size
        return 2 * self.n * height * width * self.k * (self.c // self.groups) * self.r * self.s

    @property
    def nbytes(self) -> int:
        """Input, weight and output once each, in float32: no cache can do with less."""
        height, width = self.output_size
        weight = self.k * (self.c // self.groups) * self.r * self.s
        return 4 * (self.n * self.c * self.h * self.w + weight + self.n * self.k * height * width)

    @property
    def kind(self) -> str:
        """The class of convolutions that it is summarised with: what decides how fast engines are on it."""
        if self.groups > 1:
            return "depthwise" if self.groups == self.c == self.k else "grouped"
        if (self.r, self.s) == (1, 1):
            return "1x1"
        if self.k <= 32:
            return "up to 8 output channels" if self.k <= 8 else "9 to 32 output channels"
        if (self.r, self.s, self.stride, self.dilation) == (3, 3, 1, 1):
            return "3x3 s1, 64 to 256 channels" if 64 <= self.c <= 256 else "3x3 s1, others"
        return "others"

    @property
    def text(self) -> str:
        """The form that `parse_case` reads; dilation and groups only where they are not 1."""
        optional = {"dilation", "groups"}
        return ",".join(
            f"{f.name}={getattr(self, f.name)}"
            for f in fields(self)
            if f.name not in optional or getattr(self, f.name) != 1
        )


def parse_case(text: str) -> ConvCase:
    """A case from `n=16,c=128,h=64,w=64,k=27,r=3,s=3,stride=1,pad=1[,dilation=1][,groups=1]`."""
    known = {f.name for f in fields(ConvCase)}
    required = {"n", "c", "h", "w", "k", "r", "s"}
    values: dict[str, int] = {}
    for part in text.split(","):
        name, _, number = (piece.strip() for piece in part.partition("="))
        if name not in known:
            raise InputError(f"conv case: unknown field {name!r}, expected {', '.join(sorted(known))}")
        if name in values:
            raise InputError(f"conv case: {name} is given twice")
        try:
            values[name] = int(number)
        except ValueError:
            raise InputError(f"conv case: {name}={number!r} is not an integer") from None
    if missing := sorted(required - values.keys()):
        raise InputError(f"conv case: {', '.join(missing)} missing in {text!r}")
    return ConvCase(**values)


def conv_problem(case: ConvCase, dtype: str = "float32") -> ConvProblem:
    """The case as schedules see it: channels-last, the input with its border of zeros, no bias."""
    from convopt.schedules.base import TensorView
    from convopt.schedules.conv_problem import ConvProblem
    from convopt.schedules.primitives.expression import identity

    c, k = case.c // case.groups, case.k // case.groups
    row, image = (case.w + 2 * case.pad) * case.c, (case.h + 2 * case.pad) * (case.w + 2 * case.pad) * case.c
    height, width = case.output_size
    x_strides = (c, image, image, row, case.c, 1)
    y_strides = (k, height * width * case.k, height * width * case.k, width * case.k, case.k, 1)
    return ConvProblem(
        TensorView((case.groups, case.n, 1, case.h, case.w, c), x_strides, dtype),
        TensorView((case.groups, case.n, 1, height, width, k), y_strides, dtype),
        (1, case.r, case.s),
        (1, case.stride, case.stride),
        (1, case.dilation, case.dilation),
        (0, case.pad, case.pad),
        identity(),
        bias=False,
    )


def conv_model(
    case: ConvCase,
    layout: Layout = "NCHW",
    seed: int = 0,
    dtype: str = "float32",
    values: str = "float32",
) -> onnx.ModelProto:
    """A model with this one Conv, input "x" and output "y" in the layout, weights from the seed.

    dtype: of input, weight and output. values: a type that the weights are rounded to first.

    NHWC wraps the Conv in Transposes, the only way that standard ONNX can say it.
    Weights are normal with variance 1/(c/groups*r*s), so that outputs of normal inputs have variance 1.
    """
    import numpy as np
    from onnx import helper, numpy_helper

    height, width = case.output_size
    fan_in = case.c // case.groups * case.r * case.s
    shape = (case.k, case.c // case.groups, case.r, case.s)
    weight = np.random.default_rng(seed).standard_normal(shape, np.float32) / np.float32(fan_in**0.5)
    weight = weight.astype(values).astype(dtype)
    element = helper.np_dtype_to_tensor_dtype(weight.dtype)
    conv = helper.make_node(
        "Conv",
        ["x" if layout == "NCHW" else "x_nchw", "weight"],
        ["y" if layout == "NCHW" else "y_nchw"],
        name="conv",
        kernel_shape=[case.r, case.s],
        strides=[case.stride] * 2,
        pads=[case.pad] * 4,
        dilations=[case.dilation] * 2,
        group=case.groups,
    )
    x, y = [case.n, case.c, case.h, case.w], [case.n, case.k, height, width]
    nodes = [conv]
    if layout == "NHWC":
        nodes.insert(0, helper.make_node("Transpose", ["x"], ["x_nchw"], name="to_nchw", perm=[0, 3, 1, 2]))
        nodes.append(helper.make_node("Transpose", ["y_nchw"], ["y"], name="to_nhwc", perm=[0, 2, 3, 1]))
        x, y = [x[0], x[2], x[3], x[1]], [y[0], y[2], y[3], y[1]]
    graph = helper.make_graph(
        nodes,
        "conv_case",
        [helper.make_tensor_value_info("x", element, x)],
        [helper.make_tensor_value_info("y", element, y)],
        [numpy_helper.from_array(weight, "weight")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
