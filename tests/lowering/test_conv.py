"""Conv and ConvTranspose groups as whole models: phases, im2col in chunks, shared halos."""

from __future__ import annotations

import pytest

from tests.lowering.compiled import check_text, labels

pytestmark = pytest.mark.kernels


def transpose(x: str, w: str, y: str, bias: int = 0, **attributes: object) -> str:
    """A graph of one ConvTranspose; shapes as "1,2,5"."""
    text = ", ".join(f"{k} = {v}" for k, v in attributes.items())
    b = f", float[{bias}] b" if bias else ""
    return f"""g (float[{x}] x, float[{w}] w{b}) => (float[{y}] y) {{
        y = ConvTranspose {f"<{text}>" if text else ""} (x, w{", b" if bias else ""})
    }}"""


TRANSPOSED = {
    "stride 2": transpose("2,3,4,5", "3,9,4,4", "2,9,8,10", 9, strides=[2, 2], pads=[1, 1, 1, 1]),
    "kernel 1": transpose("1,3,4,5", "3,9,1,1", "1,9,4,5", 9),
    "stride beyond the kernel": transpose("1,3,4,3", "3,5,2,1", "1,5,11,9", 5, strides=[3, 4]),
    "untouched outputs without bias": transpose("1,3,4,3", "3,5,1,2", "1,5,10,8", strides=[3, 3]),
    "output_padding": transpose(
        "1,3,4,5", "3,8,3,3", "1,8,8,11", 8, strides=[2, 2], pads=[1, 1, 1, 0], output_padding=[1, 1]
    ),
    "dilation 2, stride 2": transpose("1,2,4,5", "2,5,3,3", "1,5,11,13", 5, strides=[2, 2], dilations=[2, 2]),
    "dilation 2, stride 4": transpose("1,2,3,3", "2,5,3,2", "1,5,13,11", 5, strides=[4, 4], dilations=[2, 2]),
    "dilation 4, stride 6": transpose("1,2,1,4", "2,3,1,4", "1,3,1,31", strides=[1, 6], dilations=[1, 4]),
    "dilation 3, stride 2": transpose("1,2,4,4", "2,5,3,2", "1,5,13,10", 5, strides=[2, 2], dilations=[3, 3]),
    "pads beyond the kernel": transpose("1,3,5,6", "3,4,3,3", "1,4,3,6", strides=[1, 1], pads=[3, 2, 1, 0]),
    "groups": transpose("2,6,3,4", "6,3,3,3", "2,9,7,9", 9, strides=[2, 2], group=3),
    "depthwise": transpose(
        "1,10,3,4", "10,1,4,4", "1,10,6,8", 10, strides=[2, 2], group=10, pads=[1, 1, 1, 1]
    ),
    "1-D": transpose("2,3,7", "3,9,5", "2,9,19", 9, strides=[3], pads=[1, 3], output_padding=[0]),
    "3-D": transpose("1,2,2,3,2", "2,5,3,2,2", "1,5,5,4,4", 5, strides=[2, 1, 2]),
    "one channel": transpose("1,1,4,5", "1,1,2,2", "1,1,8,10", strides=[2, 2]),
}


@pytest.mark.parametrize("name", TRANSPOSED)
def test_transposed(name: str) -> None:
    check_text(TRANSPOSED[name])


def test_transposed_with_an_epilogue() -> None:
    """Every phase sees its own part of the other operand."""
    check_text("""g (float[2,3,4,5] x, float[2,7,8,10] x2, float[3,7,2,2] w, float[7] b, float[7,1,1] s)
        => (float[2,7,8,10] y) {
        t = ConvTranspose <strides = [2, 2]> (x, w, b)  u = Mul (t, s)  v = Add (u, x2)  y = Relu (v)
    }""")


def test_too_many_phases_fall_back() -> None:
    text = transpose("1,1,2,2", "1,1,2,2", "1,1,36,36", strides=[34, 34], dilations=[1, 1])
    module = check_text(text, may_fall_back="ConvTranspose")
    (place,) = module.placement
    assert (place.where, place.detail) == ("fallback", "1156 output phases > 256")


