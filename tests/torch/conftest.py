"""All tests here compile kernels; torch warns of its own interfaces, which is no concern of ours."""

from __future__ import annotations

from pathlib import Path

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.kernels)
            for what in ("ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::UserWarning:torch"):
                item.add_marker(pytest.mark.filterwarnings(what))
