import pytest

from convopt.passes import PassContext
from convopt.passes.cleanup import Cleanup
from tests.passes.support import parse


def test_a_constant_that_is_an_output_too_is_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    model = parse("g (float[2] x) => (float[2] y, float[2] c) <float[2] c = {1.0, 2.0}> { y = Add (x, c) }")
    Cleanup().run(model, PassContext())
    assert not caplog.records


def test_equal_nodes_that_are_not_one() -> None:
    """Bernoulli draws anew each time; onnx-ir can't compare attributes that are types."""
    texts = {
        "Bernoulli": "g (float[9] x) => (float y) { a = Bernoulli (x)  b = Bernoulli (x)  y = Sub (a, b) }",
        "Optional": """g (float[2] x) => (bool y, bool z) {
            a = Optional <type = float[2]> ()  b = Optional <type = float[2]> ()
            y = OptionalHasElement (a)  z = OptionalHasElement (b) }""",
    }
    for op, text in texts.items():
        model = parse(text)
        report = Cleanup().run(model, PassContext())
        assert [node.op_type for node in model.graph].count(op) == 2
        assert [n.text for n in report.notes if n.refused] == [f"equal nodes are kept, as beside {op} 'a'"]