UNFOLDED = """g (float[3,5,7,9] x, float[3,12,4,9] x2, float[12,5,3,3] w, float[12] b)
            => (float[3,12,4,9] y) {
    c = Conv <pads = [1, 1, 1, 1], strides = [2, 1]> (x, w, b)  a = Add (c, x2)  y = Relu (a)
}"""


@pytest.mark.parametrize(
    ("cap", "unfolds"),
    # An image's matrix is 4*9 rows of 45 columns: 6480 bytes.
    [(1 << 20, 1), (6480 * 2 + 5, 2), (6480, 3), (6479, 6), (1620 * 2, 6), (1620, 12), (1, 12)],
)
def test_im2col_in_chunks(cap: int, unfolds: int) -> None:
    module = check_text(UNFOLDED, algorithm="im2col", im2col_cap=cap)
    found = [label for label in labels(module) if label.startswith("im2col")]
    # The fastest number of images per matrix is a matter of cost, never above the cap.
    assert len(found) == unfolds or (cap > 6480 and unfolds <= len(found) <= 3), found


UNFOLDED_FORMS = {
    "groups": """g (float[2,6,5,7] x, float[8,3,3,3] w, float[8] b) => (float[2,8,5,7] y) {
        y = Conv <group = 2, pads = [1, 1, 1, 1]> (x, w, b) }""",
    "dilated": """g (float[1,3,9,11] x, float[5,3,3,2] w) => (float[1,5,7,11] y) {
        y = Conv <dilations = [2, 3], pads = [1, 3, 1, 0]> (x, w) }""",
    "1-D": """g (float[2,3,31] x, float[5,3,5] w, float[5] b) => (float[2,5,16] y) {
        y = Conv <strides = [2], pads = [3, 1]> (x, w, b) }""",
    "3-D": """g (float[2,2,4,5,6] x, float[5,2,3,2,3] w) => (float[2,5,2,5,6] y) {
        y = Conv <strides = [2, 1, 1], pads = [1, 1, 1, 1, 0, 1]> (x, w) }""",
    "transposed": """g (float[1,3,4,5] x, float[3,9,4,4] w, float[9] b) => (float[1,9,8,10] y) {
        y = ConvTranspose <strides = [2, 2], pads = [1, 1, 1, 1]> (x, w, b) }""",
    "few features": """g (float[2,320,6,7] x, float[4,320,3,3] w, float[4] b) => (float[2,4,6,7] y) {
        y = Conv <pads = [1, 1, 1, 1]> (x, w, b) }""",
    "depthwise": """g (float[2,9,6,7] x, float[9,1,3,3] w, float[9] b) => (float[2,9,6,7] y) {
        y = Conv <group = 9, pads = [1, 1, 1, 1]> (x, w, b) }""",
    "Winograd's": """g (float[1,32,14,13] x, float[32,32,3,3] w) => (float[1,32,14,13] y) {
        y = Conv <pads = [1, 1, 1, 1]> (x, w) }""",
    "into a slot": """g (float[2,4,5,6] x, float[7,4,3,3] w, float[5,4,3,3] v) => (float[2,12,5,6] y) {
        a = Conv <pads = [1, 1, 1, 1]> (x, w)  b = Conv <pads = [1, 1, 1, 1]> (x, v)
        c = Concat <axis = 1> (a, b)  y = Relu (c) }""",
}


@pytest.mark.parametrize("cap", [1 << 20, 1000])
@pytest.mark.parametrize("name", UNFOLDED_FORMS)
def test_im2col_forms(name: str, cap: int) -> None:
    module = check_text(UNFOLDED_FORMS[name], algorithm="im2col", im2col_cap=cap)
    assert any(label.startswith("im2col") for label in labels(module))


