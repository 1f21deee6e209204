"""Runs over several cases: resumed ones, summaries by kind, the pictures; torch's translation of networks."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from convopt.bench import engines, suites
from convopt.bench.cases import ConvCase, conv_model
from convopt.bench.compare import max_error
from convopt.bench.engine import Prepared, Settings, Unavailable
from convopt.bench.engines import ENGINES, onnxruntime_call
from convopt.bench.networks import NETWORKS
from convopt.bench.suites import suite
from convopt.cli import bench
from convopt.cli.main import main
from tests.bench.test_networks import MOST_SLOW
from tests.cli.fields import undocumented

FIRST = ConvCase(1, 8, 9, 9, 6, 3, 3, 1, 1)
SECOND = ConvCase(1, 8, 9, 9, 40, 1, 1)


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A suite of two small cases, onnxruntime in convopt's place; collects what is compiled."""
    compiled: list[str] = []

    def prepare(self, model, inputs, settings) -> Prepared:
        compiled.append(f"{model.graph.output[0].name} {settings.threads}")
        return onnxruntime_call(model, inputs, settings.threads, optimize=True)

    monkeypatch.setattr(engines.Convopt, "prepare", prepare)
    monkeypatch.setitem(suites.SUITES, "vgg16", lambda: ((FIRST, 1), (SECOND, 2)))
    return compiled


