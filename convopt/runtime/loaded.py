"""A Program together with what it needs to run: its machine code, its weights, its island models."""

from __future__ import annotations

import ctypes
import functools
from math import prod
from typing import Any

import numpy as np

from convopt.errors import ArtifactError
from convopt.runtime.islands import IslandSessions
from convopt.runtime.library import Library
from convopt.runtime.machine import allow_tiles
from convopt.runtime.memory import as_aligned
from convopt.runtime.program import Address, IslandStep, KernelStep, Program, TensorSpec


class _Operand(ctypes.Structure):
    """`struct operand` of executor.c."""

    _fields_ = (("base", ctypes.c_int64), ("offset", ctypes.c_int64))


class _Step(ctypes.Structure):
    """`struct step` of executor.c."""

    _fields_ = (
        ("kernel", ctypes.c_void_p),
        ("operands", ctypes.POINTER(_Operand)),
        ("operand_count", ctypes.c_int32),
        ("tasks", ctypes.c_int32),
        ("serial", ctypes.c_int32),
    )


@functools.cache
@functools.cache
def numpy_dtype(name: str) -> np.dtype[Any]:
    """The dtype of a TensorSpec; ml_dtypes is imported only for what numpy lacks (bfloat16, float8)."""
    if name == "string":
        return np.dtype(object)
    try:
        return np.dtype(name)
    except TypeError:
        import ml_dtypes

        dtype: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
        return dtype


def is_data_dependent(spec: TensorSpec) -> bool:
    """Whether memory for it can't be set aside: a dim is -1 (NonZero and the like), or it holds strings.

    Such a tensor is an island's output, addressed in the space "output"; later islands may read it there.
    """
    return spec.dtype == "string" or any(extent < 0 for extent in spec.shape)


def nbytes(spec: TensorSpec) -> int:
    return prod(spec.shape) * numpy_dtype(spec.dtype).itemsize


class Loaded:
    """A Program with its code, weights and island models, checked; immutable, shared by contexts and threads.

    program: the steps.
    image: the code of every kernel step, as bytes: what that is depends on the device.
    weights: the bytes of the space "weights" (used in place if 64-byte aligned, else copied).
    islands: the ONNX bytes that IslandStep.model indexes.
    ArtifactError: an address outside its space.
    """

    def __init__(
        self,
        program: Program,
        image: bytes,
        weights: bytes | memoryview | np.ndarray[Any, Any] = b"",
        islands: tuple[bytes, ...] = (),
    ) -> None:
        if program.meta.get("matrix_tiles") and (refusal := allow_tiles()) is not None:
            raise ArtifactError(f"the program computes with AMX: {refusal}")
        self.program = program
        self.image = image
        self.weights = as_aligned(weights)
        self.islands = IslandSessions(tuple(islands))
        self._sizes: dict[str, list[int]] = {
            "arena": [program.arena_bytes],
            "weights": [self.weights.nbytes],
            "input": [nbytes(spec) for spec in program.inputs],
            "output": [0 if is_data_dependent(spec) else nbytes(spec) for spec in program.outputs],
        }
        self._check_islands()

    def _check_islands(self) -> None:
        for step in self.program.steps:
            if not isinstance(step, IslandStep):
                continue
            what = f"island {step.label or step.model!r}"
            if not 0 <= step.model < len(self.islands.models):
                raise ArtifactError(f"{what} has no model {step.model}")
            for spec, place in (*step.inputs, *step.outputs):
                self.base(place, what)
                if is_data_dependent(spec):
                    if place.space not in ("input", "output"):
                        raise ArtifactError(
                            f"{what}: {spec.name!r} has no fixed size and can't be in {place.space}"
                        )
                elif place.offset + nbytes(spec) > self._sizes[place.space][place.index]:
                    raise ArtifactError(f"{what}: {spec.name!r} reaches beyond {place}")

    def base(self, place: Address, what: str) -> int:
        """The index of the address's base in a run's bases: arena, weights, inputs, outputs."""
        sizes = self._sizes[place.space]
        if not 0 <= place.index < len(sizes) or not 0 <= place.offset <= sizes[place.index]:
            raise ArtifactError(f"{what}: {place} lies outside of its space")
        first = {"arena": 0, "weights": 1, "input": 2, "output": 2 + len(self.program.inputs)}
        return first[place.space] + place.index


class LoadedProgram(Loaded):
    """A Program for the CPU. image: the shared object from `convopt.codegen.link`; it defines every symbol.

    ArtifactError: a symbol that the image lacks, an image for another machine.
    """

    def __init__(
        self,
        program: Program,
        image: bytes,
        weights: bytes | memoryview | np.ndarray[Any, Any] = b"",
        islands: tuple[bytes, ...] = (),
    ) -> None:
        super().__init__(program, image, weights, islands)
        self.library = Library(image)
        self.run = self.library.function("convopt_run")
        self.run.restype = None
        self.run.argtypes = (
            ctypes.c_void_p,
            ctypes.c_int32,
            ctypes.c_int32,
            ctypes.c_void_p,
            ctypes.c_void_p,
        )
        self.create_pool = ctypes.CFUNCTYPE(
            ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_int64, ctypes.c_void_p, use_errno=True
        )(self.library.symbol("convopt_pool_create"))
        self.destroy_pool = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(
            self.library.symbol("convopt_pool_destroy")
        )
        kernels = [step for step in program.steps if isinstance(step, KernelStep)]
        self.scratch = max((step.scratch for step in kernels), default=0)
        self.table = self._table(kernels)
        self.segments = _segments(program)

    def _table(self, kernels: list[KernelStep]) -> ctypes.Array[_Step]:
        """The kernel steps as executor.c reads them, in order, islands left out."""
        limit = self.library.function("convopt_max_operands")()
        most = self.library.function("convopt_max_steps")()
        if len(kernels) > most:
            raise ArtifactError(f"the program has {len(kernels)} kernels, at most {most} are possible")
        table = (_Step * max(len(kernels), 1))()
        for entry, step in zip(table, kernels, strict=False):
            if not 1 <= len(step.args) <= limit:
                raise ArtifactError(
                    f"kernel {step.symbol!r} has {len(step.args)} operands, expected 1 to {limit}"
                )
            if not 0 <= step.tasks < 2**31:
                raise ArtifactError(f"kernel {step.symbol!r} has {step.tasks} tasks")
            operands = [_Operand(self.base(arg, step.symbol), arg.offset) for arg in step.args]
            entry.kernel = self.library.symbol(step.symbol)
            entry.operands = (_Operand * len(operands))(*operands)
            entry.operand_count = len(operands)
            entry.tasks = step.tasks
            entry.serial = step.serial
        return table


def _segments(program: Program) -> tuple[tuple[int, int] | IslandStep, ...]:
    """The steps as runs of kernels (first, last in the table) and single islands."""
    segments: list[tuple[int, int] | IslandStep] = []
    count = 0
    for step in program.steps:
        if isinstance(step, IslandStep):
            segments.append(step)
            continue
        previous = segments[-1] if segments else None
        if isinstance(previous, tuple):
            segments[-1] = (previous[0], count + 1)
        else:
            segments.append((count, count + 1))
        count += 1
    return tuple(segments)