SHARED = {
    "convs of different pads": """g (float[1,4,6,7] x, float[5,4,1,1] w, float[5,5,3,3] v, float[5,5,5,2] u)
        => (float[1,5,6,7] y, float[1,5,6,8] z) {
        a = Conv (x, w)  y = Conv <pads = [1, 1, 1, 1]> (a, v)  z = Conv <pads = [2, 0, 2, 2]> (a, u) }""",
    "a conv and a pool": """g (float[2,4,6,7] x, float[9,4,1,1] w, float[9,9,3,3] v)
        => (float[2,9,6,7] y, float[2,9,3,4] z) {
        a = Conv (x, w)  r = Relu (a)  y = Conv <pads = [1, 1, 1, 1]> (r, v)
        z = MaxPool <kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]> (r) }""",
    "a conv, a sum and an output": """g (float[1,5,6,7] x, float[5,5,3,3] w, float[5,5,3,3] v)
        => (float[1,5,6,7] y, float[1,5,6,7] a) {
        a = Conv <pads = [1, 1, 1, 1]> (x, w)  b = Conv <pads = [1, 1, 1, 1]> (a, v)  y = Add (b, a) }""",
    "slots of a Concat": """g (float[2,4,6,7] x, float[5,4,1,1] w, float[3,4,1,1] v, float[6,8,3,3] u,
                                float[2,5,3,3] t) => (float[2,6,6,7] y, float[2,2,6,7] z) {
        a = Conv (x, w)  b = Conv (x, v)  c = Concat <axis = 1> (a, b)
        y = Conv <pads = [1, 1, 1, 1]> (c, u)  z = Conv <pads = [1, 1, 1, 1]> (a, t) }""",
    "a slot only": """g (float[2,4,6,7] x, float[5,4,1,1] w, float[3,4,1,1] v, float[6,5,3,3] u)
        => (float[2,6,6,7] y, float[2,8,6,7] z) {
        a = Conv (x, w)  b = Conv (x, v)  c = Concat <axis = 1> (b, a)  z = Sigmoid (c)
        y = Conv <pads = [2, 1, 0, 1]> (a, u) }""",
    "channels of a Slice": """g (float[1,4,6,7] x, float[9,4,1,1] w, float[6,5,3,3] u) => (float[1,6,6,7] y)
        <int64[1] from = {3}, int64[1] to = {8}, int64[1] axis = {1}> {
        a = Conv (x, w)  s = Slice (a, from, to, axis)  y = Conv <pads = [1, 1, 1, 1]> (s, u) }""",
    "pixels of a Slice": """g (float[1,4,6,7] x, float[9,4,1,1] w, float[6,9,3,3] u) => (float[1,6,4,3] y)
        <int64[2] from = {1,2}, int64[2] to = {5,5}, int64[2] axes = {2,3}> {
        a = Conv (x, w)  s = Slice (a, from, to, axes)  y = Conv <pads = [1, 1, 1, 1]> (s, u) }""",
    "every second pixel": """g (float[1,4,6,8] x, float[9,4,1,1] w, float[6,9,3,3] u) => (float[1,6,3,4] y)
        <int64[2] from = {0,1}, int64[2] to = {6,8}, int64[2] axes = {2,3}, int64[2] step = {2,2}> {
        a = Conv (x, w)  s = Slice (a, from, to, axes, step)  y = Conv <pads = [1, 1, 1, 1]> (s, u) }""",
    "parts of a Split": """g (float[2,4,6,7] x, float[9,4,1,1] w, float[6,5,3,3] u, float[3,4,3,3] v)
        => (float[2,6,6,7] y, float[2,3,4,5] z) <int64[2] sizes = {5,4}> {
        a = Conv (x, w)  s, t = Split <axis = 1> (a, sizes)
        y = Conv <pads = [1, 1, 1, 1]> (s, u)  z = Conv (t, v) }""",
    "a Split of the batch": """g (float[3,4,6,7] x, float[5,4,1,1] w, float[6,5,3,3] u)
        => (float[1,6,6,7] y, float[2,6,6,7] z) <int64[2] sizes = {1,2}> {
        a = Conv (x, w)  s, t = Split <axis = 0> (a, sizes)
        y = Conv <pads = [1, 1, 1, 1]> (s, u)  z = Conv <pads = [1, 1, 1, 1]> (t, u) }""",
    "an input in NHWC": """g (float[2,6,7,3] x, float[5,3,3,3] w) => (float[2,6,7,5] y) {
        a = Transpose <perm = [0, 3, 1, 2]> (x)  c = Conv <pads = [1, 1, 1, 1]> (a, w)
        y = Transpose <perm = [0, 2, 3, 1]> (c) }""",
    "an input in NHWC without pads": """g (float[2,6,7,3] x, float[5,3,3,3] w) => (float[2,4,5,5] y) {
        a = Transpose <perm = [0, 3, 1, 2]> (x)  c = Conv (a, w)
            y = Transpose <perm = [0, 2, 3, 1]> (c) }""",
    "a Reshape behind, one before": """g (float[1,6,35] x, float[5,6,3,3] w) => (float[5,35] y)
            <int64[4] s = {1,6,5,7},
        int64[2] t = {5,35}> {
        a = Reshape (x, s)  c = Conv <pads = [1, 1, 1, 1]> (a, w)  r = Relu (c)  y = Reshape (r, t) }""",
    "a Reshape and a padded conv": """g (float[1,4,5,7] x, float[9,4,1,1] w, float[6,9,3,3] u)
        => (float[1,6,5,7] y, float[9,35] z) <int64[2] t = {9,35}> {
        a = Conv (x, w)  y = Conv <pads = [1, 1, 1, 1]> (a, u)  b = Reshape (a, t)  z = Relu (b) }""",
    "a Transpose and a padded conv": """g (float[1,4,5,7] x, float[9,4,1,1] w, float[6,9,3,3] u)
        => (float[1,6,5,7] y, float[1,5,7,9] z) {
        a = Conv (x, w)  y = Conv <pads = [1, 1, 1, 1]> (a, u)
        b = Transpose <perm = [0, 2, 3, 1]> (a)  z = Relu (b) }""",
    "a fallback behind": """g (float[1,4,5,7] x, float[9,4,1,1] w, float[6,9,3,3] u)
        => (float[1,6,5,7] y, float[1,9,5,7] z) {
        a = Conv (x, w)  y = Conv <pads = [1, 1, 1, 1]> (a, u)  z = Asinh (a) }""",
    "a fallback before": """g (float[1,4,5,7] x, float[6,4,3,3] u) => (float[1,6,5,7] y) {
        a = Asinh (x)  y = Conv <pads = [1, 1, 1, 1]> (a, u) }""",
    "the input twice": """g (float[1,4,5,7] x, float[6,4,3,3] u, float[6,4,5,5] v) => (float[1,6,5,7] y) {
        a = Conv <pads = [1, 1, 1, 1]> (x, u)  b = Conv <pads = [2, 2, 2, 2]> (x, v)  y = Add (a, b) }""",
    "1-D": """g (float[2,4,9] x, float[5,4,1] w, float[6,5,3] u, float[6,5,5] v) => (float[2,6,9] y,
            float[2,6,9] z) {
        a = Conv (x, w)  y = Conv <pads = [1, 1]> (a, u)  z = Conv <pads = [4, 0]> (a, v) }""",
    "3-D": """g (float[1,2,3,4,5] x, float[5,2,1,1,1] w, float[6,5,3,3,3] u) => (float[1,6,3,4,5] y) {
        a = Conv (x, w)  y = Conv <pads = [1, 1, 1, 1, 1, 1]> (a, u) }""",
    "one channel": """g (float[1,1,5,7] x, float[1,1,3,3] w, float[3,1,3,3] u) => (float[1,3,5,7] y) {
        a = Conv <pads = [1, 1, 1, 1]> (x, w)  y = Conv <pads = [1, 1, 1, 1]> (a, u) }""",
    "one pixel": """g (float[1,5,1,1] x, float[6,5,1,1] w, float[3,6,3,3] u) => (float[1,3,1,1] y) {
        a = Conv (x, w)  y = Conv <pads = [1, 1, 1, 1]> (a, u) }""",
    "a ConvTranspose and a Conv": """g (float[1,4,3,4] x, float[4,5,4,4] w, float[6,5,3,3] u)
            => (float[1,6,6,8] y) {
        a = ConvTranspose <strides = [2, 2], pads = [1, 1, 1, 1]> (x, w)
        y = Conv <pads = [1, 1, 1, 1]> (a, u) }""",
}


