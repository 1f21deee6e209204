"""The timing protocol on a clock of our own, and the error measure."""

import numpy as np
import pytest

from convopt.bench.compare import CaseResult, EngineResult, max_error
from convopt.bench.protocol import LEAST_TURNS, Timing, time_in_turn
from convopt.bench.results import geometric_mean


class FakeClock:
    """Seconds that pass only while a call "runs"."""

    def __init__(self) -> None:
        self.now = 0.0
        self.log: list[str] = []

    def __call__(self) -> float:
        return self.now

    def call(self, name: str, seconds: float):
        def run() -> None:
            self.log.append(name)
            self.now += seconds

        return run


def test_engines_run_in_turn_and_long_calls_still_get_their_turns() -> None:
    clock = FakeClock()
    timings = time_in_turn({"a": clock.call("a", 1.0), "b": clock.call("b", 0.5)}, 0.1, clock)
    turns = [name for i, name in enumerate(clock.log) if i == 0 or clock.log[i - 1] != name]
    assert turns == ["a", "b"] * (1 + LEAST_TURNS)  # the first turn is the warm-up
    assert timings["a"].median_ms == pytest.approx(1000)
    assert timings["b"].min_ms == pytest.approx(500)


def test_calls_while_the_engine_before_may_still_spin_are_not_counted() -> None:
    clock = FakeClock()

    def disturbed() -> None:
        """Slow in the first 8 ms after the other engine's turn."""
        calls_of_turn = next((i for i, name in enumerate(reversed(clock.log)) if name == "b"), 0)
        clock.log.append("a")
        clock.now += 0.002 if calls_of_turn < 4 else 0.0005

    timings = time_in_turn({"a": disturbed, "b": clock.call("b", 0.001)}, 1.0, clock)
    assert timings["a"].median_ms == pytest.approx(0.5)


def test_ratios_are_peer_over_ours_and_the_best_peer_is_the_fastest() -> None:
    def result(ms: float) -> EngineResult:
        return EngineResult("NCHW", Timing(ms, ms, 10), 0.0)

    missing = EngineResult("NCHW", refused="not installed")
    end_to_end = {
        "convopt": result(2.0),
        "onnxruntime": result(3.0),
        "openvino": result(5.0),
        "torch": missing,
    }
    case = CaseResult("c", 1, None, end_to_end)
    assert case.ratio_end_to_end == {"onnxruntime": 1.5, "openvino": 2.5}
    assert case.ratio_to_best_peer == 1.5
    native = {"convopt": result(2.0), "onnxruntime": result(1.0)}
    assert CaseResult("c", 1, None, end_to_end, native).ratio_to_best_peer == 0.5
    assert (
        CaseResult("c", 1, None, {"convopt": missing, "onnxruntime": result(1.0)}).ratio_to_best_peer is None
    )
    assert geometric_mean([0.5, 2.0]) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("got", "expected", "error"),
    [
        ([1.0, 2.0], [1.0, 4.0], 0.5),
        ([0.5e-3], [0.0], 0.5),  # 1e-3 is the least scale
        ([np.nan, 1.0], [np.nan, 1.0], 0.0),
        ([np.inf, 1.0], [np.inf, 1.0], 0.0),
        ([np.inf, 1.0], [-np.inf, 1.0], np.inf),
        ([np.nan, 1.0], [1.0, 1.0], np.inf),
        ([1.0], [1.0, 1.0], np.inf),
        ([], [], 0.0),
    ],
)
def test_max_error(got: list[float], expected: list[float], error: float) -> None:
    found = max_error([np.array(got, np.float32)], [np.array(expected, np.float32)])
    assert found == pytest.approx(error, rel=1e-6)
