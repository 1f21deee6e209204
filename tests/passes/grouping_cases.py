"""Graphs in ONNX text for grouping and layouts, by name."""

from __future__ import annotations

_W = "float[4,4,3,3] w, float[4,4,1,1] v"
_SAME = "<pads = [1, 1, 1, 1]>"

GROUPS = {
    "a conv with its activation": f"""g (float[1,4,5,6] x, {_W}, float[4] b) => (float[1,4,5,6] y) {{
        c = Conv {_SAME} (x, w, b)  s = Sigmoid (c)  y = Mul (c, s) }}""",
    "the later of two convs takes the sum": f"""g (float[1,4,5,6] x, {_W}) => (float[1,4,5,6] y) {{
        a = Conv {_SAME} (x, w)  b = Conv (a, v)  s = Add (a, b)  y = Relu (s) }}""",
    "a value read outside ends the group": f"""g (float[1,4,5,6] x, {_W}) => (float[1,4,5,6] y,
            float[1,4,5,6] z) {{
        a = Conv {_SAME} (x, w)  b = Relu (a)  y = Sigmoid (b)  z = Conv (b, v) }}""",
    "an operand made from the conv itself": f"""g (float[1,4,5,6] x, {_W}) => (float[1,4,5,6] y) {{
        a = Conv {_SAME} (x, w)  p = GlobalAveragePool (a)  s = Sigmoid (p)  y = Mul (a, s) }}""",
    "another shape does not join": """g (float[1,4,5,6] x, float[4,4,1,1] v, float[3,1,1,1] k)
            => (float[3,4,5,6] y) {
        a = Conv (x, v)  b = Relu (a)  y = Add (b, k) }""",
    "a product with its bias": """g (float[2,5,8] x, float[8,6] b, float[6] c) => (float[2,5,6] y) {
        p = MatMul (x, b)  s = Add (p, c)  y = Relu (s) }""",
    "elementwise alone": """g (float[2,5,8] x, float[8] c) => (float[2,5,8] y, float[2,5,8] z) {
        a = Mul (x, c)  b = Add (a, c)  y = Relu (b)  z = Neg (b) }""",
    "movement and views": """g (float[1,4,5,6] x, float[4,4,1,1] v) => (float[8,30] y) <int64[2] s = {8,30}> {
        a = Conv (x, v)  b = Concat <axis = 1> (a, x)  y = Reshape (b, s) }""",
    "islands by level": """g (float[2,3] x) => (float[2,3] y) {
        a = Asinh (x)  b = Relu (a)  c = Asinh (b)  d = Acosh (a)  y = Add (c, d) }""",
    "constants move into the body": """g (float[1,4,5,6] x, float[4,4,1,1] v) => (float[1,4,5,6] y)
        <float low = {0.0}, float high = {6.0}, float[1] k = {0.5}> {
        a = Conv (x, v)  b = Mul (a, k)  y = Clip (b, low, high) }""",
}

# Captured values: read inside the branches and bodies, made outside.
SUBGRAPHS = {
    "If": """g (float[2,3] x, bool x_c) => (float[2,3] y) {
        a = Relu (x)  n = Neg (a)
        i = If (x_c) <then_branch = t () => (float[2,3] u) { u = Mul (a, n) },
                      else_branch = e () => (float[2,3] v) { v = Add (a, a) }>
        y = Sigmoid (i) }""",
    "If in an If": """g (float[2,3] x, bool x_c) => (float[2,3] y) {
        a = Relu (x)
        i = If (x_c) <then_branch = t () => (float[2,3] u) {
                u = If (x_c) <then_branch = s () => (float[2,3] p) { p = Neg (a) },
                              else_branch = r () => (float[2,3] q) { q = Mul (a, x) }> },
                      else_branch = e () => (float[2,3] v) { v = Add (a, a) }>
        y = Neg (i) }""",
    "cycles without care": """g (float[2,3] x, bool x_c) => (float[2,3] y) {
        u = Asinh (x)  a = Relu (u)
        i = If (x_c) <then_branch = t () => (float[2,3] p) { p = Neg (a) },
                      else_branch = e () => (float[2,3] q) { q = Add (a, u) }>
        y = Mul (a, i) }""",
    "a constant": """g (float[2,3] x, bool x_c, float[2,3] a) => (float[2,3] y) {
        i = If (x_c) <then_branch = t () => (float[2,3] p) { p = Add (x, a) },
                      else_branch = e () => (float[2,3] q) { q = Mul (x, a) }>
        r = Relu (i)  y = Add (r, a) }""",
    "Loop": """g (float[2,3] x) => (float[2,3] y) <int64 trips = {3}, bool go = {1}> {
        a = Relu (x)
        l = Loop (trips, go, a) <body = b (int64 i, bool c, float[2,3] s) => (bool d, float[2,3] r) {
            d = Identity (c)  r = Add (s, a) }>
        y = Neg (l) }""",
}

