"""Products of bfloat16: AMX tiles and AVX512-BF16 pairs, emulated here and native where the CPU has them.

Expected values are float64 sums of the inputs and weights rounded to bfloat16, as the kernels see them.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from convopt.codegen.cpu import assembly
from convopt.runtime.machine import allow_tiles
from convopt.schedules.conv_amx import AmxConv, chunk_of, run_of
from convopt.schedules.conv_pairs import PairConv
from convopt.schedules.conv_problem import ConvProblem
from convopt.schedules.primitives.tile_unit import configuration
from convopt.targets import CpuTarget, host_cpu
from convopt.targets.cpu import COOPERLAKE, SAPPHIRERAPIDS, ZNVER4
from tests.fenced_kernels import FencedKernels
from tests.schedules.conv_cases import FMA, FULL, PIXEL, RELU, ROW, SUM_RELU, Case, Data
from tests.schedules.test_conv_assembly import inner_loops, spills

HOST = host_cpu()
EMULATED: dict[str, CpuTarget] = {
    "amx": replace(HOST, bf16="amx", emulated=True),
    "dot": replace(HOST, bf16="dot", emulated=True),
}
NATIVE = {"amx": HOST.bf16 == "amx", "dot": HOST.bf16 is not None}
FAMILIES: dict[str, Any] = {"amx": AmxConv, "dot": PairConv}


def case(channels: int, features: int, extents: tuple[int, int, int], **options: Any) -> Case:
    given = {"x_dtype": "bfloat16", "y_dtype": "bfloat16"} | options
    return Case(channels, features, extents, **given)


ONE = {"kernel": (1, 3, 3), "begin": (0, 1, 1), "end": (0, 1, 1)}
# Channels in one, two and uneven rows of a tile; features below, at and beyond one and two tiles; runs of
# pixels shorter than, equal to and longer than a tile; odd numbers of tiles.
CASES = {
    "1x1": case(32, 32, (1, 7, 7)),
    "1x1, 3 tiles of pixels": case(64, 40, (1, 3, 14), epilogue=SUM_RELU, others=(FULL,)),
    "1x1 s2, K=4": case(16, 4, (1, 7, 9), strides=(1, 2, 2), bias=False),
    "3x3 @7": case(32, 48, (1, 7, 7), epilogue=RELU, **ONE),
    "3x3, K=27, float32 out": case(24, 27, (1, 5, 17), batch=2, y_dtype="float32", **ONE),
    "3x3 s2, two channel blocks": case(
        64, 33, (1, 9, 11), strides=(1, 2, 2), epilogue=FMA, others=(ROW, PIXEL), **ONE
    ),
    "dilated": case(20, 16, (1, 9, 8), kernel=(1, 3, 3), dilations=(1, 2, 2), begin=(0, 2, 2), end=(0, 2, 2)),
    "groups in slots": case(16, 17, (1, 4, 6), groups=2, x_gap=8, y_gap=5, **ONE),
    "1-D": case(10, 35, (1, 1, 40), kernel=(1, 1, 5), strides=(1, 1, 3), end=(0, 0, 2)),
    "3-D": case(8, 20, (3, 4, 5), kernel=(2, 3, 2), begin=(0, 1, 1), end=(1, 1, 0), batch=2, bias=False),
    "one pixel": case(48, 65, (1, 1, 1)),
}


def problem_of(name: str) -> ConvProblem:
    return replace(CASES[name].problem, arithmetic="bfloat16")


def instances(family: str, name: str, target: CpuTarget) -> list[Any]:
    problem = problem_of(name)
    return [s for s in FAMILIES[family].space(problem, target) if s.why_not(problem, target) is None]


def check(name: str, schedules: list[Any], target: CpuTarget, folder: Path) -> None:
    drawn, problem = Data.draw(CASES[name]), problem_of(name)
    rounded = drawn.weight.astype(ml_dtypes.bfloat16).astype(np.float32)
    data = Data.of(CASES[name], drawn.x, rounded, drawn.bias, drawn.others)
    kernels = FencedKernels([(s, problem) for s in schedules], target, folder)
    for number, schedule in enumerate(schedules):
        packed = schedule.pack(problem, target, data.weight, data.bias)
        for at_end in (False, True):
            data.check(kernels, number, packed, at_end)


def some(family: str, name: str, target: CpuTarget, most: int) -> list[Any]:
    everything = instances(family, name, target)
    step = -(-len(everything) // most)
    return everything[list(CASES).index(name) % step :: step]


@pytest.mark.kernels
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", CASES)
def test_emulated(name: str, family: str, tmp_path: Path) -> None:
    schedules = some(family, name, EMULATED[family], 3)
    assert schedules
    check(name, schedules, EMULATED[family], tmp_path)


@pytest.mark.slow
@pytest.mark.kernels
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", CASES)
def test_every_emulated_instance(name: str, family: str, tmp_path: Path) -> None:
    check(name, some(family, name, EMULATED[family], 40), EMULATED[family], tmp_path)


@pytest.mark.kernels
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", CASES)
def test_native(name: str, family: str, tmp_path: Path) -> None:
    if not NATIVE[family]:
        pytest.skip(f"this CPU ({HOST.name}) has no {'AMX' if family == 'amx' else 'AVX512-BF16'}")
    if family == "amx" and (reason := allow_tiles()) is not None:
        pytest.skip(f"the system gives no AMX tiles: {reason}")
    check(name, some(family, name, HOST, 6), HOST, tmp_path)


LAYERS = {
    "3x3 64 @56": case(64, 64, (1, 56, 56), epilogue=RELU, **ONE),
    "1x1 256->64 @56": case(256, 64, (1, 56, 56), epilogue=SUM_RELU, others=(FULL,)),
    "3x3 512 @7": case(512, 512, (1, 7, 7), **ONE),
    "3x3 128->27 @64": case(128, 27, (1, 64, 64), **ONE),
}


def cheapest(family: str, layer: str, target: CpuTarget) -> tuple[Any, ConvProblem]:
    problem = replace(LAYERS[layer].problem, arithmetic="bfloat16")
    possible = [s for s in FAMILIES[family].space(problem, target) if s.why_not(problem, target) is None]
    return min(possible, key=lambda s: s.cost(problem, target).seconds), problem


@pytest.mark.kernels
@pytest.mark.parametrize("layer", LAYERS)
def test_amx_code(layer: str) -> None:
    """Four products for every two loads of each side, and no tile on the stack."""
    schedule, problem = cheapest("amx", layer, SAPPHIRERAPIDS)
    text = assembly(schedule.apply(problem, SAPPHIRERAPIDS, "kernel"), SAPPHIRERAPIDS)
    lines = [line.strip() for line in text.splitlines()]
    products = [line for line in lines if line.startswith("tdpbf16ps")]
    loads = [line for line in lines if line.startswith("tileload")]
    resumed = [line for line in loads if line[-1] in "0123"]  # partial sums, from scratch
    assert products and len(products) % 4 == 0
    assert len(loads) - len(resumed) == len(products)
    assert all("%rsp" not in line for line in lines if "%tmm" in line)
    for word in ("ldtilecfg", "tilezero", "tilestored", "tilerelease"):
        assert any(line.startswith(word) for line in lines), word


@pytest.mark.kernels
@pytest.mark.parametrize("target", [SAPPHIRERAPIDS, COOPERLAKE, ZNVER4], ids=lambda t: t.mcpu)
@pytest.mark.parametrize("layer", LAYERS)
def test_pair_code(layer: str, target: CpuTarget) -> None:
    schedule, problem = cheapest("dot", layer, target)
    text = assembly(schedule.apply(problem, target, "kernel"), target)
    assert "convopt_pair_products" not in re.sub(r"#.*", "", text), "the products are calls"
    bodies = inner_loops(text, r"\s+vdpbf16ps\s")
    assert bodies
    for body in bodies:
        assert not spills(body), f"{schedule}: {spills(body)[0]}"
    # One starts every cycle and takes six (uops.info).
    assert max(sum("vdpbf16ps" in line for line in body) for body in bodies) >= 6


def test_configuration() -> None:
    """Palette 1; rows of 64 bytes but for the inputs; rows of pixels and of pairs of channels."""
    data = configuration(rows=14, chunk=24)
    assert len(data) == 64 and data[0] == 1 and not any(data[1:16])
    assert list(np.frombuffer(data[16:32], np.uint16)) == [64, 64, 64, 64, 48, 48, 64, 64]
    assert list(data[48:56]) == [14, 14, 14, 14, 14, 14, 12, 12] and not any(data[56:])


def test_chunks_and_runs() -> None:
    assert [chunk_of(c) for c in (64, 24, 40, 144, 58, 3, 34)] == [32, 24, 20, 24, 2, 0, 2]
    flat = run_of(problem_of("3x3 @7"), True)
    assert flat is not None
    # 9 positions from row to row, the last row ends with its 7th: 61 positions, 4 tiles of 16.
    assert (flat.pitch, flat.length, flat.tiles, flat.pixels) == (9, 61, 4, 16)
    assert run_of(problem_of("1x1"), True) is not None  # rows without padding touch
    assert run_of(problem_of("one pixel"), True) is None


def test_refusals() -> None:
    problem, amx = problem_of("1x1"), EMULATED["amx"]
    tiles = AmxConv(False, 2, 32, False, 1, 1)
    assert tiles.why_not(problem, amx) is None
    assert tiles.why_not(problem, EMULATED["dot"]) == f"{HOST.name} has no AMX"
    assert tiles.why_not(replace(problem, arithmetic="float32"), amx) == "its products are float32"
    odd = replace(case(3, 8, (1, 4, 4)).problem, arithmetic="bfloat16")
    assert "3 input channels have no even divisor" in str(replace(tiles, channel_block=3).why_not(odd, amx))
    assert not list(AmxConv.space(odd, amx)) and not list(PairConv.space(CASES["1x1"].problem, amx))
    pairs = PairConv(2, 2, 3, False, 1, 1)
    assert pairs.why_not(odd, amx) == "blocks of 3 channels are no pairs"
