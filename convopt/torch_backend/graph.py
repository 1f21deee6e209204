"""An ATen graph that compiles itself for the shapes, threads and parameters that it is called with."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.utils._python_dispatch import _disable_current_modes

import convopt
from convopt.errors import ConvoptError, InputError, VerificationError
from convopt.frontends.torch.builder import Untranslatable
from convopt.frontends.torch.translate import translate
from convopt.runtime.program import Placement
from convopt.torch_backend.collector import paused_collector
from convopt.torch_backend.concrete import bound, copied, is_symbolic
from convopt.torch_backend.fold import fold
from convopt.torch_backend.part import CompiledPart, refused_nodes
from convopt.torch_backend.partition import Cut
from convopt.torch_backend.report import GraphReport
from convopt.torch_backend.settings import Settings

logger = logging.getLogger("convopt.torch")
# A graph whose parameters changed this often in a row, each time after a single call, is left to torch:
# packing weights for one call costs more than the kernels gain.
MOST_REPACKS = 3


@dataclass
class _Compiled:
    """The graph for one set of shapes.

    watched: (argument, tensor, address, version) of what its parts hold and what was folded. The tensor is
    kept so that no other can come to lie at its address.
    """

    module: GraphModule
    watched: list[tuple[int, torch.Tensor, int, int]]
    report: GraphReport
    calls: int = 0

    def is_current(self, args: Sequence[Any]) -> bool:
        return all(
            args[i].data_ptr() == address and args[i]._version == version
            for i, _, address, version in self.watched
        )


class TorchGraph:
    """module: AOTAutograd's graph, functional. parameters: the arguments that stay the same from call to
    call; a changed one is noticed by its address and its version counter, and its kernels get packed anew.
    """

    def __init__(self, module: GraphModule, parameters: Sequence[int], settings: Settings) -> None:
        self.module, self.parameters, self.settings = module, tuple(parameters), settings
        self.symbolic = is_symbolic(module)
        self._compiled: OrderedDict[Any, _Compiled] = OrderedDict()
        self._repacks = 0
        self._lock = threading.Lock()

    def __call__(self, args: Sequence[Any]) -> Any:
        if self._repacks >= MOST_REPACKS:
            return self.module(*args)
        key = self._key(args)
        found = self._compiled.get(key)
        if found is None or not found.is_current(args):
            found = self._made(key, args)
            if found is None:
                return self.module(*args)
        found.calls += 1
        return found.module(*args)

    def _key(self, args: Sequence[Any]) -> Any:
        threads = torch.get_num_threads() if self.settings.threads is None else self.settings.threads
        if not self.symbolic:
            return threads
        return threads, *(
            (a.shape, a.stride()) if isinstance(a, torch.Tensor) else a
            for i, a in enumerate(args)
            if i not in self.parameters
        )

    def _made(self, key: Any, args: Sequence[Any]) -> _Compiled | None:
        with self._lock:
            found = self._compiled.get(key)
            if found is not None:
                if found.is_current(args):
                    return found
                self._repacks = self._repacks + 1 if found.calls <= 1 else 0
                if self._repacks >= MOST_REPACKS:
                    logger.warning("parameters change from call to call: this graph stays in torch")
                    self._compiled.clear()
                    return None
            found = self._compiled[key] = self.compile(args, key[0] if isinstance(key, tuple) else key)
            self._compiled.move_to_end(key)
            while len(self._compiled) > self.settings.max_programs:
                self._compiled.popitem(last=False)
            return found

    def compile(self, args: Sequence[Any], threads: int) -> _Compiled:
        """The graph with its parts compiled for these arguments. Torch's own error for shapes it refuses."""
        refused: dict[str, str] = {}
        # At the first call AOTAutograd watches every operator for aliases; what is done here is no such call.
        with _disable_current_modes(), paused_collector():
            while True:
                attempt = _Attempt(self, args, threads, refused)
                more = attempt.run()
                if not more:
                    break
                refused.update(more)
        report = attempt.report()
        report.log()
        if self.settings.report is not None:
            self.settings.report(report)
        return _Compiled(attempt.module, attempt.watched(), report)


