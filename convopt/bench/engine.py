"""What an engine of bench is: it makes, from one static ONNX model, a call ready to be timed."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from convopt import __version__
from convopt.bench.cases import Layout

if TYPE_CHECKING:
    import numpy as np
    import onnx

    Arrays = dict[str, np.ndarray[Any, Any]]


class Unavailable(Exception):
    """The engine can't run this; the text says why."""


@dataclass(frozen=True)
class Settings:
    """What all engines of a run are given alike."""

    threads: int
    precision: str  # fp32, tf32, bf16 or fp16: what an engine may compute with inside
    target: str = "cpu"  # or a GPU's name, on which all engines run then
    cache_dir: str | None = None  # of convopt's kernels and measurements; None: the default one

    @property
    def dtype(self) -> str:
        """Of a single convolution's input and output: on a GPU the precision's, else float32."""
        return "float16" if self.target != "cpu" and self.precision == "fp16" else "float32"


@dataclass(frozen=True)
class Prepared:
    """`call()` is what gets timed; `outputs()` copies the last call's results, in the model's order.

    timed: seconds of a call by the device's own clock, where that and not the caller's is to be read.
    """

    call: Callable[[], object]
    outputs: Callable[[], list[np.ndarray[Any, Any]]]
    timed: Callable[[], float] | None = None


class Engine(Protocol):
    """`layouts`: how a single conv's input and output may lie in memory; the faster one counts.

    packages: that it needs, the one whose version is the engine's in front.
    """

    name: str
    layouts: tuple[Layout, ...]
    packages: tuple[str, ...]

    def prepare(self, model: onnx.ModelProto, inputs: Arrays, settings: Settings) -> Prepared: ...


def version_of(packages: Sequence[str]) -> str:
    """Of the first. Unavailable: one of them isn't installed."""
    for package in packages:
        if importlib.util.find_spec(package) is None:
            raise Unavailable(f"{package} is not installed")
    own = packages[0]
    return __version__ if own == "convopt" else importlib.metadata.version(own)