def test_an_interrupted_run_goes_on_where_it_was(
    measured: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "out.json"
    arguments = ["bench", "--suite", "vgg16", "--threads", "1,2", "--seconds", "0.01", "-o", str(output)]
    arguments += ["--resume", "--json"]

    def interrupted(self, model, inputs, settings):
        if len(measured) == 6:  # in the midst of the second case
            raise KeyboardInterrupt
        return original(self, model, inputs, settings)

    original = engines.Convopt.prepare
    with monkeypatch.context() as patch:
        patch.setattr(engines.Convopt, "prepare", interrupted)
        assert main(arguments) == 130
    before = json.loads(output.read_text())
    assert [[case["name"] for case in run["cases"]] for run in before["runs"]] == [
        [FIRST.text, SECOND.text],
        [FIRST.text],
    ]
    measured.clear()
    assert main(arguments) == 0
    document = json.loads(capsys.readouterr().out)
    assert len(measured) == 2, "only the last case on two threads, in two layouts"
    assert document["runs"][0]["cases"] == before["runs"][0]["cases"]
    assert [case["name"] for case in document["runs"][1]["cases"]] == [FIRST.text, SECOND.text]
    assert undocumented(document, bench.COMMAND.fields) == set()
    assert main([*arguments, "--precision", "bf16"]) == 2
    assert "--resume: the file was measured with another precision: 'fp32'" in capsys.readouterr().err
    output.write_text("{}")
    assert main(arguments) == 2
    assert "no document of convopt bench" in capsys.readouterr().err


def test_the_summary_names_kinds_and_who_is_behind(
    measured: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    arguments = ["bench", "--suite", "vgg16", "--threads", "1", "--seconds", "0.01", "--plot", str(tmp_path)]
    ratios = iter((3.0, 0.5))
    monkeypatch.setattr(
        "convopt.bench.compare.CaseResult.ratio_to_best_peer", property(lambda _: next(ratios))
    )
    assert main([*arguments, "-o", str(tmp_path / "out.json")]) == 0
    shown = capsys.readouterr().out
    assert "up to 8 output channels: geometric mean 3.00, least 3.00" in shown
    assert "1x1: geometric mean 0.50, least 0.50" in shown
    assert "behind the best peer: 1x8x9x9 k40 1x1 s1 p0" in shown
    assert "ratio to the best peer, 1 thread: geometric mean 1.22, least 0.50" in shown
    document = json.loads((tmp_path / "out.json").read_text())
    assert [case["nbytes"] for case in document["runs"][0]["cases"]] == [
        4 * (8 * 81 + 6 * 8 * 9 + 6 * 81),
        4 * (8 * 81 + 40 * 8 + 40 * 81),
    ]
    for path in map(Path, document["plots"]):
        texts = [e.text for e in ElementTree.parse(path).iter("{http://www.w3.org/2000/svg}text")]
        assert "onnxruntime" in texts
        assert (FIRST.text in texts) == path.name.startswith("ratios")
    assert sorted(path.name for path in tmp_path.glob("*.svg")) == [
        "ratios-1-thread.svg",
        "roofline-1-thread.svg",
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--suite", "unet", "--resume"], "--resume wants -o OUT.json"),
        (["--suite", "unet", "--plot", __file__], "not a folder"),
        (["--network", "unet", "--max-batch", "2"], "--max-batch goes with --suite only"),
        (["--overhead", "--plot", "."], "--resume and --plot go with comparisons"),
    ],
)
def test_wrong_arguments(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_a_suite_is_cut_to_the_largest_batch_allowed() -> None:
    cut = [case.n for case, _ in suite("contest", most=2)]
    assert max(cut) == 2
    assert sum(count for _, count in suite("contest", most=2)) == 12
    assert {case.n for case, _ in suite("resnet50", batch=4, most=3)} == {3}


@pytest.mark.parametrize(
    ("case", "kind"),
    [
        (ConvCase(1, 64, 8, 8, 64, 3, 3, 1, 1), "3x3 s1, 64 to 256 channels"),
        (ConvCase(1, 512, 8, 8, 64, 3, 3, 1, 1), "3x3 s1, others"),
        (ConvCase(1, 64, 8, 8, 64, 3, 3, 2, 1), "others"),
        (ConvCase(1, 64, 8, 8, 4, 3, 3, 1, 1), "up to 8 output channels"),
        (ConvCase(1, 64, 8, 8, 27, 3, 3, 1, 1), "9 to 32 output channels"),
        (ConvCase(1, 64, 8, 8, 24, 1, 1), "1x1"),
        (ConvCase(1, 64, 8, 8, 64, 3, 3, 1, 1, 1, 64), "depthwise"),
        (ConvCase(1, 64, 8, 8, 64, 3, 3, 1, 1, 1, 4), "grouped"),
    ],
)
def test_kinds(case: ConvCase, kind: str) -> None:
    assert case.kind == kind


@pytest.mark.parametrize("name", MOST_SLOW)
def test_torch_computes_the_networks(name: str) -> None:
    pytest.importorskip("torch")
    size = 75 if name == "inception" else 32
    model = NETWORKS[name](batch=2, size=size)
    x = np.random.default_rng(1).standard_normal((2, 3, size, size), np.float32)
    expected = onnxruntime_call(model, {"x": x}, 1, optimize=False).outputs()
    prepared = ENGINES["torch"].prepare(model, {"x": x}, Settings(1, "fp32"))
    assert max_error(prepared.outputs(), expected) < 1e-5


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch uses its own old parts
def test_inductor_computes_a_network() -> None:
    pytest.importorskip("torch")
    model = NETWORKS["mobilenet_v2"](batch=1, size=32)
    x = np.random.default_rng(1).standard_normal((1, 3, 32, 32), np.float32)
    expected = onnxruntime_call(model, {"x": x}, 1, optimize=False).outputs()
    prepared = ENGINES["inductor"].prepare(model, {"x": x}, Settings(1, "fp32"))
    assert max_error(prepared.outputs(), expected) < 1e-5


def test_torch_and_inductor_say_what_they_do_not_take() -> None:
    pytest.importorskip("torch")
    x = {"x": np.zeros((1, 8, 9, 9), np.float32)}
    with pytest.raises(Unavailable, match="whole models only"):
        ENGINES["inductor"].prepare(conv_model(FIRST), x, Settings(1, "fp32"))
    model = conv_model(FIRST)
    (pads,) = (a for a in model.graph.node[0].attribute if a.name == "pads")
    pads.ints[:] = [1, 1, 0, 0]
    with pytest.raises(Unavailable, match="differ from side to side"):
        ENGINES["torch"].prepare(model, x, Settings(1, "fp32"))
    model.graph.node[0].op_type = "DeformConv"
    with pytest.raises(Unavailable, match="DeformConv 'conv' has no translation"):
        ENGINES["torch"].prepare(model, x, Settings(1, "fp32"))
