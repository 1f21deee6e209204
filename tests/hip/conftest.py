from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.hip.stub_device import Stub, build


@pytest.fixture(scope="session")
def _built(tmp_path_factory: pytest.TempPathFactory) -> Stub:
    return build(tmp_path_factory.mktemp("stub"))


@pytest.fixture
def stub(_built: Stub, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stub]:
    """A Hygon K100-AI that is none; code objects are compiled once for all tests."""
    monkeypatch.setenv("CONVOPT_HIP_LIBRARY", str(_built.library))
    monkeypatch.setenv("ROCM_PATH", str(_built.toolkit))
    monkeypatch.setenv("CONVOPT_CACHE", str(_built.library.parent / "cache"))
    _built.configure()
    _built.calls()
    yield _built
    _built.configure()
