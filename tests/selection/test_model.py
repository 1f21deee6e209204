"""What must be true of the GPU cost model's choices, without a GPU: the contest's cases on three chips."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, product

import pytest

from convopt.bench.cases import conv_problem, parse_case
from convopt.bench.suites import contest
from convopt.schedules.gpu_implicit_gemm import ImplicitGemm
from convopt.schedules.primitives.swizzle import TileOrder
from convopt.selection import gpu_search, model
from convopt.selection.choose_gpu import least_gpu_seconds, priced_gpu_conv
from convopt.selection.gpu_forms import forms
from convopt.targets import find_target

TARGETS = ("dcu:k100-ai", "cuda:sm_90", "rocm:gfx90a")
CASES = [case for case, _ in contest()]
FINAL = CASES[:6]
MIOPEN_US = (128, 354, 420, 780, 993, 80)  # published for the final cases on the K100-AI, read off a chart
K100_AI = find_target("dcu:k100-ai")
MMAC = "mmac.16x16x16"


def half(case):
    return conv_problem(case, "float16")


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.text)
def test_choices_fit_and_no_prediction_beats_the_roofline(name: str, case) -> None:
    target, problem = find_target(name), half(case)
    unit = model.unit_for(problem, target)
    roof = model.roofline(problem, target, unit)
    for count, choice in enumerate(gpu_search.ranked(problem, target, unit)):
        assert choice.config.why_not(problem, target) is None
        assert choice.estimate.seconds > roof
        if count == 20:
            break
    chosen = gpu_search.choose(problem, target)
    assert chosen.config.why_not(problem, target) is None
    assert chosen.config.unit == unit != "simt"


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("unit", ["simt", None])
def test_no_form_at_all_beats_the_roofline(name: str, unit: str | None) -> None:
    """Every tile, split and order, not the good ones only; fp32 and fp16."""
    target = find_target(name)
    for case in FINAL:
        problem = half(case) if unit is None else conv_problem(case)
        used = unit or model.unit_for(problem, target)
        f = forms(target, used, 2 if unit is None else 4)
        count = len(f.block_m)
        for swizzle, split in product(gpu_search.SWIZZLES, gpu_search.SPLITS):
            order = model.np.broadcast_to(model.np.array(swizzle), (count, 2))
            seconds = model.price(problem, target, f, model.np.full(count, split), order)["seconds"]
            assert seconds.min() >= model.roofline(problem, target, used)
            assert (model.at_least(problem, target, f, split) <= seconds).all()


def test_split_k_pays_where_tiles_are_few() -> None:
    """Case 4: 80 tiles of 128x128 on 120 units, the reduction 17280 long."""
    problem = half(FINAL[3])
    free = next(gpu_search.ranked(problem, K100_AI, MMAC))
    whole = next(gpu_search.ranked(problem, K100_AI, MMAC, split_k=False))
    assert whole.config.split_k == 1
    assert free.estimate.seconds <= whole.estimate.seconds
    tile = ImplicitGemm(128, 128, 32, 64, 64, unit=MMAC)
    alone = model.estimate(tile, problem, K100_AI)
    assert alone.blocks == 80 and alone.waves < 1
    splits = {s: model.estimate(replace(tile, split_k=s), problem, K100_AI) for s in (2, 3, 4)}
    assert min(e.seconds for e in splits.values()) < alone.seconds
    assert all(e.reduction > 0 and e.bytes_from_memory > alone.bytes_from_memory for e in splits.values())


def test_split_k_does_not_pay_where_tiles_are_many() -> None:
    problem = half(FINAL[2])
    assert next(gpu_search.ranked(problem, K100_AI, MMAC)).config.split_k == 1
    tile = ImplicitGemm(128, 64, 32, 64, 32, unit=MMAC)
    split = model.estimate(replace(tile, split_k=2), problem, K100_AI)
    assert split.seconds > model.estimate(tile, problem, K100_AI).seconds


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("case", [FINAL[0], FINAL[5]], ids=["27 channels", "4 channels"])
def test_few_output_channels_do_not_take_a_wide_tile(name: str, case) -> None:
    assert gpu_search.choose(half(case), find_target(name)).config.block_n < 128


def test_times_order_as_published() -> None:
    """Kendall's tau between the model's times of the final cases and MIOpen's."""
    ours = [gpu_search.choose(half(case), K100_AI).estimate.seconds for case in FINAL]
    signs = [(a - b) * (x - y) > 0 for (a, x), (b, y) in combinations(zip(ours, MIOPEN_US, strict=True), 2)]
    tau = (2 * sum(signs) - len(signs)) / len(signs)
    assert tau >= 0.6