REFUSALS = {
    "no kernel family computes Asinh": "g (float[2,3] x) => (float[2,3] y) { y = Asinh (x) }",
    "the shape of x is not static": "g (float[N,3] x) => (float[N,3] y) { y = Relu (x) }",
    "an operand is empty": """g (float[0,3] x, float[2,3] x_b) => (float[2,3] y) {
        y = Concat <axis = 0> (x, x_b) }""",
    "the weight is not constant": """g (float[1,2,5,5] x, float[3,2,1,1] x_w) => (float[1,3,5,5] y) {
        y = Conv (x, x_w) }""",
    "the bias is not constant": """g (float[1,2,5,5] x, float[3,2,1,1] w, float[3] x_b)
            => (float[1,3,5,5] y) {
        y = Conv (x, w, x_b) }""",
    "only 1, 2 and 3 spatial dimensions have kernels": """g (float[1,2,2,2,2,2] x, float[3,2,1,1,1,1] w)
        => (float[1,3,2,2,2,2] y) { y = Conv (x, w) }""",
    "auto_pad was not made explicit": """g (float[1,2,5,5] x, float[3,2,3,3] w) => (float[1,3,5,5] y) {
        y = Conv <auto_pad = "SAME_UPPER"> (x, w) }""",
    "elements of type DOUBLE are not moved by kernels": """g (double[2,3] x) => (double[3,2] y) {
        y = Transpose (x) }""",
    "MatMul of DOUBLE": "g (double[2,3] x, double[3,4] x_b) => (double[2,4] y) { y = MatMul (x, x_b) }",
    "operator of domain local": """g (float[2,3] x) => (float[2,3] y) { y = local.Half (x) }
        <domain: "local", opset_import: ["" : 18]> Half (a) => (r) { r = Neg (a) }""",
}

LAYOUTS = {
    "one conv": f"g (float[1,4,5,6] x, {_W}) => (float[1,4,5,6] y) {{ y = Conv {_SAME} (x, w) }}",
    "convs with what is between": f"""g (float[1,4,5,6] x, {_W}) => (float[1,4,5,6] y) {{
        a = Conv {_SAME} (x, w)  p = GlobalAveragePool (a)  s = Sigmoid (p)  m = Mul (a, s)
        c = Concat <axis = 1> (m, a)  h, t = Split <axis = 1, num_outputs = 2> (c)
        b = Add (h, t)  y = Conv (b, v) }}""",
    "channels at the end outside": f"""g (float[1,5,6,4] x, {_W}) => (float[1,5,6,4] y) {{
        t = Transpose <perm = [0, 3, 1, 2]> (x)  c = Conv {_SAME} (t, w)
        y = Transpose <perm = [0, 2, 3, 1]> (c) }}""",
    "a copy for all": f"""g (float[1,4,5,6] x, {_W}) => (float[1,4,5,6] y, float[1,4,5,6] z,
            float[1,4,5,6] u) {{
        y = Conv {_SAME} (x, w)  z = Conv (x, v)  u = Relu (x) }}""",
    "an island between": f"""g (float[1,4,5,6] x, {_W}) => (float[1,4,5,6] y) {{
        a = Conv {_SAME} (x, w)  b = Asinh (a)  y = Conv (b, v) }}""",
    "one channel has one order": """g (float[1,1,5,6] x, float[1,1,3,3] w) => (float[1,1,3,4] y) {
        y = Conv (x, w) }""",
    "nothing wants channels last": "g (float[1,4,5,6] x) => (float[1,4,5,6] y) { y = Relu (x) }",
}

# Values whose extents are known at run time only; x_c decides a branch.
UNKNOWN = {
    "a backbone, then a Gather": """g (float[1,2,3,3] x, float[2,2,1,1] w) => (float[K] y) {
        n = NonZero (x)  t = Transpose <perm = [1, 0]> (n)  a = Conv (x, w)  y = GatherND (a, t) }""",
    "later nodes wait for compiled ones": """g (float[4,3] x) => (float[K] y) {
        n = NonZero (x)  t = Transpose <perm = [1, 0]> (n)  r = Relu (x)  s = Asinh (r)
        y = GatherND (s, t) }""",
    "also an output": """g (float[4,3] x) => (float[K] y, int64[K,2] t) {
        n = NonZero (x)  t = Transpose <perm = [1, 0]> (n)  r = Relu (x)  s = Asinh (r)
        y = GatherND (s, t) }""",
    "captured": """g (float[4,3] x, bool x_c) => (float[K] y) {
        n = NonZero (x)  t = Transpose <perm = [1, 0]> (n)  r = Relu (x)
        y = If (x_c) <then_branch = th () => (float[K] p) { p = GatherND (r, t) },
                      else_branch = e () => (float[K] q) { q = GatherND (x, t) }> }""",
    "compiled nodes between": """g (float[4,3] x) => (float[K] y) {
        n = NonZero (x)  z = Size (n)  f = Cast <to = 1> (z)  r = Mul (x, f)
        t = Transpose <perm = [1, 0]> (n)  y = GatherND (r, t) }""",
    "a sequence": """g (float[2,3] x) => (float[2,3] y) <int64 i = {0}> {
        n = SequenceConstruct (x, x)  h = SequenceAt (n, i)  r = Neg (h)  t = SequenceInsert (n, r)
        y = SequenceAt (t, i) }""",
    "a sequence of nothing": """g (float[0,3] x) => (float[2,0,3] y) {
        n = SequenceConstruct (x, x)  y = ConcatFromSequence <axis = 0, new_axis = 1> (n) }""",
    "strings": """g (int64[2,3] x, int64[0] x_e) => (string[2,3] y, string[0] z) {
        n = Cast <to = 8> (x)  f = Cast <to = 1> (n)  r = Relu (f)  b = Cast <to = 9> (r)
        y = Where (b, n, n)  z = Cast <to = 8> (x_e) }""",
}
