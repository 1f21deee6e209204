"""Picks a convolution's schedule on a GPU: the cheapest tiled form by the model, or an untiled one."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from convopt.schedules.conv_problem import ConvProblem
from convopt.schedules.gpu_conv_direct import GpuDirectConv
from convopt.schedules.gpu_implicit_gemm import LAUNCH_SECONDS, ImplicitGemm
from convopt.selection import model
from convopt.targets import GpuTarget

GPU_CONV_FAMILIES: tuple[type[Any], ...] = (ImplicitGemm, GpuDirectConv)


@lru_cache(maxsize=4096)
def choose_gpu_conv(
    problem: ConvProblem, target: GpuTarget, families: tuple[type[Any], ...] = GPU_CONV_FAMILIES
) -> Any:
    """The cheaper of both by estimate; untiled wins where groups are narrow, as in depthwise convolutions.

    Raises:
        ValueError: every family refuses; the text has each one's reason.
    """
    found: list[tuple[float, Any]] = []
    refusals = []
    if ImplicitGemm in families:
        try:
            choice = model.choose(problem, target)
            found.append((choice.estimate.seconds, choice.config))
        except ValueError as error:
            refusals.append(f"{ImplicitGemm.name}: {error}")
    if GpuDirectConv in families:
        schedule = GpuDirectConv()
        if (reason := schedule.why_not(problem, target)) is None:
            found.append((schedule.cost(problem, target).seconds + LAUNCH_SECONDS, schedule))
        else:
            refusals.append(f"{GpuDirectConv.name}: {reason}")
    if not found:
        raise ValueError("; ".join(refusals))
    return min(found, key=lambda pair: pair[0])[1]
