"""What several of the conformance tests call."""

from __future__ import annotations

from typing import Any

import pytest

import convopt
from tests.conformance.small import small


@pytest.fixture(scope="module")
def module() -> Any:
    """The small model with open dims, at two threads: for tests that only call it."""
    return convopt.optimize(small(), threads=2)
