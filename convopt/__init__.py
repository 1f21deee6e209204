"""convopt: a graph optimizer and kernel generator for convolutional networks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from convopt.interface import optimize as optimize
    from convopt.runtime.artifact import load as load

_HOMES = {"optimize": "convopt.interface", "load": "convopt.runtime.artifact"}


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})


def __getattr__(name: str) -> Any:
    """Imports the compiling half on `optimize`, the running half alone on `load`."""
    if name not in _HOMES:
        raise AttributeError(f"module 'convopt' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