@pytest.mark.parametrize("swizzle", gpu_search.SWIZZLES)
def test_the_area_is_that_of_the_simulated_order(swizzle: tuple[int, int]) -> None:
    """Rows and columns that the first blocks touch, counted by walking over them."""
    np = model.np
    for tiles_m, tiles_n, window in ((16, 5, 40), (64, 2, 120), (7, 9, 30), (40, 40, 240)):
        order = TileOrder(tiles_m, tiles_n, swizzle)
        seen, block = [], 0
        while len(seen) < min(window, tiles_m * tiles_n):
            row, column = order.tile(block)
            block += 1
            if row < tiles_m and column < tiles_n:
                seen.append((row, column))
        rows, columns = model._area(
            np.array([len(seen)]), np.array([tiles_m]), np.array([tiles_n]), np.array([swizzle])
        )
        real = len({r for r, _ in seen}) + len({c for _, c in seen})
        # The closed form may count a partly filled row of groups as whole.
        assert real <= rows[0] + columns[0] <= real + 2 * max(swizzle)


def test_a_square_area_hits_l2_more_often() -> None:
    tile = ImplicitGemm(64, 64, 32, 32, 32, unit=MMAC)
    problem = half(parse_case("n=8,c=512,h=64,w=64,k=4096,r=1,s=1"))
    line = model.estimate(replace(tile, swizzle=(1, 1)), problem, K100_AI)
    square = model.estimate(replace(tile, swizzle=(8, 8)), problem, K100_AI)
    assert square.l2_hit > line.l2_hit
    assert square.memory < line.memory


def test_occupancy_follows_registers_shared_memory_and_slots() -> None:
    f = forms(K100_AI, MMAC, 2)
    step = K100_AI.register_step
    for i in range(0, len(f.block_m), 7):
        waves = int(f.threads[i]) // K100_AI.wave
        granted = -(-int(f.registers[i]) // step) * step * K100_AI.wave * waves
        expected = min(
            K100_AI.registers_per_cu // granted,
            K100_AI.shared_per_cu // int(f.shared[i]),
            K100_AI.most_waves // waves,
        )
        assert f.resident[i] == expected >= 1


def test_waves_count_what_the_chip_holds() -> None:
    tile = ImplicitGemm(128, 128, 32, 64, 64, unit=MMAC)
    few = model.estimate(tile, half(parse_case("n=1,c=256,h=128,w=120,k=128,r=1,s=1")), K100_AI)
    more = model.estimate(tile, half(parse_case("n=1,c=256,h=128,w=121,k=128,r=1,s=1")), K100_AI)
    assert (few.blocks, more.blocks) == (120, 121)
    assert more.compute == pytest.approx(2 * few.compute, rel=0.6)  # one unit has two blocks now
    assert more.compute > few.compute


def test_what_no_form_takes() -> None:
    problem = replace(half(FINAL[0]), x=replace(half(FINAL[0]).x, dtype="float64"))
    with pytest.raises(ValueError, match="float64 to float16"):
        gpu_search.choose(problem, K100_AI)


def test_the_least_of_a_family_that_only_the_model_prices() -> None:
    problem, families = half(CASES[0]), (ImplicitGemm,)
    least = least_gpu_seconds(problem, K100_AI, families)
    assert 0 < least <= priced_gpu_conv(problem, K100_AI, families)[0]


@pytest.mark.parametrize("name", TARGETS)
def test_few_forms_are_priced_and_the_cheapest_among_them(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of thousands of forms and splits: what makes the choice quick. Pricing all finds the same cheapest."""
    target, priced = find_target(name), []

    def counted(problem, target, f, split, order):
        priced[-1] += len(split)
        return model.price(problem, target, f, split, order)

    monkeypatch.setattr(gpu_search, "price", counted)
    few, all_of_them = gpu_search.LIKELY, 1 << 20
    for case in CASES:
        problem, found = half(case), []
        for likely in (all_of_them, few):
            monkeypatch.setattr(gpu_search, "LIKELY", likely)
            priced.append(0)
            unit = model.unit_for(problem, target)
            rows = gpu_search._cheapest_rows(problem, target, unit, True, gpu_search.FINALISTS)
            found.append(rows.tolist())
        assert found[0] == found[1]
    assert sum(priced[1::2]) < sum(priced[::2]) / 2 and max(priced[1::2]) < 1500
