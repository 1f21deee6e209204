"""The outcome of one check, and what it must not exceed."""

from __future__ import annotations

from dataclasses import dataclass

TOLERANCE = {"float32": 1e-5, "float16": 2e-3}  # of the largest value


@dataclass(frozen=True)
class Check:
    """error: the largest difference over the largest value. reason: why there is none."""

    name: str
    error: float | None
    tolerance: float
    seconds: float = 0.0
    reason: str | None = None

    @property
    def passed(self) -> bool:
        return self.error is not None and self.error <= self.tolerance
