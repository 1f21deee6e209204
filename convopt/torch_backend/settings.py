"""The options of torch.compile(..., options={...}) and of `convopt.optimize` of a torch module."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

import convopt
from convopt.errors import InputError

if TYPE_CHECKING:
    from convopt.torch_backend.report import GraphReport

_OURS = ("verify", "max_programs", "report", "threads")
# What belongs to ONNX models, or is the tensors' matter.
_NOT_HERE = frozenset({"source", "shapes", "example_inputs", "dynamic_shapes", "after", "check", *_OURS})


@dataclass(frozen=True)
class Settings:
    """verify: compare each part's first result with what torch computes: a part that differs stays in torch,
    with "raise" it is a VerificationError. threads: of each kernel; by default as many as torch has at the
    call. max_programs: for how many sets of input shapes a graph keeps its kernels. report: called with a
    GraphReport when a graph has been compiled for a set of shapes. options: of `convopt.optimize` for each
    part.
    """

    verify: bool | Literal["raise"] = False
    threads: int | None = None
    max_programs: int = 8
    report: Callable[[GraphReport], None] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, options: Mapping[str, Any] | None) -> Settings:
        """InputError for an option that there is not."""
        given = dict(options or {})
        own = {name: given.pop(name) for name in _OURS if name in given}
        known = [n for n in inspect.signature(convopt.optimize).parameters if n not in _NOT_HERE]
        for name in given:
            if name not in known:
                raise InputError(f"option {name!r}; expected one of {', '.join(sorted((*known, *_OURS)))}")
        made = cls(**own, options=given)
        if not isinstance(made.verify, bool) and made.verify != "raise":
            raise InputError(f"verify is {made.verify!r}; expected True, False or 'raise'")
        if not isinstance(made.max_programs, int) or made.max_programs < 1:
            raise InputError(f"max_programs is {made.max_programs!r}; expected an integer of 1 or more")
        return made

    @property
    def target(self) -> str:
        return str(self.options.get("target", "cpu"))

    def on_device_of(self, tensors: Iterable[Any]) -> Settings:
        """With the target of the tensors' device; InputError where the given one doesn't fit it."""
        from convopt.torch_backend.devices import target_for

        target = target_for(tensors, self.options.get("target"))
        return replace(self, options={**self.options, "target": target})
