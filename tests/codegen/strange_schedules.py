"""Schedules that a compiler process may choke on; importable there, as PackMatrix is."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from convopt.schedules.gemm_pack import PackMatrix


@dataclass(frozen=True)
class Raises(PackMatrix):
    def apply(self, problem: Any, target: Any, symbol: str) -> Any:
        raise ValueError("no such tile")


@dataclass(frozen=True)
class WantsTorch(PackMatrix):
    def apply(self, problem: Any, target: Any, symbol: str) -> Any:
        import torch

        return torch


@dataclass(frozen=True)
class Aborts(PackMatrix):
    def apply(self, problem: Any, target: Any, symbol: str) -> Any:
        os.abort()


@dataclass(frozen=True)
class Exits(PackMatrix):
    def apply(self, problem: Any, target: Any, symbol: str) -> Any:
        os._exit(3)


@dataclass(frozen=True)
class Sleeps(PackMatrix):
    def apply(self, problem: Any, target: Any, symbol: str) -> Any:
        time.sleep(600)


@dataclass(frozen=True)
class Prints(PackMatrix):
    """Writes to file descriptor 1, where the answers go."""

    def apply(self, problem: Any, target: Any, symbol: str) -> Any:
        print("hello")
        os.write(1, b"\x08\0\0\0\0\0\0\0nonsense")
        return super().apply(problem, target, symbol)


@dataclass(frozen=True)
class Counts(PackMatrix):
    """Appends a byte to `path` for every time it is applied."""

    path: str = ""

    def apply(self, problem: Any, target: Any, symbol: str) -> Any:
        with Path(self.path).open("ab") as file:
            file.write(b".")
        return super().apply(problem, target, symbol)
