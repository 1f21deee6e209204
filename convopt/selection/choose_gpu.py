"""Picks a convolution's schedule on a GPU: the cheapest tiled form by the model, or another family."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from convopt.schedules.conv_problem import ConvProblem
from convopt.schedules.gpu_conv_depthwise import GpuDepthwise
from convopt.schedules.gpu_conv_direct import GpuDirectConv
from convopt.schedules.gpu_implicit_gemm import LAUNCH_SECONDS, ImplicitGemm
from convopt.selection import model
from convopt.targets import GpuTarget

GPU_CONV_FAMILIES: tuple[type[Any], ...] = (ImplicitGemm, GpuDepthwise, GpuDirectConv)


@lru_cache(maxsize=4096)
def choose_gpu_conv(
    problem: ConvProblem, target: GpuTarget, families: tuple[type[Any], ...] = GPU_CONV_FAMILIES
) -> Any:
    """The cheapest by estimate; the implicit GEMM loses where groups are narrow, above all to depthwise.

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
    for family in families:
        if family is ImplicitGemm:
            continue
        for schedule in family.space(problem, target):
            if (reason := schedule.why_not(problem, target)) is None:
                cost = schedule.cost(problem, target)
                launch = max(LAUNCH_SECONDS - cost.overhead, 0.0)  # not every family counts it
                found.append((cost.seconds + launch, schedule))
            else:
                refusals.append(f"{family.name}: {reason}")
    if not found:
        raise ValueError("; ".join(refusals))
    return min(found, key=lambda pair: pair[0])[1]
