"""Which target an array on a device asks for. A module named cupy stands for the library."""

from __future__ import annotations

import sys
import types
from typing import Any

import numpy as np
import pytest

from convopt.arguments import target_of
from convopt.errors import InputError


class _Array:
    __module__ = "cupy"
    device = types.SimpleNamespace(id=2)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {"shape": (3,), "typestr": "<f4", "data": (256, False), "version": 3}


def _library(monkeypatch: pytest.MonkeyPatch, **properties: Any) -> None:
    def of(number: int) -> dict[str, Any]:
        assert number == 2
        return properties

    runtime = types.SimpleNamespace(getDeviceProperties=of)
    library = types.ModuleType("cupy")
    library.cuda = types.SimpleNamespace(runtime=runtime)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "cupy", library)


@pytest.mark.parametrize(
    ("properties", "target"),
    [
        ({"major": 7, "minor": 5}, "cuda:sm_75"),
        ({"major": 8, "minor": 6}, "cuda:sm_80"),
        ({"major": 9, "minor": 0, "gcnArchName": b"NVIDIA H200"}, "cuda:sm_90"),
        ({"major": 9, "minor": 4, "gcnArchName": b"gfx942:sramecc+:xnack-"}, "hip:gfx942"),
        ({"major": 9, "minor": 2, "gcnArchName": b"gfx928"}, "dcu:k100-ai"),
        ({"major": 9, "minor": 0, "gcnArchName": b"gfx906:sramecc-"}, "dcu:z100"),
    ],
)
def test_the_target_of_an_array_is_its_devices(
    properties: dict[str, Any], target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _library(monkeypatch, **properties)
    assert target_of(_Array()) == target


def test_a_chip_without_a_target_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    _library(monkeypatch, major=10, minor=3, gcnArchName=b"gfx1030")
    with pytest.raises(InputError, match="no target of dcu or hip is a gfx1030, the chip here"):
        target_of(_Array())


def test_arrays_on_the_host_have_none() -> None:
    assert target_of(np.zeros(3)) is None
    torch = pytest.importorskip("torch")
    assert target_of(torch.zeros(3)) is None
