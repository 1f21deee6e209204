"""`convopt.optimize` of a torch module or an exported program."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind
from torch.utils import _pytree as pytree

import convopt
from convopt.errors import ArtifactError, InputError, ModelError
from convopt.frontends.torch.builder import Untranslatable
from convopt.frontends.torch.translate import translate
from convopt.runtime.module import CompiledModule
from convopt.runtime.program import Placement
from convopt.torch_backend.assumptions import Assumptions
from convopt.torch_backend.concrete import copied
from convopt.torch_backend.decompositions import for_export
from convopt.torch_backend.fold import fold
from convopt.torch_backend.graph import TorchGraph
from convopt.torch_backend.report import GraphReport
from convopt.torch_backend.settings import Settings

_PARAMETERS = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)


def optimize_torch(
    source: torch.nn.Module | ExportedProgram,
    shapes: None = None,
    *,
    example_inputs: Sequence[Any] | None = None,
    dynamic_shapes: Any = None,
    **options: Any,
) -> TorchModule:
    """Compiles a module for inference, for tensors like `example_inputs`.

    source: an nn.Module (a GraphModule is one), exported by torch.export, or an ExportedProgram, which brings
        its own example inputs. dynamic_shapes: as torch.export takes them. options: those of
        `convopt.optimize`, and of `Settings`.

    Raises:
        ModelError: torch.export can't capture the module. InputError: an option, or inputs that don't fit.
    """
    if shapes is not None:
        raise InputError("shapes are those of example_inputs for a torch module; expected no shapes")
    named: Mapping[str, Any] = {}
    if not isinstance(source, ExportedProgram):
        if example_inputs is None:
            raise InputError("a torch module needs example_inputs: a tuple of tensors to call it with")
        if isinstance(example_inputs, torch.Tensor):
            raise InputError("example_inputs is a tensor; expected a tuple of the module's arguments")
        source = _exported(source, tuple(example_inputs), dynamic_shapes)
    else:
        own, named = source.example_inputs or ((), {})
        example_inputs = own if example_inputs is None else example_inputs
    module = TorchModule(_decomposed(source), options)
    module(*example_inputs, **named)
    return module


def _exported(module: torch.nn.Module, inputs: tuple[Any, ...], dynamic_shapes: Any) -> ExportedProgram:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's, of its own interfaces
            owned = pytree.tree_map_only(torch.Tensor, _owned, inputs)
            return torch.export.export(module, owned, dynamic_shapes=dynamic_shapes)
    except Exception as error:  # torch raises a type of its own for each refusal
        raise ModelError(
            f"{type(module).__name__}: torch.export can't capture it: {_first_line(error)};"
            ' torch.compile(module, backend="convopt") takes modules that it can\'t'
        ) from error


def _owned(tensor: torch.Tensor) -> torch.Tensor:
    """A view as memory of its own, with the same strides: torch.export would ask calls for its base."""
    if not tensor._is_view() or tensor.is_contiguous():
        return tensor
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device).copy_(
        tensor.detach()
    )


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def _decomposed(program: ExportedProgram) -> ExportedProgram:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = program.run_decompositions(for_export())
    except Exception as error:  # of any type: its guards are code that is run on the example
        raise ModelError(
            f"the exported program can't be decomposed: {_first_line(error)}; if an example input was a view,"
            " export with a copy of it"
        ) from error
    for node in program.graph.nodes:
        if node.target is torch.ops.aten.view.default:
            # The example was contiguous where the module reshapes; a call's tensor may lie otherwise.
            node.target = torch.ops.aten.reshape.default
    for spec in program.graph_signature.output_specs:
        if spec.kind in (OutputKind.BUFFER_MUTATION, OutputKind.USER_INPUT_MUTATION):
            raise InputError(
                f"the module changes {spec.target!r} when it runs (a normalization in training mode does):"
                " expected a module in evaluation mode; call its eval()"
            )
    return program


class TorchModule:
    """An exported program, compiled. Call it with tensors as the module is called; several threads may.

    It computes without gradients. Changed parameters of the module are noticed at the next call; a Parameter
    put in another's place is not one of the program's, as with `torch.export`.
    """

    def __init__(self, program: ExportedProgram, options: Mapping[str, Any]) -> None:
        self.program = program
        self.reports: list[GraphReport] = []
        given = dict(options)
        self._told = given.pop("report", None)
        specs = program.graph_signature.input_specs
        self._sources = [self._source(spec) for spec in specs]
        parameters = [i for i, source in enumerate(self._sources) if source is not None]
        self._user = [i for i, source in enumerate(self._sources) if source is None]
        self._names = [specs[i].arg.name for i in self._user]
        self._expected = [node.meta.get("val") for node in program.graph.nodes if node.op == "placeholder"]
        self._settings = Settings.of({**given, "report": self._tell}).on_device_of(
            (*self._sources, *self._expected)
        )
        self._assumptions = Assumptions(program, self._names, [self._expected[i] for i in self._user])
        self.graph = TorchGraph(program.graph_module, parameters, self._settings)

    def _tell(self, report: GraphReport) -> None:
        self.reports.append(report)
        if self._told is not None:
            self._told(report)

    def _source(self, spec: Any) -> torch.Tensor | None:
        if spec.kind not in _PARAMETERS:
            return None
        held = self.program.state_dict.get(spec.target)
        found = self.program.constants[spec.target] if held is None else held
        assert isinstance(found, torch.Tensor)
        return found

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        arguments = self._arguments(args, kwargs)
        with torch.no_grad():
            outputs = self.graph(arguments)
        spec = self.program.call_spec.out_spec
        return pytree.tree_unflatten(list(outputs), spec)

    def _arguments(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
        flat, spec = pytree.tree_flatten((args, dict(kwargs)))
        wanted = self.program.call_spec.in_spec
        if spec != wanted:
            raise InputError(f"arguments of the form {spec}; expected {wanted}, that of the example inputs")
        arguments: list[Any] = list(self._sources)
        for index, name, value in zip(self._user, self._names, flat, strict=True):
            _check(name, value, self._expected[index])
            arguments[index] = value
        self._assumptions.check(flat)
        return arguments

    @property
    def placement(self) -> tuple[Placement, ...]:
        """Where each ATen operator runs, for the shapes compiled last."""
        return self.reports[-1].placement

    def summary(self) -> str:
        """What was compiled and what stays in torch, why: text for people."""
        return "\n".join(report.summary() for report in self.reports)

    def __repr__(self) -> str:
        return f"<TorchModule: {self._settings.target}, programs={len(self.reports)}>"

    def whole(self) -> CompiledModule:
        """The program as one model of arrays, without torch.

        ArtifactError: an operator has no translation, or extents are dynamic.
        """
        if self.graph.symbolic:
            raise ArtifactError("extents are dynamic; expected a program exported with static shapes")
        module = copied(self.program.graph_module)
        placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
        held = {
            node: source
            for node, source in zip(placeholders, self._sources, strict=True)
            if source is not None
        }
        values = fold(module, held).values
        constants = {node: values[node.name] for node in module.graph.nodes if node.name in values}
        try:
            translation = translate(module, constants, declared=True)
        except Untranslatable as reason:
            raise ArtifactError(f"an operator needs torch: {reason}") from None
        threads = self._settings.threads
        return convopt.optimize(
            translation.model,
            threads=torch.get_num_threads() if threads is None else threads,
            **self._settings.options,
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the program for `convopt.load`, which needs no torch: arrays in the order of the tensors in,
        arrays out. ArtifactError where an operator needs torch, or writing fails.
        """
        self.whole().save(path)


def _check(name: str, value: Any, expected: Any) -> None:
    """InputError for an argument that is not like the example."""
    if not isinstance(expected, torch.Tensor):
        return
    if not isinstance(value, torch.Tensor):
        raise InputError(f"input {name!r}: expected a tensor, got {type(value).__name__}")
    if value.device != expected.device:
        raise InputError(f"input {name!r}: expected a tensor on {expected.device}, got one on {value.device}")
    if value.dtype != expected.dtype:
        raise InputError(f"input {name!r}: expected {expected.dtype}, got {value.dtype}")
    fits = len(value.shape) == len(expected.shape) and all(
        isinstance(e, torch.SymInt) or e == d for d, e in zip(value.shape, expected.shape, strict=True)
    )
    if not fits:
        raise InputError(f"input {name!r}: expected shape {tuple(expected.shape)}, got {tuple(value.shape)}")
    if value.requires_grad and torch.is_grad_enabled():
        raise InputError(
            f'input {name!r} wants a gradient; torch.compile(module, backend="convopt") computes them'
        )