class _Attempt:
    """One try at compiling a graph: `run` names nodes that turned out to have no kernel."""

    def __init__(self, graph: TorchGraph, args: Sequence[Any], threads: int, refused: dict[str, str]) -> None:
        self.args, self.settings, self.threads, self.refused = args, graph.settings, threads, refused
        self.original = graph.module
        self.module = bound(graph.module, args) if graph.symbolic else copied(graph.module)
        placeholders = [node for node in self.module.graph.nodes if node.op == "placeholder"]
        self.index = {node.name: i for i, node in enumerate(placeholders)}
        held = {placeholders[i]: args[i] for i in graph.parameters if _is_constant(args[i])}
        # Before anything is packed: what another thread changes meanwhile is noticed at the next call.
        self.states = {self.index[node.name]: (t.data_ptr(), t._version) for node, t in held.items()}
        self.constants = fold(self.module, held)
        self.used: set[str] = set()
        self.parts: list[CompiledPart] = []

    def run(self) -> dict[str, str]:
        self.cut = Cut(self.module, self.constants.values, self.refused)
        for name in self.cut.fuse():
            call = next(n for n in self.module.graph.nodes if n.name == name)
            submodule = self.module.get_submodule(str(call.target))
            assert isinstance(submodule, GraphModule)
            names = {n.name: n for n in submodule.graph.nodes if n.op == "call_function"}
            try:
                part = self._compile(call, submodule)
            except (ConvoptError, Untranslatable) as error:
                if isinstance(error, InputError):
                    raise
                return dict.fromkeys(names, str(error))
            if new := refused_nodes(part, names):
                return new
            self.module.set_submodule(str(call.target), part)
            self.parts.append(part)
        for node in self.module.graph.nodes:
            if node.op == "get_attr":  # what torch reads of folded values is held as well
                self.used |= self.constants.sources.get(node.name, frozenset())
        self.module.recompile()
        return self._verified() if self.settings.verify else {}

    def _compile(self, call: Node, submodule: GraphModule) -> CompiledPart:
        inner = [n for n in submodule.graph.nodes if n.op == "placeholder"]
        outer = dict(zip(inner, call.args, strict=True))
        values = self.constants.values
        constants = {n: values[o.name] for n, o in outer.items() if isinstance(o, Node) and o.name in values}
        for node, source in outer.items():
            if isinstance(source, Node) and "val" in source.meta:
                node.meta["val"] = source.meta["val"]
        translation = translate(submodule, constants)
        for node in translation.held:
            self.used |= self.constants.sources[outer[node].name]
        return CompiledPart(
            submodule,
            translation,
            lambda model: convopt.optimize(model, threads=self.threads, **self.settings.options),
        )

    def watched(self) -> list[tuple[int, torch.Tensor, int, int]]:
        found = sorted(self.index[name] for name in self.used)
        return [(i, self.args[i], *self.states[i]) for i in found]

    def report(self) -> GraphReport:
        folded = [Placement(name, op, "folded", "") for name, op in self.constants.folded]
        return GraphReport(
            (*self.cut.placement(), *folded),
            tuple(part.loaded.program for part in self.parts),
            self.original,
            bool(self.settings.verify),
        )

    def _verified(self) -> dict[str, str]:
        """Runs the graph once, each part beside what torch computes of the same inputs."""
        from convopt.torch_backend.verify import verified

        difference = verified(self.module, self.parts, self.args)
        if difference is None:
            return {}
        if self.settings.verify == "raise":
            raise VerificationError(difference[1])
        return dict.fromkeys(difference[0], difference[1])


def _is_constant(value: Any) -> bool:
    """Whether changes of the tensor can be noticed: inference tensors have no version counter."""
    return isinstance(value, torch.Tensor) and not value.is_inference()