@pytest.mark.parametrize("name", SHARED)
def test_halos(name: str) -> None:
    check_text(SHARED[name], may_fall_back="Asinh" if "fallback" in name else "")


CHANNELS_LAST_INPUT = """g (float[2,16,17,320] x, float[4,320,3,3] w, float[4] b) => (float[2,16,17,4] y) {
    n = Transpose <perm = [0, 3, 1, 2]> (x)  c = Conv <pads = [1, 1, 1, 1]> (n, w, b)  r = Relu (c)
    y = Transpose <perm = [0, 2, 3, 1]> (r) }"""


def test_no_border_for_what_reads_none() -> None:
    """An input of the model has no border of zeros; shifted products need none, so nothing copies it."""
    module = check_text(CHANNELS_LAST_INPUT)
    assert [label.split()[-1] for label in labels(module)] == ["shifted"]


@pytest.mark.parametrize(("group", "form"), [(16, "depthwise"), (4, "grouped")])
def test_no_border_for_what_leaves_it_out(group: int, form: str) -> None:
    """Taps beyond a channels-last input of the model are not computed, so nothing copies it to pad it."""
    module = check_text(f"""g (float[1,9,11,16] x, float[16,{16 // group},3,3] w) => (float[1,9,11,16] y) {{
        t = Transpose <perm = [0, 3, 1, 2]> (x)  c = Conv <pads = [1, 1, 1, 1], group = {group}> (t, w)
        y = Transpose <perm = [0, 2, 3, 1]> (c) }}""")
    assert [label.split()[-1] for label in labels(module)] == [form]


