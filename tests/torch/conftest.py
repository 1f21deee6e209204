"""All tests here compile kernels; torch warns of its own interfaces, which is no concern of ours."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _without_torchs_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's structured trace would fill the report of a failed test."""
    monkeypatch.setattr(logging.getLogger("torch.__trace"), "propagate", False)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.kernels)
            for what in ("ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::UserWarning:torch"):
                item.add_marker(pytest.mark.filterwarnings(what))
