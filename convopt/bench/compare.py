"""One model or one convolution through all engines: times, errors, ratios."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from convopt.bench.cases import ConvCase, Layout, conv_model
from convopt.bench.engine import Engine, Settings, Unavailable, version_of
from convopt.bench.engines import onnxruntime_call
from convopt.bench.protocol import Timing, time_in_turn
from convopt.errors import ConvoptError, ModelError
from convopt.passes.check import relative_error

if TYPE_CHECKING:
    import onnx
    import torch

    from convopt.bench.module_engines import ModuleEngine


@dataclass(frozen=True)
class EngineResult:
    """Timing and error of one engine in one layout of input and output; `refused` says why there is none."""

    layout: Layout
    timing: Timing | None = None
    max_error: float | None = None
    refused: str | None = None


@dataclass(frozen=True)
class CaseResult:
    """`native` is empty for whole models: only a single conv has a layout of its own to ask for."""

    name: str
    count: int  # how often the case occurs in its suite
    case: ConvCase | None  # None for whole models
    end_to_end: Mapping[str, EngineResult]
    native: Mapping[str, EngineResult] = field(default_factory=dict)

    @property
    def ratio_end_to_end(self) -> dict[str, float]:
        return ratios(self.end_to_end)

    @property
    def ratio_native(self) -> dict[str, float]:
        return ratios(self.native)

    @property
    def ratio_to_best_peer(self) -> float | None:
        """The fastest peer's time / convopt's; above 1 convopt is faster. None without convopt or peers."""
        return min((self.ratio_native if self.native else self.ratio_end_to_end).values(), default=None)


def ratios(results: Mapping[str, EngineResult]) -> dict[str, float]:
    """Each peer's median time / convopt's; empty where convopt has no time."""
    ours = results.get("convopt")
    if ours is None or ours.timing is None:
        return {}
    return {
        name: result.timing.median_ms / ours.timing.median_ms
        for name, result in results.items()
        if name != "convopt" and result.timing is not None
    }


def max_error(outputs: Sequence[np.ndarray[Any, Any]], reference: Sequence[np.ndarray[Any, Any]]) -> float:
    """The largest `relative_error` of the outputs, inf where shapes differ."""
    errors = [
        relative_error(wanted, got) if got.shape == wanted.shape else float("inf")
        for got, wanted in zip(outputs, reference, strict=True)
    ]
    return max((error if np.isfinite(error) else float("inf") for error in errors), default=0.0)


def compare_model(
    name: str,
    model: onnx.ModelProto,
    inputs: Mapping[str, np.ndarray[Any, Any]],
    engines: Mapping[str, Engine],
    settings: Settings,
    seconds: float,
) -> CaseResult:
    """A whole model; raises ModelError where the reference itself can't run it."""
    try:
        reference = onnxruntime_call(model, dict(inputs), settings.threads, optimize=False).outputs()
    except Unavailable as refusal:
        raise ModelError(f"{name}: no reference to compare with: {refusal}") from refusal
    entries = [_Entry(e, engine, "NCHW", model, dict(inputs), reference) for e, engine in engines.items()]
    return CaseResult(name, 1, None, _race(entries, settings, seconds))


def compare_module(
    name: str,
    module: torch.nn.Module,
    inputs: Mapping[str, torch.Tensor],
    engines: Mapping[str, ModuleEngine],
    settings: Settings,
    seconds: float,
) -> CaseResult:
    """A torch module, channels-last tensors in; the reference is eager torch in float64."""
    import copy

    import torch

    from convopt.bench.module_engines import arrays

    with torch.inference_mode():
        reference = arrays(copy.deepcopy(module).double()(*(x.double() for x in inputs.values())))
    torch.compiler.reset()  # what other modules of the same classes left counts against torch's limit
    entries = [_Entry(e, engine, "NHWC", module, dict(inputs), reference) for e, engine in engines.items()]
    return CaseResult(name, 1, None, _race(entries, settings, seconds))


def compare_case(
    case: ConvCase, count: int, engines: Mapping[str, Engine], settings: Settings, seconds: float
) -> CaseResult:
    """One convolution, end to end and native, against one reference: float32 on what the engines get."""
    dtype = settings.dtype
    x = np.random.default_rng(0).standard_normal((case.n, case.c, case.h, case.w), np.float32).astype(dtype)
    models: dict[Layout, Any] = {
        layout: conv_model(case, layout, 0, dtype, dtype) for layout in ("NCHW", "NHWC")
    }
    inputs: dict[Layout, Any] = {
        "NCHW": {"x": x},
        "NHWC": {"x": np.ascontiguousarray(x.transpose(0, 2, 3, 1))},
    }
    reference = conv_model(case, "NCHW", values=dtype), {"x": x.astype(np.float32)}
    y = onnxruntime_call(*reference, settings.threads, optimize=False).outputs()[0]
    outputs: dict[Layout, Any] = {"NCHW": [y], "NHWC": [np.ascontiguousarray(y.transpose(0, 2, 3, 1))]}

    def race(layouts: Mapping[str, tuple[Layout, ...]]) -> dict[str, EngineResult]:
        entries = [
            _Entry(name, engines[name], layout, models[layout], inputs[layout], outputs[layout])
            for name in engines
            for layout in layouts[name]
        ]
        return _race(entries, settings, seconds)

    end_to_end = race({name: ("NCHW",) for name in engines})
    native = race({name: engine.layouts for name, engine in engines.items()})
    return CaseResult(case.text, count, case, end_to_end, native)


@dataclass(frozen=True)
class _Entry:
    """What one engine runs in a race, and the outputs that it must give."""

    name: str
    engine: Engine | ModuleEngine
    layout: Layout
    model: Any
    inputs: dict[str, Any]
    reference: list[Any]


def _race(entries: Sequence[_Entry], settings: Settings, seconds: float) -> dict[str, EngineResult]:
    """Checks each engine's result, then times all that could start; the faster of its layouts counts."""
    ready, errors, refused, timed = {}, {}, {}, {}
    for entry in entries:
        key = (entry.name, entry.layout)
        try:
            version_of(entry.engine.packages)
            prepared = entry.engine.prepare(entry.model, entry.inputs, settings)
            prepared.call()
        except (Unavailable, ConvoptError) as refusal:
            refused[entry.name] = EngineResult(entry.layout, refused=str(refusal))
            continue
        ready[key] = prepared.call
        if prepared.timed is not None:
            timed[key] = prepared.timed
        errors[key] = max_error(prepared.outputs(), entry.reference)
    timings = time_in_turn(ready, seconds, timed=timed) if ready else {}
    best: dict[str, EngineResult] = {}
    for (name, layout), timing in sorted(timings.items(), key=lambda item: item[1].median_ms):
        best.setdefault(name, EngineResult(layout, timing, errors[name, layout]))
    return {entry.name: best.get(entry.name) or refused[entry.name] for entry in entries}
