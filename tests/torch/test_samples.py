"""torch's own operator samples: equal to eager, and how many of them are really compiled."""

from __future__ import annotations

import copy
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree as pytree

from convopt.torch_backend.report import GraphReport
from tests.torch.support import Call, Calls, compiled

# torch warns of what some of its own samples ask for.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

CONVS_AND_POOLS = re.compile(r"nn\.functional\.(conv\d|conv_transpose|(adaptive_|fractional_)?\w+_pool\d)")
NORMS = re.compile(r"nn\.functional\.(batch|group|instance|layer|local_response|rms)_norm")
ACTIVATIONS = re.compile(
    r"nn\.functional\.(celu|elu|gelu|glu|hard\w+|leaky_relu|logsigmoid|mish|prelu|relu\d?|selu|silu|soft\w+"
    r"|tanhshrink|threshold)$|sigmoid$|tanh$|softmax$|log_softmax$"
)
MOVES = re.compile(r"nn\.functional\.(interpolate|upsample_\w+|pad)$")
GROUPS = {"conv and pool": CONVS_AND_POOLS, "norm": NORMS, "activation": ACTIVATIONS, "move": MOVES}
# Their samples' wrappers call into C++ in a way that dynamo has no graph for.
UNTRACED = re.compile(r"nn\.functional\.fractional_max_pool")
PER_GRAPH = 64
# Of the thousands of samples of these pools every 11th or 31st is taken: their arguments are a full product,
# of counts that neither divides.
EVERY = {torch.float32: 11, torch.bfloat16: 31, torch.float16: 31}
MANY = re.compile(r"nn\.functional\.(fractional_)?max_pool")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass
class Tally:
    samples: int = 0
    compiled: int = 0
    untraced: int = 0  # torch.compile has no graph of them, whatever the backend
    reasons: Counter[str] = field(default_factory=Counter)


def operators(pattern: re.Pattern[str], dtype: torch.dtype) -> Iterator[Any]:
    for op in op_db:
        if pattern.match(op.name) and dtype in op.supported_dtypes("cpu"):
            yield op


@dataclass(frozen=True)
class Sample:
    op: Any
    x: torch.Tensor
    call: Call

    @property
    def traced(self) -> bool:
        return not UNTRACED.match(self.op.name)

    def __str__(self) -> str:
        return f"{self.op.name}{tuple(self.x.shape)} {self.x.dtype}: {self.call.args} {self.call.kwargs}"


def samples_of(pattern: re.Pattern[str], dtype: torch.dtype) -> Iterator[Sample]:
    """The samples that a module can have: its input is a tensor, and it is in evaluation mode."""
    for op in operators(pattern, dtype):
        every = EVERY[dtype] if MANY.match(op.name) else 1
        for index, sample in enumerate(op.sample_inputs("cpu", dtype)):
            if index % every or not isinstance(sample.input, torch.Tensor) or sample.kwargs.get("training"):
                continue
            yield Sample(op, sample.input.detach(), Call(op.op, sample.args, sample.kwargs))


def tally_of(pattern: re.Pattern[str], dtype: torch.dtype) -> Tally:
    """Compares every sample with eager, and counts. Operators share graphs: each costs seconds by itself."""
    tally, samples = Tally(), list(samples_of(pattern, dtype))
    for traced in (True, False):
        alike = [sample for sample in samples if sample.traced == traced]
        for start in range(0, len(alike), PER_GRAPH):
            run(alike[start : start + PER_GRAPH], traced, tally)
    return tally


def run(samples: Sequence[Sample], traced: bool, tally: Tally) -> None:
    module, inputs = Calls([sample.call for sample in samples]).eval(), [sample.x for sample in samples]
    with torch.no_grad():
        call, reports = compiled(module, fullgraph=traced)
        torch.manual_seed(0)  # fractional pools draw their windows
        expected = module(inputs)
        torch.manual_seed(0)
        found = call(inputs)
    if not reports:
        tally.untraced += len(samples)
    for sample, want, have in zip(samples, expected, found, strict=True):
        compare(want, have, sample.call, sample.x, str(sample))
    if reports:
        count(expected, reports[-1], tally)


def compare(want: Any, have: Any, call: Call, x: torch.Tensor, where: str) -> None:
    """Within torch's tolerances of eager, or at most twice as far from float64 as eager is (sums cancel)."""
    try:
        torch.testing.assert_close(have, want, equal_nan=True, msg=lambda text: f"{where}\n{text}")
    except AssertionError:
        if not isinstance(want, torch.Tensor) or not want.is_floating_point():
            raise
        with torch.no_grad():
            exact = copy.deepcopy(call).double()(x.double())
        eager, ours = ((result.double() - exact).abs().max() for result in (want, have))
        if not ours <= 2 * eager:
            raise


def count(results: list[Any], report: GraphReport, tally: Tally) -> None:
    """A sample is compiled if nothing that its results are made of stays in torch."""
    refused = {place.node: place.detail for place in report.fallbacks}
    outputs = next(n for n in reversed(report.module.graph.nodes) if n.op == "output").args[0]
    flat = iter(outputs)
    for result in results:
        above = set()
        waiting = [next(flat) for _ in pytree.tree_leaves(result)]
        while waiting:
            node = waiting.pop()
            if node not in above:
                above.add(node)
                waiting.extend(node.all_input_nodes)
        reasons = {refused[node.name] for node in above if node.name in refused}
        tally.samples += 1
        tally.compiled += not reasons
        tally.reasons.update(reasons)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("group", GROUPS)
def test_samples_equal_eager(group: str, dtype: str, capsys: pytest.CaptureFixture[str]) -> None:
    tally = tally_of(GROUPS[group], DTYPES[dtype])
    with capsys.disabled():
        print(
            f"\n{group} {dtype}: {tally.compiled} of {tally.samples} samples compiled,"
            f" {tally.untraced} without a graph; {dict(tally.reasons)}"
        )
    assert tally.samples > 20
    if group == "conv and pool":
        assert tally.compiled >= 0.9 * tally.samples, tally


def test_the_convolutions_samples_equal_eager() -> None:
    """The quick part of the above: nothing of them stays in torch."""
    tally = tally_of(re.compile(r"nn\.functional\.(conv2d|avg_pool2d)"), torch.float32)
    assert tally.compiled == tally.samples > 30, tally
