"""Where a whole model to measure comes from: a file, a network, a real model, a torch module."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from convopt.errors import InputError

if TYPE_CHECKING:
    import numpy as np
    import onnx

    from convopt.bench.compare import CaseResult
    from convopt.bench.engine import Engine, Settings
    from convopt.bench.module_engines import ModuleEngine
    from convopt.bench.startup import Startup

    Bound = tuple[onnx.ModelProto, dict[str, np.ndarray[Any, Any]]]
    Race = Callable[[Settings], CaseResult]


@dataclass(frozen=True)
class WholeModel:
    """`read()` gives the model, its inputs' dims bound, and an array for each; it may download first."""

    name: str
    read: Callable[[], Bound]

    def race(self, engines: Mapping[str, Engine], seconds: float) -> Race:
        """Reads the model; what is returned compares the engines on it."""
        from convopt.bench.compare import compare_model

        model, inputs = self.read()
        return lambda settings: compare_model(self.name, model, inputs, engines, settings, seconds)

    def startup(self, threads: int) -> dict[str, Startup]:
        """See `measure_startup`."""
        from convopt.bench.startup import measure_startup

        return measure_startup(self.name, *self.read(), threads)


@dataclass(frozen=True)
class WholeModule:
    """A torch module of `convopt.bench.torch_nets`."""

    name: str
    batch: int

    def race(self, engines: Mapping[str, ModuleEngine], seconds: float) -> Race:
        """Makes the module; what is returned compares the engines on it."""
        from convopt.bench.compare import compare_module
        from convopt.bench.torch_nets import made

        module, x = made(self.name, self.batch)
        return lambda settings: compare_module(self.name, module, {"x": x}, engines, settings, seconds)

    def startup(self, threads: int) -> dict[str, Startup]:
        """See `measure_module_startup`."""
        from convopt.bench.startup import measure_module_startup

        return measure_module_startup(self.name, self.batch, threads)


def from_modules(name: str, batch: int | None) -> list[WholeModule]:
    """The module of that name, or each of MODULES for "all"."""
    return [WholeModule(one, batch or 1) for one in (MODULES if name == "all" else (name,))]


# What `convopt.bench.torch_nets` makes and `--module` takes; here since that file imports torch.
MODULES = ("small_resnet", "small_mobilenet", "small_unet", "small_vit", "resnet50", "mobilenet_v2")


def from_file(path: str, shapes: Mapping[str, tuple[int, ...]]) -> WholeModel:
    """Random inputs of the given shapes; dims that neither these nor the file fix are an InputError."""
    return WholeModel(path, partial(_bound, path, shapes))


def from_networks(name: str, batch: int | None) -> list[WholeModel]:
    """One of NETWORKS at its paper's size with random inputs, or each of them for "all"."""
    from convopt.bench.networks import NETWORKS

    def read(chosen: str) -> Bound:
        return _bound(NETWORKS[chosen](batch=batch or 1), {})

    return [WholeModel(one, partial(read, one)) for one in (NETWORKS if name == "all" else (name,))]


def from_real_models(names: str) -> list[WholeModel]:
    """Names of MODELS, separated by commas, or "all", with the inputs that they are well-conditioned for."""
    from convopt.bench.real_models import MODELS, fetch
    from convopt.bench.sample_inputs import sample_inputs

    chosen = list(MODELS) if names == "all" else [name.strip() for name in names.split(",")]
    if unknown := [name for name in chosen if name not in MODELS]:
        raise InputError(f"--models {unknown[0]}: expected some of {', '.join(MODELS)}, or all")

    def read(name: str) -> Bound:
        model, _ = _bound(fetch(name), MODELS[name].shapes[0])
        return model, sample_inputs(name)

    return [WholeModel(name, partial(read, name)) for name in chosen]


def _bound(source: Any, shapes: Mapping[str, tuple[int, ...]]) -> Bound:
    from convopt.bench.inputs import bind_inputs
    from convopt.frontends.onnx_file import load
    from convopt.ir.protos import whole_proto

    model = load(source)
    inputs = bind_inputs(model, shapes)
    return whole_proto(model), inputs
