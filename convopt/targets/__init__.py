"""What is known of each device: one frozen value per chip, with the source of its numbers."""

from convopt.targets.cpu import CpuTarget, host_cpu

Target = CpuTarget

__all__ = ["CpuTarget", "Target", "host_cpu"]
