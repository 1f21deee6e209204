"""Gemm and MatMul groups as whole models against the float64 oracle."""

from __future__ import annotations

import pytest

from tests.lowering.compiled import check_text, labels

pytestmark = pytest.mark.kernels


def gemm(
    a: str, b: str, c: str = "", y: str = "5,33", fixed_b: bool = True, fixed_c: bool = True, text: str = ""
) -> str:
    inputs = [f"float[{a}] x", f"float[{b}] {'b' if fixed_b else 'x_b'}"]
    if c:
        inputs.append(f"float[{'' if c == 'scalar' else c}] {'c' if fixed_c else 'x_c'}")
    names = ", ".join(i.split()[-1] for i in inputs)
    return f"g ({', '.join(inputs)}) => (float[{y}] y) {{ y = Gemm {f'<{text}>' if text else ''} ({names}) }}"


GEMM = {
    "plain": gemm("5,17", "17,33"),
    "transA": gemm("17,5", "17,33", "33", text="transA = 1"),
    "transB": gemm("5,17", "33,17", "33", text="transB = 1"),
    "transA, transB": gemm("17,5", "33,17", text="transA = 1, transB = 1"),
    "alpha, beta, a row": gemm("5,17", "17,33", "33", text="alpha = 0.25, beta = -2.0"),
    "C of one row": gemm("5,17", "17,33", "1,33", text="beta = 0.5"),
    "C of one column": gemm("5,17", "17,33", "5,1", text="alpha = 3.0, beta = 0.5"),
    "C full": gemm("5,17", "17,33", "5,33", text="beta = 0.5"),
    "C of one element": gemm("5,17", "17,33", "1", text="beta = 0.5"),
    "C a scalar": gemm("5,17", "17,33", "scalar", text="beta = 0.5"),
    "C an input": gemm("5,17", "17,33", "5,33", fixed_c=False, text="beta = 0.5"),
    "C an input, one row": gemm("5,17", "17,33", "33", fixed_c=False),
    "C an input, one column": gemm("5,17", "17,33", "5,1", fixed_c=False, text="beta = 0.0"),
    "B an input": gemm("5,17", "17,33", "33", fixed_b=False),
    "B an input, transposed": gemm("5,17", "33,17", "5,1", fixed_b=False, fixed_c=False, text="transB = 1"),
    "B and C inputs, transA": gemm("17,5", "17,33", "5,33", fixed_b=False, fixed_c=False, text="transA = 1"),
    "B an input, alpha": gemm("5,17", "17,33", "33", fixed_b=False, text="alpha = 2.0, beta = 3.0"),
    "B and C inputs, alpha": gemm("5,17", "17,33", "5,1", fixed_b=False, fixed_c=False, text="alpha = -0.5"),
    "one row": gemm("1,129", "129,33", "33", y="1,33"),
    "one column": gemm("7,17", "17,1", "1", y="7,1"),
    "one product": gemm("3,1", "1,5", y="3,5"),
}


@pytest.mark.parametrize("name", GEMM)
def test_gemm(name: str) -> None:
    check_text(GEMM[name])


def test_gemm_with_an_epilogue() -> None:
    module = check_text("""g (float[5,17] x, float[17,33] b, float[5,33] x_c, float[5,33] x_d)
            => (float[5,33] y) {
        p = Gemm <beta = 0.5> (x, b, x_c)  s = Sigmoid (p)  m = Mul (p, s)  y = Add (m, x_d) }""")
    assert len(labels(module)) == 1


