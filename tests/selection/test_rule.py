"""Each step of the rule on instances small enough to count by hand, then whole selections."""

from __future__ import annotations

import pytest

from convopt.bench.cases import conv_problem, parse_case
from convopt.selection.rule import (
    Instance,
    Machine,
    Size,
    allowed,
    fewest_launches,
    filling,
    most_reuse,
    prefiltered,
    select,
)
from convopt.selection.rule_cpu import cpu_rule
from convopt.targets.cpu import HASWELL, SKYLAKE_AVX512

# 4 units of 64 Ki registers and 64 KiB; blocks of at most 1024 threads and 48 KiB.
MACHINE = Machine("test", 4, 1024, 65536, 65536, 49152, 256, (16, 64))


def block(
    threads: tuple[int, int] = (16, 16),
    tiles: tuple[int, int] = (4, 4),
    depth: int = 16,
    registers: int = 64,
    shared: int = 8192,
) -> Instance:
    """registers: of a thread."""
    count = threads[0] * threads[1]
    return Instance("config", count, *threads, *tiles, depth, registers * count, shared)


def test_an_instance_has_the_claims_sides() -> None:
    one = block((16, 32), (4, 2))
    assert (one.block_m, one.block_n, one.threads) == (64, 64, 512)
    assert one.reuse == 64 * 64 / 128
    assert one.blocks(Size(65, 64, 7)) == 2


def test_step_1_keeps_what_the_hardware_allows() -> None:
    good, threads, shared = block(), block((64, 32)), block(shared=49153)
    registers = block(registers=257)
    step = allowed([good, threads, shared, registers], MACHINE)
    assert step.kept == (good,)
    assert step.dropped == {
        threads: "2048 threads > 1024",
        shared: "49153 B shared > 49152",
        registers: "65792 registers > 65536",
    }


def test_step_2_with_multiply_adds_wants_16_to_a_16th_of_the_most_threads() -> None:
    good, narrow, wide = block((16, 64)), block((8, 32)), block((128, 4))
    step = prefiltered([good, narrow, wide], MACHINE)
    assert step.kept == (good,)
    assert step.dropped[narrow] == "8 threads along m, not 16 to 64"
    assert step.dropped[wide] == "128 threads along m, not 16 to 64"


def test_step_2_with_a_matrix_unit_wants_its_tile() -> None:
    machine = Machine("test", 4, 1024, 65536, 65536, 49152, 64, None, (16, 16))
    good, small = block((16, 16), (1, 1)), block((16, 8), (1, 1))
    step = prefiltered([good, small], machine)
    assert step.kept == (good,)
    assert step.dropped[small] == "smaller than the matrix unit's 16x16"


def test_step_2_drops_what_leaves_too_few_threads_active() -> None:
    machine = Machine("test", 4, 1024, 65536, 65536, 49152, 512, (16, 64))
    some, few = block(registers=128), block(registers=200)  # 512 and 256 threads active
    step = prefiltered([some, few], machine)
    assert step.kept == (some,)
    assert step.dropped[few] == "registers leave 256 threads active, fewer than 512"


def test_step_3_keeps_what_fills_the_machine() -> None:
    large, small = block(), block(tiles=(2, 2))  # 64x64 and 32x32, each 4 blocks a unit: 16 in all
    step = filling([large, small], Size(128, 128, 64), MACHINE)
    assert step.kept == (small,)
    assert step.dropped == {large: "4 blocks < 16, which fill the machine"}


def test_step_3_of_too_small_a_product_gives_up_reuse() -> None:
    reused, plain, other = block(), block(tiles=(1, 1)), block((32, 16), (1, 1))
    step = filling([reused, plain, other], Size(32, 32, 64), MACHINE)
    assert step.kept == (plain, other)
    assert "too small a product for reuse" in step.dropped[reused]


def test_step_4_keeps_the_largest_ratio() -> None:
    square, flat, equal = block(), block((16, 16), (8, 2)), block((16, 16), (4, 4), depth=32)
    step = most_reuse([square, flat, equal])
    assert step.kept == (square, equal)  # 32 against 25.6
    assert step.dropped == {flat: "ratio 25.6 < 32.0"}


def test_step_5_keeps_the_fewest_rounds() -> None:
    light, heavy = block(), block(shared=40000)  # 4 and 1 blocks a unit
    step = fewest_launches([heavy, light], Size(1024, 64, 64), MACHINE)  # 16 blocks
    assert step.kept == (light,)
    assert step.dropped == {heavy: "4 rounds > 1"}


def test_nothing_fits() -> None:
    with pytest.raises(ValueError, match="no block configuration fits test: 2048 threads > 1024"):
        select([block((64, 32))], Size(64, 64, 64), MACHINE)


@pytest.mark.parametrize("target", [HASWELL, SKYLAKE_AVX512], ids=lambda t: t.mcpu)
@pytest.mark.parametrize("threads", [1, 2])
def test_a_selection_on_a_cpu(target, threads: int) -> None:
    problem = conv_problem(parse_case("n=1,c=64,h=56,w=56,k=64,r=3,s=3,pad=1"))
    selection = cpu_rule(problem, target, threads)
    config = selection.chosen.config
    assert config.why_not(problem, target) is None
    assert config.tasks(problem, target) >= threads
    assert selection.chosen.shared <= target.l2 // 2
    assert selection.machine.compute_units == threads
