"""What all tests share: golden files and hypothesis profiles."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# `make test` has to give the same answer twice: examples are derived from the test, not from a seed.
# CONVOPT_HYPOTHESIS=random explores instead.
settings.register_profile(
    "ci", derandomize=True, deadline=None, suppress_health_check=list(HealthCheck), database=None
)
settings.register_profile("random", deadline=None, suppress_health_check=list(HealthCheck), print_blob=True)
settings.load_profile(os.environ.get("CONVOPT_HYPOTHESIS", "ci"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="write golden files instead of comparing with them"
    )


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[..., None]:
    """golden(text) compares with the file `golden/<test name>.txt` beside the test's module.

    golden(text, "before") takes `golden/<test name>.before.txt`. --update-golden writes the file; without it
    a missing file fails like a different one.
    """
    folder = request.path.parent / "golden"
    update = request.config.getoption("--update-golden")

    def check(text: str, part: str = "") -> None:
        path: Path = folder / f"{request.node.name}{'.' if part else ''}{part}.txt"
        text = text.rstrip("\n") + "\n"
        if update:
            folder.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
            return
        if not path.exists():
            pytest.fail(f"no golden file {path}; pytest --update-golden writes it")
        assert text == path.read_text(encoding="utf-8"), (
            f"differs from {path}; pytest --update-golden rewrites it"
        )

    return check