# a, b, result; names beginning with x are inputs.
MATMUL = {
    "rows": ("5,17 x", "17,33 b", "5,33"),
    "two inputs": ("5,17 x", "17,33 x_b", "5,33"),
    "a batch, one right": ("3,5,17 x", "17,33 b", "3,5,33"),
    "a batch, one right of rank 3": ("3,5,17 x", "1,17,33 b", "3,5,33"),
    "a batch each": ("3,5,17 x", "3,17,9 b", "3,5,9"),
    "a batch each, inputs": ("3,5,17 x", "3,17,9 x_b", "3,5,9"),
    "one left, a batch right": ("5,17 x", "3,17,9 x_b", "3,5,9"),
    "one left of rank 3": ("1,5,17 x", "3,17,9 b", "3,5,9"),
    "two batch dims": ("2,3,4,8 x", "2,3,8,5 x_b", "2,3,4,5"),
    "four batch dims on the left": ("2,2,2,2,3,4 x", "4,5 b", "2,2,2,2,3,5"),
    "rank 5, inputs": ("2,1,3,4,8 x", "2,1,3,8,5 x_b", "2,1,3,4,5"),
    "broadcast on both sides": ("2,1,4,8 x", "1,3,8,5 x_b", "2,3,4,5"),
    "broadcast in the middle": ("2,3,4,8 x", "2,1,8,5 x_b", "2,3,4,5"),
    "vector, matrix": ("17 x", "17,9 b", "9"),
    "vector, matrix, inputs": ("17 x", "17,9 x_b", "9"),
    "matrix, vector": ("5,17 x", "17 b", "5"),
    "matrix, vector, inputs": ("5,17 x", "17 x_b", "5"),
    "vector, vector": ("17 x", "17 x_b", ""),
    "vector, batch": ("17 x", "3,17,9 x_b", "3,9"),
    "batch, vector": ("3,5,17 x", "17 x_b", "3,5"),
    "a constant on the left": ("5,17 a", "17,9 x_b", "5,9"),
    "a constant batch on the left": ("3,5,17 a", "3,17,9 x_b", "3,5,9"),
    "one element": ("1,1 x", "1,1 x_b", "1,1"),
}


@pytest.mark.parametrize("name", MATMUL)
def test_matmul(name: str) -> None:
    (a, a_name), (b, b_name), y = *(side.rsplit(" ", 1) for side in MATMUL[name][:2]), MATMUL[name][2]
    inputs = f"float[{a}] {a_name}, float[{b}] {b_name}"
    text = f"g ({inputs}) => (float[{y}] y) {{ y = MatMul ({a_name}, {b_name}) }}"
    check_text(text)


ATTENTION = {
    "parts of a value": """g (float[4,10] x, float[5,6] b) => (float[4,6] y, float[4,4] z) {
        r = Neg (x)  s, t = Split <axis = 1, num_outputs = 2> (r)  y = MatMul (t, b)
        u = Transpose (s)  z = MatMul (t, u) }""",
    "a slot of a Concat": """g (float[4,5] x, float[5,6] b, float[4,3] x2) => (float[4,6] y, float[4,8] z) {
        r = Neg (x)  c = Concat <axis = 1> (x2, r)  z = Relu (c)  y = MatMul (r, b) }""",
    "every second row": """g (float[6,5] x, float[5,6] b) => (float[3,6] y)
        <int64[1] from = {1}, int64[1] to = {6}, int64[1] axis = {0}, int64[1] step = {2}> {
        r = Neg (x)  s = Slice (r, from, to, axis, step)  y = Gemm (s, b) }""",
    "float16": """g (float16[5,17] x, float16[17,9] b, float16[5,9] x_c) => (float16[5,9] y) {
        y = Gemm <alpha = 0.5, beta = 2.0> (x, b, x_c) }""",
    "float16 on both sides": """g (float16[3,5,17] x, float16[3,17,9] x_b) => (float16[3,5,9] y) {
        y = MatMul (x, x_b) }""",
    "one constant element": """g (float[5,1] x, float[1,1] b, float[1] c) => (float[5,1] y) {
        y = Gemm (x, b, c) }""",
    "scores": """g (float[2,3,4,8] x, float[2,3,5,8] x_k) => (float[2,3,4,5] y) {
        t = Transpose <perm = [0, 1, 3, 2]> (x_k)  p = MatMul (x, t)  s = Constant <value_float = 0.35> ()
        y = Mul (p, s) }""",
    "heads": """g (float[2,5,24] x, float[24,24] w, float[24] b) => (float[2,3,5,5] y)
        <int64[4] heads = {2,5,3,8}> {
        p = MatMul (x, w)  q = Add (p, b)  r = Reshape (q, heads)
        a = Transpose <perm = [0, 2, 1, 3]> (r)  t = Transpose <perm = [0, 2, 3, 1]> (r)
        y = MatMul (a, t) }""",
    "square of one value": """g (float[4,4] x) => (float[4,4] y) { y = MatMul (x, x) }""",
    "rows of a conv": """g (float[1,4,3,5] x, float[6,4,3,3] w, float[90,7] b) => (float[1,7] y) {
        c = Conv <pads = [1, 1, 1, 1]> (x, w)  f = Flatten (c)  y = MatMul (f, b) }""",
}


@pytest.mark.parametrize("name", ATTENTION)
def test_products_among_others(name: str) -> None:
    check_text(ATTENTION[name])
