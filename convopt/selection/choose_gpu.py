"""Picks how a convolution or a product is computed on a GPU: the cheapest tiled form by the model, another
family, or an unfolded matrix and its GEMM.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

from convopt.schedules.base import row_major
from convopt.schedules.conv_problem import ConvProblem
from convopt.schedules.gpu_conv_depthwise import GpuDepthwise
from convopt.schedules.gpu_conv_direct import GpuDirectConv
from convopt.schedules.gpu_gemm_problem import GemmProblem
from convopt.schedules.gpu_im2col import GpuIm2col
from convopt.schedules.gpu_implicit_gemm import LAUNCH_SECONDS, ImplicitGemm
from convopt.schedules.im2col import Im2colProblem
from convopt.schedules.primitives.vector_width import ITEMSIZE
from convopt.selection import gpu_search, model
from convopt.selection.unfold import Chunk, split
from convopt.targets import GpuTarget

GPU_CONV_FAMILIES: tuple[type[Any], ...] = (ImplicitGemm, GpuDepthwise, GpuDirectConv)
GPU_GEMM_FAMILIES: tuple[type[Any], ...] = (ImplicitGemm, GpuDirectConv)
_GEMM: tuple[type[Any], ...] = (ImplicitGemm,)


def choose_gpu_conv(
    problem: ConvProblem, target: GpuTarget, families: tuple[type[Any], ...] = GPU_CONV_FAMILIES
) -> Any:
    """The cheapest by estimate; the implicit GEMM loses where groups are narrow, above all to depthwise.

    Raises:
        ValueError: every family refuses; the text has each one's reason.
    """
    return priced_gpu_conv(problem, target, families)[1]


@lru_cache(maxsize=4096)
def priced_gpu_conv(
    problem: ConvProblem, target: GpuTarget, families: tuple[type[Any], ...] = GPU_CONV_FAMILIES
) -> tuple[float, Any]:
    """(seconds by estimate, the schedule) of `choose_gpu_conv`."""
    found, refusals = _priced_plain(problem, target, families)
    best = min(found, key=lambda pair: pair[0], default=(float("inf"), None))
    if ImplicitGemm in families:
        try:
            choice = gpu_search.cheapest(problem, target)
            if choice.estimate.seconds <= best[0]:
                return choice.estimate.seconds, gpu_search.padded(choice, problem, target).config
        except ValueError as error:
            refusals.insert(0, f"{ImplicitGemm.name}: {error}")
    if best[1] is None:
        raise ValueError("; ".join(refusals))
    return best


def _priced_plain(
    problem: ConvProblem, target: GpuTarget, families: tuple[type[Any], ...]
) -> tuple[list[tuple[float, Any]], list[str]]:
    """Every schedule of the families but the implicit GEMM, with its seconds; why others refuse."""
    found: list[tuple[float, Any]] = []
    refusals = []
    for family in families:
        if family is ImplicitGemm:
            continue
        for schedule in family.space(problem, target):
            if (reason := schedule.why_not(problem, target)) is None:
                found.append((gpu_seconds(schedule, problem, target), schedule))
            else:
                refusals.append(f"{family.name}: {reason}")
    return found, refusals


def least_gpu_seconds(problem: ConvProblem, target: GpuTarget, families: tuple[type[Any], ...]) -> float:
    """What `priced_gpu_conv` finds at least, without pricing the implicit GEMM's tiles."""
    found, _ = _priced_plain(problem, target, families)
    return min([model.least_seconds(problem, target), *(seconds for seconds, _ in found)])


def gpu_seconds(schedule: Any, problem: ConvProblem, target: GpuTarget) -> float:
    """By estimate, of a schedule of these families. ValueError where it does not fit the chip."""
    if isinstance(schedule, ImplicitGemm):
        return model.estimate(schedule, problem, target).seconds
    cost = schedule.cost(problem, target)
    launch = max(LAUNCH_SECONDS - cost.overhead, 0.0)  # not every family counts it
    return float(cost.seconds + launch)


@lru_cache(maxsize=4096)
def choose_transposition(problem: GemmProblem, target: GpuTarget) -> bool:
    """Whether a right operand that is not contiguous along the reduction is better copied to one that is.

    Raises:
        ValueError: the GEMM takes the problem in neither form.
    """
    if problem.b.strides[2] == 1 or problem.b.shape[2] == 1:
        return False
    moved = 2 * problem.b.size * ITEMSIZE[problem.b.dtype] / target.memory_rate
    try:
        copied, _ = priced_gpu_conv(
            replace(problem, b=row_major(problem.b.shape, problem.b.dtype)), target, _GEMM
        )
    except ValueError:
        return False
    try:
        across, _ = priced_gpu_conv(problem, target, _GEMM)
    except ValueError:
        return True
    return copied + moved + LAUNCH_SECONDS < across


def gpu_split(problem: ConvProblem, chunk: Chunk) -> tuple[Im2colProblem, ConvProblem]:
    """The two kernels of a chunk: x is read from image 0, row 0 of the chunk's first image on, and checked.

    The matrix keeps the input's type. GPU kernels read no border: the pads move with the chunk's first row.
    """
    unfold, gemm = split(problem, chunk)
    pads = (unfold.pads[0], unfold.pads[1] - chunk.row * problem.strides[1], unfold.pads[2])
    matrix = replace(gemm.x, dtype=problem.x.dtype, alignment=16)
    return replace(unfold, pads=pads), replace(gemm, x=matrix, arithmetic=problem.arithmetic)


def choose_im2col(problem: Im2colProblem, target: GpuTarget) -> GpuIm2col:
    """ValueError: neither form takes it."""
    refusals = []
    for schedule in (GpuIm2col(True), GpuIm2col(False)):
        if (reason := schedule.why_not(problem, target)) is None:
            return schedule
        refusals.append(reason)
    raise ValueError(f"{GpuIm2col.name}: {'; '.join(refusals)}")
