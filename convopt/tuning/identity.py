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

from convopt.runtime.device import open_device
from convopt.schedules.conv_problem import ConvProblem
from convopt.selection.conv_plan import FAMILIES
from convopt.targets import CpuTarget, GpuTarget
from convopt.targets.cpu import chip_name


@dataclass(frozen=True)
class TaskKey:
    """One convolution on one chip, as text: stores compare, print and export it.

    problem: canonical JSON of the ConvProblem: shapes, strides (the layout), dtypes, epilogue.
    target: `target_text`. threads: 0 on a GPU. generator: `code_generator`.
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


def task_key(problem: ConvProblem, target: CpuTarget | GpuTarget, threads: int) -> TaskKey:
    """The key of a convolution on this machine's CPU, or on that GPU, which has no threads of a module's."""
    if isinstance(target, GpuTarget):
        return TaskKey("conv", problem_text(problem), target_text(target), 0, code_generator(target.kind))
    return TaskKey("conv", problem_text(problem), target_text(target), threads, code_generator("cpu"))


def problem_text(problem: ConvProblem) -> str:
    return json.dumps(asdict(problem), sort_keys=True, separators=(",", ":"))


@cache
def target_text(target: CpuTarget | GpuTarget) -> str:
    """The chip: this machine's CPU, or the GPU that the target stands for.

    Raises:
        ExecutionError: the target stands for any device of its kind ("opencl"), and there is none here.
    """
    if isinstance(target, GpuTarget):
        return f"{target.name} {target.arch} {target.chip}" if target.arch else _device_text(target)
    caches = f"l1={target.l1} l2={target.l2} l3={target.l3}"
    return " ".join([target.name, *target.mattr, caches, chip_name()])


def _device_text(target: GpuTarget) -> str:
    return f"{target.name} {open_device(target.kind).name}"


# The modules of convopt.codegen whose text decides what the measured code is, by the target's kind.
_GENERATORS = {
    "cpu": ("cpu",),
    "cuda": ("device_lowering", "helpers", "cuda"),
    "hip": ("device_lowering", "hip_prelude", "hip_printer", "hip"),
    "opencl": ("device_lowering", "opencl"),
    "rocm": ("device_lowering", "rocm"),
}


@cache
def code_generator(kind: str) -> str:
    """Changes with TVM and with what we do to its output."""
    digest = hashlib.sha256()
    for name in _GENERATORS[kind]:
        digest.update((Path(__file__).parents[1] / "codegen" / f"{name}.py").read_bytes())
    return f"tvm {version('apache-tvm')} {digest.hexdigest()[:12]}"


def code_generators() -> set[str]:
    """Of every kind of target."""
    return set(map(code_generator, _GENERATORS))


@cache
def schedule_version(family: str) -> str:
    """Changes with the family's own module and with the primitives that all families build on; those of GPUs
    share more modules.

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
        *(sorted(shared.glob("gpu_*.py")) if own.name.startswith("gpu_") else []),
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
