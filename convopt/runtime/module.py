"""CompiledModule: what `convopt.optimize` and `convopt.load` return."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np

from convopt.errors import InputError
from convopt.runtime.artifact import save
from convopt.runtime.device_arrays import as_device_arrays, lives_on_device
from convopt.runtime.execution import MOST_THREADS, ContextPool
from convopt.runtime.loaded import Loaded
from convopt.runtime.profile import Profile, of_runs
from convopt.runtime.program import Placement
from convopt.runtime.programs import ProgramCache, ShapeKey
from convopt.runtime.signature import TensorInfo, as_array, check_shapes, gather
from convopt.runtime.summary import summarize

Array = np.ndarray[Any, Any]
CompileShapes = Callable[[dict[str, tuple[int, ...]]], Loaded]


class CompiledModule:
    """A model, compiled. Call it with arrays in the model's order or by name; any number of threads may.

    One output comes as an array, several as a tuple in the model's order; they are fresh memory that belongs
    to the caller. Inputs are numpy arrays or anything with `__dlpack__`, and are never written to. A module
    for CUDA also takes torch or cupy arrays on the device: outputs are such arrays then, and the work goes to
    the stream that their library works on, without waiting for it.

        loaded = LoadedProgram(program, link(objects), weights, islands)
        module = CompiledModule([loaded], threads=2)

    programs: compiled Programs, one per set of input shapes; at least one unless `compile_shapes` is given.
    threads: how many run a kernel, the caller counted; islands get as many.
    inputs, outputs: the boundary with its dynamic dims; by default that of the first Program, all static.
    compile_shapes: makes the Program of input shapes not met before; without it such a call is an InputError.
    max_programs: how many Programs are kept (all of `programs` are).
    max_idle: how many idle arenas with their threads are kept; by default enough to use all cores.
    """

    def __init__(
        self,
        programs: Sequence[Loaded],
        *,
        threads: int,
        precision: str = "fp32",
        target: str = "cpu",
        inputs: Sequence[TensorInfo] | None = None,
        outputs: Sequence[TensorInfo] | None = None,
        compile_shapes: CompileShapes | None = None,
        max_programs: int = 8,
        max_idle: int | None = None,
    ) -> None:
        if not isinstance(threads, int) or isinstance(threads, bool) or not 1 <= threads <= MOST_THREADS:
            raise InputError(f"threads is {threads!r}; expected an integer of 1 to {MOST_THREADS}")
        if not programs and (compile_shapes is None or inputs is None or outputs is None):
            raise ValueError("without a Program, inputs, outputs and compile_shapes are needed")
        self.inputs = tuple(inputs or map(TensorInfo.of, programs[0].program.inputs))
        self.outputs = tuple(outputs or map(TensorInfo.of, programs[0].program.outputs))
        self._output_names = tuple(info.name for info in self.outputs)
        for loaded in programs:
            if len(loaded.program.inputs) != len(self.inputs) or len(loaded.program.outputs) != len(
                self.outputs
            ):
                raise ValueError("a Program has another number of inputs or outputs than the module")
        self.threads = threads
        self.precision = precision
        self.target = target
        self._on_device = not target.startswith("cpu")
        self._contexts = ContextPool(threads, max_idle)
        self._programs = ProgramCache(programs, max_programs, self._contexts.forget)
        self._compile_shapes = compile_shapes

    def __call__(self, /, *inputs: Any, **named: Any) -> Array | tuple[Array, ...]:
        results = self._run(gather(self.inputs, inputs, named))
        return results[0] if len(results) == 1 else tuple(results)

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a CompiledModule is neither pickled nor copied: save it to a file and convopt.load that; threads"
            " may share the module itself"
        )

    def __repr__(self) -> str:
        count = len(self.programs)
        return f"<CompiledModule: {self.target}, {self.precision}, threads={self.threads}, programs={count}>"

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Array]:
        """The outputs by name, of inputs by name."""
        results = self._run(gather(self.inputs, (), inputs))
        return dict(zip(self._output_names, results, strict=True))

    def _run(self, values: Sequence[Any]) -> list[Any]:
        if self._on_device and any(map(lives_on_device, values)):
            given = as_device_arrays(self.inputs, values)
            return self._contexts.run_on_device(self._program(tuple(a.shape for a in given)), given)
        arrays, loaded = self._prepare(values)
        return self._contexts.run(loaded, arrays)

    def _prepare(self, values: Sequence[Any]) -> tuple[list[Array], Loaded]:
        arrays = list(map(as_array, self.inputs, values))
        return arrays, self._program(tuple([array.shape for array in arrays]))

    def _program(self, shapes: ShapeKey) -> Loaded:
        loaded = self._programs.find(shapes)
        if loaded is not None:
            return loaded
        check_shapes(self.inputs, shapes)
        return self._programs.get(shapes, lambda: self._make(shapes))

    def _make(self, shapes: ShapeKey) -> Loaded:
        names = [info.name for info in self.inputs]
        if self._compile_shapes is None:
            have = "; ".join(
                ", ".join(f"{spec.name}: {spec.shape}" for spec in loaded.program.inputs)
                for loaded in self._programs.values()
            )
            wanted = ", ".join(f"{name}: {shape}" for name, shape in zip(names, shapes, strict=True))
            raise InputError(f"no kernels for the shapes {wanted}; this module was compiled for {have}")
        return self._compile_shapes(dict(zip(names, shapes, strict=True)))

    def profile(self, *inputs: Any, runs: int = 10, **named: Any) -> Profile:
        """The median time of each step over `runs` runs after one that warms up; `str()` of it is a table."""
        if not isinstance(runs, int) or runs < 1:
            raise InputError(f"runs is {runs!r}; expected an integer of 1 or more")
        arrays, loaded = self._prepare(gather(self.inputs, inputs, named))
        times: list[list[float]] = []
        for _ in range(runs + 1):
            times.append([])
            self._contexts.run(loaded, arrays, times[-1])
        return of_runs(loaded.program, times[1:])

    def summary(self) -> str:
        """What was compiled and how, what fell back and why (a line each), memory: text for people."""
        return summarize(self)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write all Programs there are to one file for `convopt.load`. ArtifactError where that fails."""
        save(self, path)

    @property
    def programs(self) -> list[Loaded]:
        """The Programs there are, the most recently used last."""
        return self._programs.values()

    @property
    def placement(self) -> tuple[Placement, ...]:
        """Where each node of the optimized model runs, in the most recently used Program."""
        programs = self.programs
        return programs[-1].program.placement if programs else ()
