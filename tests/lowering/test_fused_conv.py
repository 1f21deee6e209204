"""Depthwise convolutions fused with the 1x1 ones around them, in every cut into tasks, against float64."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import onnx_ir as ir
import pytest

import convopt
from convopt.passes import fuse_convs
from convopt.passes.fuse_convs import FuseConvs, _chains
from convopt.selection import fused
from tests.lowering.compiled import check_text, labels

pytestmark = pytest.mark.kernels


def block(
    channels: tuple[int, int, int],
    size: tuple[int, int],
    attributes: str = "pads = [1, 1, 1, 1]",
    kernel: str = "3,3",
    batch: int = 1,
    out: tuple[int, int] | None = None,
    between: str = "Relu",
    behind: str = "y = Relu (p)",
    inputs: str = "",
) -> str:
    """1x1, depthwise, 1x1, with activations between; `behind` makes y of p."""
    before, middle, after = channels
    height, width = size
    rows, columns = out or size
    return f"""g (float[{batch},{before},{height},{width}] x{inputs}, float[{middle},{before},1,1] u,
            float[{middle}] b, float[{middle},1,{kernel}] v, float[{after},{middle},1,1] w)
        => (float[{batch},{after},{rows},{columns}] y)
        <float low = {{-0.5}}, float high = {{6.0}}> {{
        e = Conv (x, u, b)  f = {between} (e{", low, high" if between == "Clip" else ""})
        d = Conv <{attributes}, group = {middle}> (f, v, b)  q = HardSwish (d)
        p = Conv (q, w)  {behind} }}"""


# The Clip's and HardSwish's values of 0 are not 0: what the pads hold must not pass through them.
BLOCKS = {
    "tails of channels and columns": block((5, 27, 9), (9, 13)),
    "stride 2": block(
        (8, 32, 24), (11, 19), "pads = [1, 1, 1, 1], strides = [2, 2]", out=(6, 10), between="Sigmoid"
    ),
    "residual": block((16, 35, 16), (7, 21), behind="y = Add (p, x)", between="Clip"),
    "5x5, unlike pads": block((4, 17, 6), (8, 12), "pads = [0, 3, 1, 2]", "5,5", out=(5, 13), batch=2),
    "dilated, unlike strides": block(
        (4, 9, 3), (12, 17), "pads = [2, 2, 2, 2], dilations = [2, 2], strides = [1, 2]", out=(12, 9)
    ),
    "operands of other shapes": block(
        (4, 16, 8), (6, 10), inputs=", float[1,1,6,10] x2, float[8,1,1] k",
        behind="r = Mul (p, k)  y = Add (r, x2)",
    ),
}  # fmt: skip
STEM = """g (float[2,3,17,23] x, float[16,3,3,3] u, float[16] b, float[16,1,3,3] v, float[8,16,1,1] w)
        => (float[2,8,9,12] y) {
        e = Conv <pads = [1, 1, 1, 1], strides = [2, 2]> (x, u, b)  f = HardSigmoid (e)
        d = Conv <pads = [1, 1, 1, 1], group = 16> (f, v)  y = Conv (d, w) }"""


CHAINS = (
    pytest.param(3, id="all three"),
    pytest.param(2, id="the one behind", marks=pytest.mark.slow),
    pytest.param(-2, id="the one before", marks=pytest.mark.slow),
)


@pytest.fixture(params=CHAINS)
def chain(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Fuses always, and these only: 3 convolutions, the depthwise one first or last of 2."""
    wanted = request.param

    def chosen(depthwise: ir.Node) -> Iterator[tuple[ir.Node, ...]]:
        for found in _chains(depthwise):
            if len(found) == abs(wanted) and (wanted == 3 or (found[0] is depthwise) == (wanted == 2)):
                yield found

    monkeypatch.setattr(fuse_convs, "_chains", chosen)
    monkeypatch.setattr(fused, "LEAST_GAIN", 0.0)
    return int(wanted)


def _fused(module: convopt.CompiledModule) -> list[str]:
    return [label for label in labels(module) if label.endswith(" fused")]


@pytest.mark.parametrize("name", BLOCKS)
def test_blocks(name: str, chain: int) -> None:
    (label,) = _fused(check_text(BLOCKS[name]))
    assert label.count(" + ") == abs(chain) - 1


def test_a_stem_before_it(chain: int) -> None:
    """The first convolution has taps, pads and strides of its own."""
    assert _fused(check_text(STEM))


def test_a_transposed_convolution_stays_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused, "LEAST_GAIN", 0.0)
    module = check_text("""g (float[1,4,7,8] x, float[4,6,1,1] u, float[6,1,3,3] v) => (float[1,6,7,8] y) {
        e = ConvTranspose (x, u)  y = Conv <pads = [1, 1, 1, 1], group = 6> (e, v) }""")
    assert not _fused(module)


@pytest.mark.parametrize(("width", "row_chunk", "columns"), [(5, 2, 4), (13, 1, 2), (4, 9, 1)])
def test_cuts(chain: int, width: int, row_chunk: int, columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks that overlap, chunks of one row and of all."""
    choose = fused.choose_fused

    def cut(*arguments: object) -> fused.FusedChoice:
        choice = choose(*arguments)  # type: ignore[arg-type]
        schedule = replace(choice.schedule, width=width, row_chunk=row_chunk, columns=columns)
        return replace(choice, schedule=schedule)

    monkeypatch.setattr("convopt.lowering.fused_conv.choose_fused", cut)
    assert _fused(check_text(BLOCKS["tails of channels and columns"]))


REFUSED = {
    "read twice": "y = Conv <pads = [1, 1, 1, 1], group = 6> (e, v)  z = Neg (e)",
    "an operand of the epilogue too": (
        "d = Conv <pads = [1, 1, 1, 1], group = 6> (e, v)  y = Add (d, e)  z = Neg (y)"
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_read_elsewhere_stays_in_memory(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused, "LEAST_GAIN", 0.0)
    module = check_text(
        f"""g (float[1,4,7,8] x, float[6,4,1,1] u, float[6,1,3,3] v)
        => (float[1,6,7,8] y, float[1,6,7,8] z) {{ e = Conv (x, u)  {REFUSED[name]} }}"""
    )
    assert not _fused(module)


def test_the_estimate_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    """What doesn't pay stays apart, and the note says what each way would take."""
    notes = []
    monkeypatch.setattr(fused, "LEAST_GAIN", 1e9)

    def after(_: int, one: object, model: ir.Model, report: object) -> None:
        if isinstance(one, FuseConvs):
            notes.extend(report.notes)  # type: ignore[attr-defined]

    module = check_text(BLOCKS["stride 2"], after=after)
    assert not _fused(module)
    assert notes and all(note.refused and "by estimate" in note.text for note in notes)


def test_each_pass_is_checked_by_data(chain: int) -> None:
    check_text(BLOCKS["residual"], check="each-pass", verify="raise")
