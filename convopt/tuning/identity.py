"""What a record is valid for: the problem, the chip, the threads, the versions of the measured code."""

from __future__ import annotations

import hashlib
import json
import sys
from dataclasses import asdict, dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from convopt.schedules.conv_problem import ConvProblem
from convopt.selection.plans import FAMILIES
from convopt.targets import Target
from convopt.targets.cpu import chip_name


@dataclass(frozen=True)
class TaskKey:
    """One convolution on one chip, as text: stores compare, print and export it.

    problem: canonical JSON of the ConvProblem: shapes, strides (the layout), dtypes, epilogue.
    target: the code generator's target, the cache sizes and the chip's name. generator: `code_generator()`.
    """

    operator: str
    problem: str
    target: str
    threads: int
    generator: str

    @property
    def digest(self) -> str:
        text = json.dumps([self.operator, self.problem, self.target, self.threads, self.generator])
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    @property
    def kin(self) -> str:
        """Equal for equal convolutions of different batch sizes and numbers of threads."""
        fields = json.loads(self.problem)
        for view in (fields["x"], fields["y"], *fields["others"]):
            view["shape"][1] = 0
            # What a dim of one element would move may depend on the batch.
            view["strides"] = [
                s if n != 1 else 0 for n, s in zip(view["shape"], view["strides"], strict=True)
            ]
        text = json.dumps([self.operator, fields, self.target, self.generator], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:32]


def task_key(problem: ConvProblem, target: Target, threads: int) -> TaskKey:
    """The key of a convolution on this machine's chip."""
    return TaskKey("conv", problem_text(problem), target_text(target), threads, code_generator())


def problem_text(problem: ConvProblem) -> str:
    return json.dumps(asdict(problem), sort_keys=True, separators=(",", ":"))


@cache
def target_text(target: Target) -> str:
    caches = f"l1={target.l1} l2={target.l2} l3={target.l3}"
    return " ".join([target.name, *target.mattr, caches, chip_name()])


@cache
def code_generator() -> str:
    """Changes with TVM and with what we do to its output."""
    source = Path(__file__).parents[1] / "codegen" / "cpu.py"
    return f"tvm {version('apache-tvm')} {hashlib.sha256(source.read_bytes()).hexdigest()[:12]}"


@cache
def schedule_version(family: str) -> str:
    """Changes with the family's own module and with the primitives that all families build on.

    A changed family leaves its old records unused; other families' records stay.
    """
    module = sys.modules[FAMILIES[family].__module__]
    assert module.__file__ is not None
    own = Path(module.__file__)
    shared = own.parent
    sources = [
        own,
        shared / "base.py",
        shared / "conv_problem.py",
        *sorted((shared / "primitives").glob("*.py")),
    ]
    digest = hashlib.sha256()
    for source in sources:
        digest.update(source.read_bytes())
    return digest.hexdigest()[:12]


def describe(problem: str) -> str:
    """A stored problem for people: `3x3 s1 1x64->64 @1x1x56x56`, as in summaries."""
    fields: dict[str, Any] = json.loads(problem)
    kernel = "x".join(str(k) for k in fields["kernel"][fields["kernel"][0] == 1 :])
    x, y = fields["x"]["shape"], fields["y"]["shape"]
    extents = "x".join(str(e) for e in y[1:5])
    return f"{kernel} s{fields['strides'][2]} {x[0]}x{x[5]}->{y[5]} @{extents}"
