"""What is known of each device: one frozen value per chip, with the source of its numbers."""

from convopt.targets.cpu import CpuTarget, host_cpu
from convopt.targets.gpu import GPU_TARGETS, GpuTarget, find_target

Target = CpuTarget

__all__ = ["GPU_TARGETS", "CpuTarget", "GpuTarget", "Target", "find_target", "host_cpu"]
