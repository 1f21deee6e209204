"""Convolutions where their operands are views, slots, broadcast or odd, as whole models."""

from __future__ import annotations

import pytest

from tests.lowering.compiled import check_text

pytestmark = pytest.mark.kernels

FORMS = {
    "a sum with part of a haloed value": """g (float[1,8,6,7] x, float[8,8,1,1] w, float[8,8,3,3] v,
            float[4,8,1,1] u) => (float[1,4,6,7] y, float[1,8,6,7] z) {
        a = Conv (x, w)  z = Conv <pads = [1, 1, 1, 1]> (a, v)
        s, t = Split <axis = 1, num_outputs = 2> (a)  c = Conv (z, u)  y = Add (c, t) }""",
    "a transposed part of a value, in a Gemm": """g (float[6,8] x, float[6,5] b)
        => (float[4,5] y) {
        r = Neg (x)  s, t = Split <axis = 1, num_outputs = 2> (r)  y = Gemm <transA = 1> (t, b) }""",
    "a strided 1x1 of a part": """g (float[1,8,9,9] x, float[8,8,1,1] w, float[5,4,1,1] u)
        => (float[1,5,5,5] y) {
        a = Conv (x, w)  s, t = Split <axis = 1, num_outputs = 2> (a)
        y = Conv <strides = [2, 2]> (t, u) }""",
    "sums broadcast along rows and columns": """g (float[2,8,4,5] x, float[2,1,1,5] x2, float[1,8,4,1] x3,
            float[8,8,1,1] w) => (float[2,8,4,5] y) {
        a = Conv (x, w)  b = Add (a, x2)  y = Mul (b, x3) }""",
    "operands of lower rank": """g (float[2,8,4,5] x, float[4,5] x2, float[5] k, float[8,8,1,1] w)
        => (float[2,8,4,5] y) {
        a = Conv (x, w)  b = Add (a, x2)  y = Mul (b, k) }""",
    "pixels merged for a 1-D conv": """g (float[2,8,4,5] x, float[8,8,1,1] w, float[6,8,3] v,
            float[6,8,1,1] u) => (float[2,6,20] y, float[2,6,4,5] z) <int64[3] s = {2,8,20}> {
        a = Conv (x, w)  b = Reshape (a, s)  y = Conv <pads = [1, 1]> (b, v)  z = Conv (a, u) }""",
    "channels split into the batch": """g (float[2,8,4,5] x, float[8,8,1,1] w, float[6,4,3,3] v)
        => (float[4,6,4,5] y) <int64[4] s = {4,4,4,5}> {
        a = Conv (x, w)  b = Reshape (a, s)  y = Conv <pads = [1, 1, 1, 1]> (b, v) }""",
    "a dim squeezed away": """g (float[1,8,1,9] x, float[8,8,1,1] w, float[6,8,3] v)
        => (float[1,6,9] y) <int64[1] s = {2}> {
        a = Conv (x, w)  b = Squeeze (a, s)  y = Conv <pads = [1, 1]> (b, v) }""",
    "a Pad that crops": """g (float[1,8,6,7] x, float[8,8,3,3] w)
        => (float[1,8,4,8] y) <int64[8] p = {0,0,-1,1,0,0,-1,0}> {
        q = Pad (x, p)  y = Conv <pads = [1, 1, 1, 1]> (q, w) }""",
    "a channel shuffle": """g (float[1,8,4,5] x, float[8,8,1,1] w, float[8,1,3,3] v)
        => (float[1,8,4,5] y) <int64[5] s = {1,2,4,4,5}, int64[4] t = {1,8,4,5}> {
        a = Conv (x, w)  b = Reshape (a, s)  c = Transpose <perm = [0, 2, 1, 3, 4]> (b)
        d = Reshape (c, t)  y = Conv <pads = [1, 1, 1, 1], group = 8> (d, v) }""",
    "a Concat of one value twice": """g (float[1,4,4,5] x, float[4,4,1,1] w, float[3,8,3,3] v)
        => (float[1,3,4,5] y) {
        a = Conv (x, w)  c = Concat <axis = 1> (a, a)  y = Conv <pads = [1, 1, 1, 1]> (c, v) }""",
    "grouped convs into slots": """g (float[1,4,6,5] x, float[4,4,1,1] w, float[8,2,3,3] v, float[4,1,3,3] u)
        => (float[1,12,6,5] y) {
        a = Conv (x, w)  b = Conv <pads = [1, 1, 1, 1], group = 2> (a, v)
        d = Conv <pads = [1, 1, 1, 1], group = 4> (a, u)  c = Concat <axis = 1> (d, b)  y = Sigmoid (c) }""",
    "one feature per group": """g (float[1,6,6,5] x, float[3,2,3,3] v)
        => (float[1,3,6,5] y) {
        y = Conv <pads = [1, 1, 1, 1], group = 3> (x, v) }""",
    "two features per channel": """g (float[1,6,6,5] x, float[12,1,3,3] v)
        => (float[1,12,6,5] y) {
        y = Conv <pads = [1, 1, 1, 1], group = 6> (x, v) }""",
    "a stride beyond the input": """g (float[1,3,2,2] x, float[5,3,2,2] v)
        => (float[1,5,1,1] y) {
        y = Conv <strides = [5, 5]> (x, v) }""",
    "a kernel beyond the input": """g (float[1,3,2,3] x, float[5,3,7,7] v)
        => (float[1,5,2,3] y) {
        y = Conv <pads = [3, 3, 3, 3]> (x, v) }""",
    "3x3 with tails in both dims": """g (float[1,16,7,9] x, float[24,16,3,3] v, float[8,24,3,3] u)
        => (float[1,8,7,9] y) {
        a = Conv <pads = [1, 1, 1, 1]> (x, v)  b = Relu (a)  y = Conv <pads = [1, 1, 1, 1]> (b, u) }""",
    "3x3 into slots": """g (float[1,32,14,14] x, float[32,32,3,3] v, float[32,32,3,3] u)
        => (float[1,64,14,14] y) {
        a = Conv <pads = [1, 1, 1, 1]> (x, v)  b = Conv <pads = [1, 1, 1, 1]> (a, u)
        c = Concat <axis = 1> (a, b)  y = Relu (c) }""",
}


@pytest.mark.parametrize("name", FORMS)
def test_form(name: str) -> None:
    check_text(FORMS[name])