HALVES = {
    "convs and a pool": """g (float16[2,4,6,7] x, float16[9,4,1,1] w, float16[9,9,3,3] v, float16[9] b)
        => (float16[2,9,6,7] y, float16[2,9,3,4] z) {
        a = Conv (x, w, b)  r = Relu (a)  y = Conv <pads = [1, 1, 1, 1]> (r, v)
        z = MaxPool <kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]> (r) }""",
    "depthwise": """g (float16[2,20,6,7] x, float16[20,1,3,3] w) => (float16[2,20,6,7] y) {
        y = Conv <pads = [1, 1, 1, 1], group = 20> (x, w) }""",
    "transposed": """g (float16[2,4,6,7] x, float16[4,9,4,4] w) => (float16[2,9,12,14] y) {
        y = ConvTranspose <pads = [1, 1, 1, 1], strides = [2, 2]> (x, w) }""",
    "slots and a sum": """g (float16[1,4,6,7] x, float16[1,8,6,7] x2, float16[5,4,3,3] w, float16[3,4,1,1] v)
        => (float16[1,8,6,7] y) {
        a = Conv <pads = [1, 1, 1, 1]> (x, w)  b = Conv (x, v)  c = Concat <axis = 1> (a, b)
        y = Add (c, x2) }""",
    "many channels": """g (float16[1,600,4,5] x, float16[8,600,3,3] w) => (float16[1,8,4,5] y) {
        y = Conv <pads = [1, 1, 1, 1]> (x, w) }""",
}


@pytest.mark.parametrize("algorithm", ["auto", "im2col"])
@pytest.mark.parametrize("name", HALVES)
def test_float16(name: str, algorithm: str) -> None:
    check_text(HALVES[name], algorithm=algorithm)
