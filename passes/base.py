"""The form of a pass, what it reports, and the runner.

A pass is a frozen dataclass whose fields are its options. It changes the model in place and says what it did,
and what it refused to do, in words. One callback between passes serves printing, dumping and checking.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import onnx_ir as ir

from convopt.errors import ConvoptError
from convopt.ir.values import forget_names
from convopt.targets import CpuTarget, GpuTarget


class PassError(ConvoptError):
    """A pass failed for a reason that is not the model's: names it and the passes that ran before it."""


@dataclass(frozen=True)
class Note:
    """One decision about one node. `refused` tells a refusal, whose text is the reason, from a deed."""

    node: str
    text: str
    refused: bool = False


@dataclass(frozen=True)
class PassReport:
    """`changed` counts the rewrites made; 0 means that the model is as it was."""

    changed: int = 0
    notes: tuple[Note, ...] = ()

    def __str__(self) -> str:
        return f"{self.changed} changed" if self.changed else "nothing to change"


@dataclass
class PassContext:
    """What passes share: the target, the shapes to bind, and the log of decisions.

    shapes: input name -> extents, for the inputs whose dims the caller fixes.
    log: (name of the pass, its report), in the order in which they ran.
    """

    target: CpuTarget | GpuTarget | None = None
    shapes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    log: list[tuple[str, PassReport]] = field(default_factory=list)

    def notes(self, node: str | None = None) -> list[tuple[str, Note]]:
        """(pass, note) of all notes so far, or of those on one node."""
        return [(name, n) for name, report in self.log for n in report.notes if node in (None, n.node)]


class Pass(Protocol):
    """Passes are frozen dataclasses: `name: ClassVar[str]` and the options as fields."""

    @property
    def name(self) -> str: ...

    def run(self, model: ir.Model, context: PassContext) -> PassReport: ...


After = Callable[[int, Pass, ir.Model, PassReport], None]


def run_passes(
    model: ir.Model, passes: Sequence[Pass], context: PassContext, after: After | None = None
) -> tuple[PassReport, ...]:
    """Runs the passes in order on the model, in place; `after` is called behind each with its index.

    Raises:
        ConvoptError: what a pass raised, with a note that names the pass and those before it; any other
            exception comes as a PassError chained to it.
    """
    reports: list[PassReport] = []
    for index, one in enumerate(passes):
        forget_names(model.graph)
        before = ", ".join(p.name for p in passes[:index]) or "no pass"
        try:
            report = one.run(model, context)
        except ConvoptError as error:
            error.add_note(f"raised in pass {one.name}, after {before}")
            raise
        except Exception as error:
            raise PassError(
                f"pass {one.name} failed, after {before}: {type(error).__name__}: {error}"
            ) from error
        context.log.append((one.name, report))
        reports.append(report)
        if after is not None:
            after(index, one, model, report)
    return tuple(reports)


def without(passes: Sequence[Pass], skip: Collection[str]) -> tuple[Pass, ...]:
    """The passes less those named in `skip`.

    Raises:
        ConvoptError: a name that no pass has.
    """
    names = [p.name for p in passes]
    for name in skip:
        if name not in names:
            raise ConvoptError(f"no pass is named {name!r}; there are {', '.join(names)}")
    return tuple(p for p in passes if p.name not in skip)
