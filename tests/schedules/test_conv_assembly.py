"""The inner loops of the chosen convolution kernels, read from their assembly: all sums in registers."""

from __future__ import annotations

import re

import pytest

from convopt.codegen.cpu import assembly
from convopt.schedules.conv_depthwise import DepthwiseConv
from convopt.schedules.conv_direct import DirectConv
from convopt.schedules.conv_problem import ConvProblem
from convopt.targets.cpu import BY_NAME, CpuTarget
from tests.schedules.conv_cases import RELU, SUM_RELU, Case

pytestmark = pytest.mark.kernels

_LABEL = re.compile(r"^(\.L\w+):")
_BRANCH = re.compile(r"^\s+(?:j\w+|b\.\w+|b|cbn?z|tbn?z)\s.*?(\.L\w+)$")
_FMA = re.compile(r"^\s+(?:vfn?m(?:add|sub)\w+p[sh]|fml[as])\s")
_VECTOR = re.compile(r"%[xyz]mm\d|\b[qv]\d+\b")
_STACK = re.compile(r"\(%rsp|\[sp")

# ResNet-50 at 224x224, a layer of each form (He et al. 2015, table 1), and MobileNet's depthwise layers.
RESNET = {
    "stem": Case(3, 64, (1, 224, 224), (1, 7, 7), (1, 2, 2), begin=(0, 3, 3), end=(0, 3, 3), epilogue=RELU),
    "1x1 64->256 @56": Case(64, 256, (1, 56, 56), epilogue=SUM_RELU, others=("full",)),
    "3x3 64->64 @56": Case(64, 64, (1, 56, 56), (1, 3, 3), begin=(0, 1, 1), end=(0, 1, 1), epilogue=RELU),
    "1x1 s2 256->512 @56": Case(256, 512, (1, 56, 56), strides=(1, 2, 2)),
    "3x3 s2 128->128 @56": Case(128, 128, (1, 56, 56), (1, 3, 3), (1, 2, 2), begin=(0, 1, 1), end=(0, 1, 1)),
    "3x3 256->256 @14": Case(256, 256, (1, 14, 14), (1, 3, 3), begin=(0, 1, 1), end=(0, 1, 1), epilogue=RELU),
    "3x3 512->512 @7": Case(512, 512, (1, 7, 7), (1, 3, 3), begin=(0, 1, 1), end=(0, 1, 1), epilogue=RELU),
    "1x1 2048->512 @7": Case(2048, 512, (1, 7, 7), epilogue=RELU),
}
DEPTHWISE = {
    "3x3 @56": Case(1, 1, (1, 56, 56), (1, 3, 3), begin=(0, 1, 1), end=(0, 1, 1), groups=128, epilogue=RELU),
    "3x3 s2 @56": Case(1, 1, (1, 56, 56), (1, 3, 3), (1, 2, 2), begin=(0, 1, 1), end=(0, 1, 1), groups=128),
    "5x5 @14": Case(1, 1, (1, 14, 14), (1, 5, 5), begin=(0, 2, 2), end=(0, 2, 2), groups=480),
}
TARGETS = {"znver3": "znver3", "haswell": "haswell", "skylake-avx512": "skylake-avx512", "neon": "generic"}


def cheapest(
    family: type[DirectConv] | type[DepthwiseConv], problem: ConvProblem, target: CpuTarget
) -> DirectConv | DepthwiseConv:
    possible = [s for s in family.space(problem, target) if s.why_not(problem, target) is None]
    return min(possible, key=lambda s: s.cost(problem, target).seconds)


def inner_loops(text: str, product: str = _FMA.pattern) -> list[list[str]]:
    """The instructions between a label and a jump back to it, with products and no loop inside."""
    places: dict[str, int] = {}
    loops: list[tuple[int, int]] = []
    lines = [line.split("#")[0].rstrip() for line in text.splitlines()]
    for number, line in enumerate(lines):
        if label := _LABEL.match(line):
            places[label[1]] = number
        elif (branch := _BRANCH.match(line)) and branch[1] in places:
            loops.append((places[branch[1]], number))
    innermost = [a for a in loops if not any(a[0] <= b[0] and b[1] <= a[1] and a != b for b in loops)]
    bodies = [lines[begin : end + 1] for begin, end in innermost]
    return [body for body in bodies if any(re.match(product, line) for line in body)]


def spills(body: list[str]) -> list[str]:
    return [line.strip() for line in body if _STACK.search(line) and _VECTOR.search(line)]


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("layer", RESNET)
def test_direct_keeps_its_sums_in_registers(layer: str, name: str) -> None:
    target, problem = BY_NAME[TARGETS[name]], RESNET[layer].problem
    schedule = cheapest(DirectConv, problem, target)
    loops = inner_loops(assembly(schedule.apply(problem, target, "kernel"), target))
    assert loops, f"{schedule} has no inner loop of multiply-adds"
    for body in loops:
        assert not spills(body), f"{schedule}: {spills(body)[0]}"
    most = max(sum(bool(_FMA.match(line)) for line in body) for body in loops)
    assert most >= 8, f"{schedule}: {most} multiply-adds in flight don't hide their latency"


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("layer", DEPTHWISE)
def test_depthwise_keeps_its_sums_in_registers(layer: str, name: str) -> None:
    target, problem = BY_NAME[TARGETS[name]], DEPTHWISE[layer].problem
    schedule = cheapest(DepthwiseConv, problem, target)
    assert isinstance(schedule, DepthwiseConv)
    loops = inner_loops(assembly(schedule.apply(problem, target, "kernel"), target))
    assert loops, f"{schedule} has no inner loop of multiply-adds"
    for body in loops:
        # The loop is a whole tile, all weights included: what LLVM holds of them beyond the registers may
        # wait on the stack, as cheap as loading it again.
        products = sum(bool(_FMA.match(line)) for line in body)
        if problem.taps <= target.vector_registers:
            assert len(spills(body)) * 10 <= products, f"{schedule}: {spills(body)[0]}"
            continue
        # More weights than registers: each is stored once at most, and loaded again once for each output.
        # (5x5 at 14x14 on 16 registers: 21 of 25 weights; the fastest of `convopt choices` all the same.)
        stored = [line for line in spills(body) if line.endswith("(%rsp)")]
        assert len(stored) <= problem.taps, f"{schedule}: {stored[0]}"
        assert len(spills(body)) - len(stored) <= len(stored) * schedule.rows * schedule.columns


def test_a_spill_is_seen() -> None:
    """The check itself: more sums than registers, which the family refuses, are spilled."""
    target, problem = BY_NAME["znver3"], RESNET["3x3 64->64 @56"].problem
    schedule = DirectConv(14, 2, 64, False, 4, 4)
    assert schedule.why_not(problem, target) == "31 vector registers > 16"
    loops = inner_loops(assembly(schedule.apply(problem, target, "kernel"), target))
    assert any(spills(body) for body in loops)
