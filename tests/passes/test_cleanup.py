import pytest

from convopt.passes import PassContext
from convopt.passes.cleanup import Cleanup
from tests.passes.support import parse


def test_a_constant_that_is_an_output_too_is_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    model = parse("g (float[2] x) => (float[2] y, float[2] c) <float[2] c = {1.0, 2.0}> { y = Add (x, c) }")
    Cleanup().run(model, PassContext())
    assert not caplog.records
