"""Python's garbage collector around a compilation."""

from __future__ import annotations

import gc

import pytest

torch = pytest.importorskip("torch")

from convopt.torch_backend.collector import paused_collector  # noqa: E402


def test_it_is_back_behind_an_error_and_the_outer_pause() -> None:
    with pytest.raises(ZeroDivisionError), paused_collector():
        with paused_collector():
            pass
        assert not gc.isenabled()
        raise ZeroDivisionError
    assert gc.isenabled()


def test_who_had_switched_it_off_finds_it_off() -> None:
    gc.disable()
    try:
        with paused_collector():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
