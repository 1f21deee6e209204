"""Small graphs, one per thing that a pass does: (id, passes, shapes, rewrites expected, graph)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from convopt.passes import Pass
from convopt.passes.bind_shapes import BindShapes
from convopt.passes.cancel_transposes import CancelTransposes
from convopt.passes.canonicalise_conv import CanonicaliseConv
from convopt.passes.cleanup import Cleanup
from convopt.passes.fold_batchnorm import FoldBatchNorm
from convopt.passes.fold_constants import FoldConstants
from convopt.passes.inline_functions import InlineFunctions
from convopt.passes.merge_pad import MergePad
from convopt.passes.remove_no_ops import RemoveNoOps
from convopt.passes.upgrade_opset import UpgradeOpset


@dataclass(frozen=True)
class Case:
    """`name` names the golden files; `changed` is what the pass must report."""

    name: str
    one: Pass
    changed: int
    text: str
    opset: int = 18
    shapes: Mapping[str, Sequence[int]] = field(default_factory=dict)


_BN = "BatchNormalization"

CASES: tuple[Case, ...] = (
    Case(
        "inline-function",
        InlineFunctions(),
        3,
        """g (float[2,3] x) => (float[2,3] y) {
            c = Constant <value_float = 2.0> ()
            a = local.Scale (x, c)  y = local.Scale (a, c)
        }
        <domain: "local", opset_import: ["" : 18]> Scale (a, b) => (r) { r = Mul (a, b) }""",
    ),
    Case(
        "upgrade-axes-to-inputs",
        UpgradeOpset(),
        4,
        """g (float[1,1,6,4] x) => (float[6] y) {
            s = Squeeze <axes = [0, 1]> (x)
            m = ReduceMean <axes = [1], keepdims = 0> (s)
            y = Clip <min = -0.5, max = 0.5> (m)
        }""",
        opset=9,
    ),
    Case(
        "upgrade-softmax-flattens",
        UpgradeOpset(),
        2,
        "g (float[2,3,4] x) => (float[2,3,4] y) { y = Softmax (x) }",
        opset=11,
    ),
    Case(
        "upgrade-softmax-last-axis",
        UpgradeOpset(),
        2,
        "g (float[2,3,1,1] x) => (float[2,3,1,1] y) { y = Softmax (x) }",
        opset=11,
    ),
    Case(
        "upgrade-upsample",
        UpgradeOpset(),
        2,
        """g (float[1,2,3,4] x) => (float[1,2,6,8] y) <float[4] s = {1.0, 1.0, 2.0, 2.0}> {
            y = Upsample <mode = "linear"> (x, s)
        }""",
        opset=9,
    ),
    Case(
        "upgrade-slice-pad-split",
        UpgradeOpset(),
        4,
        """g (float[4,6] x) => (float[3,3] y, float[3,3] z) {
            a = Slice <starts = [1], ends = [3], axes = [0]> (x)
            b = Pad <pads = [0, 0, 1, 0], value = 1.5> (a)
            y, z = Split <axis = 1> (b)
        }""",
        opset=9,
    ),
    Case(
        "bind-shapes",
        BindShapes(),
        2,
        "g (float[N,3,H] x, float[N,3,1] x2) => (float[N,3,H] y) { y = Add (x, x2) }",
        shapes={"x": (2, 3, 5)},
    ),
    Case(
        "fold-shape-arithmetic",
        FoldConstants(),
        5,
        """g (float[2,8,4,4] x) => (float[2,128] y)
            <int64[1] axes = {0}, int64[1] rest = {-1}, int64 at = {0}> {
            s = Shape (x)  n = Gather (s, at)  m = Unsqueeze (n, axes)  t = Concat <axis = 0> (m, rest)
            d = Identity (t)
            y = Reshape (x, d)
        }""",
    ),
    Case(
        "fold-branches",
        FoldConstants(),
        7,
        """g (float[1,3,4] x) => (float[] y, float[] z)
            <int64[1] first = {0}, int64 at = {0}, int64 one = {1}> {
            s = Shape (x)  n = Gather (s, at)  c = Equal (n, one)
            r, q = If (c) <
                then_branch = t () => (a, b) <float[4] k = {1, 2, 3, 4}> {
                    v = Squeeze (x, first)  a = Add (v, k)  b = Neg (v) },
                else_branch = e () => (a, b) { a = Identity (x)  b = Abs (x) }>
            y = If (c) <then_branch = u () => (d) <float[4] k = {5, 6, 7, 8}> { d = Mul (k, r) },
                        else_branch = f () => (d) { d = Squeeze (r, first) }>
            w = CastLike (one, x)  z = Add (q, w)
        }""",
    ),
    Case(
        "fold-constant-output",
        FoldConstants(),
        2,
        """g (float[2,8] x) => (int64[2] s, float[2,8] y) <float two = {2.0}, float three = {3.0}> {
            s = Shape (x)  c = Pow (two, three)  y = Mul (x, c)
        }""",
    ),
    Case(
        "canonicalise-same-pads",
        CanonicaliseConv(),
        3,
        """g (float[1,4,9,8] x, float[8,4,3,2] w, float[8,4,2,2] v) => (float[1,4,6,8] y) {
            c = Conv <auto_pad = "SAME_LOWER", strides = [2, 1]> (x, w)
            p = MaxPool <auto_pad = "SAME_UPPER", kernel_shape = [2, 2], strides = [2, 1]> (c)
            y = ConvTranspose <auto_pad = "SAME_UPPER", strides = [2, 1]> (p, v)
        }""",
    ),
    Case(
        "canonicalise-output-shape",
        CanonicaliseConv(),
        1,
        """g (float[1,4,3,3] x, float[4,2,3,3] w) => (float[1,2,10,8] y) {
            y = ConvTranspose <output_shape = [10, 8], strides = [3, 2], output_padding = [1, 1]> (x, w)
        }""",
    ),
    Case(
        "canonicalise-ceil-mode",
        CanonicaliseConv(),
        2,
        """g (float[1,2,8,9] x) => (float[1,2,2,2] y) {
            a = AveragePool <kernel_shape = [2, 3], strides = [2, 2], ceil_mode = 1> (x)
            y = MaxPool <kernel_shape = [3, 3], strides = [2, 2], ceil_mode = 1> (a)
        }""",
    ),
    Case(
        "canonicalise-ceil-mode-counted",
        CanonicaliseConv(),
        1,
        """g (float[1,2,8,8] x) => (float[1,2,4,4] y) {
            y = AveragePool <kernel_shape = [3, 3], strides = [2, 2], ceil_mode = 1,
                             count_include_pad = 1> (x)
        }""",
    ),
    Case(
        "fold-batchnorm-conv",
        FoldBatchNorm(),
        1,
        f"""g (float[1,2,5,5] x, float[4,2,3,3] w, float[4] b, float[4] s, float[4] t, float[4] m, float[4] v)
            => (float[1,4,3,3] y) {{
            c = Conv (x, w, b)  y = {_BN} (c, s, t, m, v)
        }}""",
    ),
    Case(
        "fold-batchnorm-transpose-grouped",
        FoldBatchNorm(),
        1,
        f"""g (float[1,4,3,3] x, float[4,3,2,2] w, float[6] s, float[6] t, float[6] m, float[6] v)
            => (float[1,6,6,6] y) {{
            c = ConvTranspose <group = 2, strides = [2, 2]> (x, w)  y = {_BN} <epsilon = 0.1> (c, s, t, m, v)
        }}""",
    ),
    Case(
        "fold-batchnorm-shared-weight",
        FoldBatchNorm(),
        1,
        f"""g (float[1,2,5,5] x, float[4,2,3,3] w, float[4] s, float[4] t, float[4] m, float[4] v)
            => (float[1,4,3,3] y, float[1,4,3,3] z) {{
            c = Conv (x, w)  y = {_BN} (c, s, t, m, v)  z = Conv (x, w)
        }}""",
    ),
    Case(
        "fold-batchnorm-chain",
        FoldBatchNorm(),
        6,
        f"""g (float[1,2,5,5] x, float[4,1,3,3] w, float[1,4,1,1] a, float[4,1,1] d, float[1] e,
               float[4] s, float[4] t, float[4] m, float[4] v) => (float[1,4,3,3] y) {{
            c = Conv <group = 2> (x, w)
            c1 = Add (c, a)  c2 = {_BN} (c1, s, t, m, v)  c3 = Mul (d, c2)  c4 = Sub (e, c3)
            c5 = Div (c4, a)  y = Neg (c5)
        }}""",
    ),
    Case(
        "merge-pad-two-convs",
        MergePad(),
        2,
        """g (float[1,2,5,6] x, float[4,2,3,3] w, float[3,2,1,1] v) => (float[1,4,10,7] y, float[1,3,8,9] z)
            <int64[8] pads = {0,0,1,2,0,0,2,1}> {
            p = Pad (x, pads)
            y = Conv <pads = [1, 0, 3, 0]> (p, w)  z = Conv (p, v)
        }""",
    ),
    Case(
        "merge-pad-average-pool",
        MergePad(),
        1,
        """g (float[1,2,5,6] x) => (float[1,2,5,6] y) <int64[4] pads = {1,1,1,1}, int64[2] axes = {2,3}> {
            p = Pad (x, pads, , axes)  y = AveragePool <kernel_shape = [3, 3]> (p)
        }""",
    ),
    Case(
        "cancel-transposes",
        CancelTransposes(),
        4,
        """g (float[1,4,5,3] x) => (float[1,4,5,3] y, float[1,4,3,5] z) {
            a = Transpose <perm = [0, 3, 1, 2]> (x)
            b = Transpose <perm = [0, 2, 3, 1]> (a)  c = Transpose <perm = [0, 2, 1, 3]> (a)
            z = Transpose <perm = [0, 1, 2, 3]> (c)
            y = Relu (b)
        }""",
    ),
    Case(
        "remove-no-ops",
        RemoveNoOps(),
        6,
        """g (float[1,8,4] x) => (float[8,4] y) <int64[3] s = {1,8,4}, int64[2] t = {4,8}, int64[2] u = {8,4},
            int64[1] zero = {0}, int64[1] much = {99}> {
            a = Dropout (x)  b = Cast <to = 1> (a)  c = Identity (b)  d = Slice (c, zero, much)
            r = Relu (d)
            e = Reshape (r, s)  f = Reshape (e, t)  y = Reshape (f, u)
        }""",
    ),
    Case(
        "cleanup",
        Cleanup(),
        5,  # three nodes and two constants
        """g (float[2,8] x, float[8] unused, float[8] w) => (float[2,8] y) {
            a = Relu (x)  b = Relu (x)  dead = Sigmoid (x)  deader = Add (dead, w)  y = Add (a, b)
        }""",
    ),
)
