"""How many blocks of a kernel a compute unit holds at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from convopt.targets import GpuTarget


def resident(threads: Any, registers: Any, shared: Any, target: GpuTarget) -> Any:
    """Blocks on a compute unit: by registers, by shared memory, by slots for waves. 0: it doesn't fit.

    Of one kernel, or of columns of them.
    """
    waves = -(-threads // target.wave)
    step = target.register_step
    per_wave = -(-registers // step) * step * target.wave
    by_registers = target.registers_per_cu // (per_wave * waves)
    by_shared = target.shared_per_cu // np.maximum(shared, 1)
    return np.minimum(np.minimum(by_registers, by_shared), target.most_waves // waves)


@dataclass(frozen=True)
class Launch:
    """A kernel's blocks and what each of them takes; registers are 32-bit ones per thread."""

    blocks: int
    threads: int
    registers: int
    shared: int  # bytes

    def resident(self, target: GpuTarget) -> int:
        """Blocks on a compute unit. 0: it doesn't fit."""
        return int(resident(self.threads, self.registers, self.shared, target))

    def occupancy(self, target: GpuTarget) -> float:
        """Resident waves against the slots for them."""
        waves = -(-self.threads // target.wave)
        return self.resident(target) * waves / target.most_waves
