"""Reduce and Softmax groups against the float64 oracle."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from convopt.lowering.base import LoweringContext, LoweringOptions, Refused, Temporary
from convopt.lowering.reduce import lower
from convopt.targets import host_cpu
from tests.lowering.group_harness import check_group, grouped, run_group, single, view_of

pytestmark = pytest.mark.kernels

X = np.random.default_rng(0).uniform(0.2, 2, (2, 9, 4, 6)).astype(np.float32)
INPUTS = {"x": X}
OPS = [
    "ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2",
    "ReduceSumSquare", "ReduceLogSum", "ReduceLogSumExp",
]  # fmt: skip


def axes(*values: int) -> dict[str, np.ndarray[Any, Any]]:
    return {"axes": np.array(values, np.int64)}


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("channels_last", [False, ["x"]])
def test_reduce(op: str, keepdims: int, channels_last: Any, tmp_path: Path) -> None:
    model = single(op, INPUTS, axes(-1, 2), keepdims=keepdims)
    check_group(model, "Reduce", lower, INPUTS, tmp_path, channels_last=channels_last)


@pytest.mark.parametrize("op", ["ReduceMean", "ReduceLogSumExp"])
@pytest.mark.parametrize("channels_last", [False, True])
def test_reduce_over_channels(op: str, channels_last: bool, tmp_path: Path) -> None:
    model = single(op, INPUTS, axes(1))
    check_group(model, "Reduce", lower, INPUTS, tmp_path, channels_last=channels_last, gap=1)


@pytest.mark.parametrize("op", ["ReduceMean", "ReduceMax", "ReduceL1", "ReduceL2"])
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_large_reduction_feeds_all_threads(op: str, threads: int, tmp_path: Path) -> None:
    inputs = {"x": np.random.default_rng(0).normal(size=(1, 8, 90, 96)).astype(np.float32)}
    options = {"channels_last": True, "threads": threads}
    check_group(single(op, inputs, axes(2, 3)), "Reduce", lower, inputs, tmp_path, **options)


def test_parts_where_one_task_would_starve_the_threads() -> None:
    inputs = {"x": np.zeros((1, 8, 90, 96), np.float32)}
    group = grouped(single("ReduceMean", inputs, axes(2, 3)), "Reduce")
    views = {v: view_of(v, True, 0) for v in (*group.inputs, *group.outputs) if v is not None}
    alone = lower(group, LoweringContext(views, LoweringOptions(host_cpu(), 1)))
    assert len(alone) == 1
    first, second = lower(group, LoweringContext(views, LoweringOptions(host_cpu(), 2)))
    assert first.schedule.tasks(first.problem, host_cpu()) >= 2
    assert isinstance(first.operands[1], Temporary) and second.operands[0] is first.operands[1]


def test_axes_as_attribute_and_by_default(tmp_path: Path) -> None:
    old = single("ReduceMean", INPUTS, opset=13, axes=[1, 3], keepdims=0)
    check_group(old, "Reduce", lower, INPUTS, tmp_path)
    check_group(single("ReduceMean", INPUTS), "Reduce", lower, INPUTS, tmp_path)


@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax"])
@pytest.mark.parametrize("opset", [11, 13])
@pytest.mark.parametrize("axis", [1, -1, 2])
@pytest.mark.parametrize("channels_last", [False, True])
def test_softmax(op: str, opset: int, axis: int, channels_last: bool, tmp_path: Path) -> None:
    model = single(op, INPUTS, opset=opset, axis=axis)
    check_group(model, "Softmax", lower, INPUTS, tmp_path, channels_last=channels_last)


@pytest.mark.parametrize("opset", [11, 13])
def test_softmax_default_axis(opset: int, tmp_path: Path) -> None:
    check_group(single("Softmax", INPUTS, opset=opset), "Softmax", lower, INPUTS, tmp_path)


def test_refusals_are_in_words(tmp_path: Path) -> None:
    integers = {"x": np.ones((2, 3), np.int64)}
    with pytest.raises(Refused, match="reduction of int64"):
        run_group(single("ReduceSum", integers), "Reduce", lower, integers, tmp_path)
