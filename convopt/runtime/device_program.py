"""A Program for a device: its binaries and weights over there, and one call's worth of state.

The device is opened at the first run, not before: an artifact can be made, saved and loaded where there is
none.
"""

from __future__ import annotations

import io
import threading
import time
import zipfile
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from itertools import groupby
from typing import Any

import numpy as np

from convopt.errors import ArtifactError, ExecutionError, InputError
from convopt.runtime import forks
from convopt.runtime.device import Compiling, Device, DevicePointer, Memory, open_device
from convopt.runtime.device_arrays import DeviceArray, current_stream, device_number, empty_like, memory_shape
from convopt.runtime.loaded import Loaded, is_data_dependent, nbytes, numpy_dtype
from convopt.runtime.memory import Bytes, empty
from convopt.runtime.program import Address, IslandStep, KernelStep, Program, Step, TensorSpec

Array = np.ndarray[Any, Any]


def pack_binaries(binaries: Mapping[str, bytes]) -> bytes:
    """The image of a DeviceProgram: what each `KernelStep.binary` names, in one stored zip archive."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name in sorted(binaries):
            archive.writestr(zipfile.ZipInfo(name), binaries[name])  # a fixed date: equal images are equal
    return file.getvalue()


class DeviceProgram(Loaded):
    """A Program whose kernel steps have launches. image: of `pack_binaries`; kind: of the target.

    ArtifactError: a step without launch, or with a binary that the image lacks.
    """

    def __init__(
        self,
        program: Program,
        image: bytes,
        weights: bytes | memoryview | Array = b"",
        islands: tuple[bytes, ...] = (),
    ) -> None:
        super().__init__(program, image, weights, islands)
        self.kind = str(program.meta.get("kind", ""))
        try:
            with zipfile.ZipFile(io.BytesIO(image)) as archive:
                self.binaries = {name: archive.read(name) for name in archive.namelist()}
        except zipfile.BadZipFile as error:
            raise ArtifactError(f"its device code is damaged ({error}): compile the model again") from error
        for step in program.steps:
            if not isinstance(step, KernelStep):
                continue
            if step.launch is None or step.binary not in self.binaries:
                raise ArtifactError(
                    f"kernel {step.symbol!r} has no code for a device: compile the model again"
                )
            for place in step.args:
                self.base(place, step.symbol)
        self._lock = threading.Lock()
        self._resident: tuple[Memory, dict[str, Any]] | None = None
        forks.watch(self)

    def resident(self, device: Device) -> tuple[Memory, dict[str, Any]]:
        """The weights' memory and the loaded modules by name, made by the first context."""
        with self._lock:
            if self._resident is None:
                weights = device.allocate(self.weights.nbytes)
                device.write(weights, 0, self.weights)
                device.synchronise()
                if isinstance(device, Compiling):
                    device.prepare(self.binaries.values())
                self._resident = weights, {name: device.load(b) for name, b in self.binaries.items()}
            return self._resident

    def after_fork(self) -> None:
        # A device's context does not survive a fork: the child's first run makes its own, or says why not.
        self._lock = threading.Lock()
        self._resident = None


class DeviceContext:
    """An arena, inputs and outputs on the device, for one Program; serves one call at a time.

    The arena is zeroed here and never again.
    """

    def __init__(self, loaded: DeviceProgram, threads: int) -> None:
        self.loaded, self.threads = loaded, threads
        program = loaded.program
        self.device = open_device(loaded.kind)
        weights, modules = loaded.resident(self.device)
        self._memory: dict[str, list[Memory]] = {
            "arena": [self.device.allocate(program.arena_bytes)],
            "weights": [weights],
            "input": [self.device.allocate(nbytes(spec)) for spec in program.inputs],
            "output": [
                None if is_data_dependent(spec) else self.device.allocate(nbytes(spec))
                for spec in program.outputs
            ],
        }
        self._kernels: dict[int, Any] = {
            index: self.device.kernel(modules[step.binary], step.symbol)
            for index, step in enumerate(program.steps)
            if isinstance(step, KernelStep)
        }

    def run(self, inputs: Sequence[Array], seconds: list[float] | None = None) -> list[Array]:
        """The outputs, in fresh arrays. `inputs` are contiguous and of the Program's shapes.

        seconds: gets the time of each step, in the Program's order.
        """
        self.put(inputs)
        if seconds is None:
            return self.fetch(self.launch())
        on_host: list[Any] = [None] * len(self.loaded.program.outputs)
        for index, step in enumerate(self.loaded.program.steps):
            seconds.append(self._timed(index, step, on_host))
        return self.fetch(on_host)

    @property
    def arena(self) -> Memory:
        return self._memory["arena"][0]

    def put(self, inputs: Sequence[Array]) -> None:
        """Copies the inputs to the device."""
        for memory, array, spec in zip(
            self._memory["input"], inputs, self.loaded.program.inputs, strict=True
        ):
            self.device.write(memory, 0, _bytes(np.moveaxis(array, 1, -1) if spec.channels_last else array))

    def launch(self) -> list[Any]:
        """All steps on the inputs that are there; it waits for islands only.

        Returns, for each output, what an island made on the host of a size that was not known, else None.
        """
        on_host: list[Any] = [None] * len(self.loaded.program.outputs)
        self._run_segments(on_host)
        return on_host

    def fetch(self, on_host: Sequence[Any]) -> list[Array]:
        """The outputs of the last launch, which returned `on_host`, in fresh arrays."""
        return [
            self._fetch(spec, Address("output", index, 0)) if on_host[index] is None else on_host[index]
            for index, spec in enumerate(self.loaded.program.outputs)
        ]

    def run_on_device(self, inputs: Sequence[DeviceArray]) -> list[Any]:
        """The outputs as arrays of the inputs' library, on the stream that it works on now; nothing waits."""
        program, device = self.loaded.program, self.device
        first = inputs[0].value
        if unsized := [spec.name for spec in program.outputs if is_data_dependent(spec)]:
            raise ExecutionError(
                f"the sizes of {', '.join(unsized)} are known on the host only: give arrays there"
            )
        if wrong := {number for a in inputs if (number := device_number(a.value)) != device.index}:
            raise InputError(
                f"an input is on device {wrong.pop()}, this process computes on {device.index}:"
                f" set CONVOPT_{'CUDA' if self.loaded.kind == 'cuda' else 'HIP'}_DEVICE, or move the input"
            )
        with device.on_stream(current_stream(first)):
            for memory, array in zip(self._memory["input"], inputs, strict=True):
                device.copy(memory, array.pointer, array.nbytes)
            self._run_segments([None] * len(program.outputs))
            outputs = [empty_like(first, spec) for spec in program.outputs]
            for memory, array in zip(self._memory["output"], outputs, strict=True):
                device.copy(array.pointer, memory, array.nbytes)
        return [array.value for array in outputs]

    def _run_segments(self, on_host: list[Any]) -> None:
        for segment in self._segments:
            if isinstance(segment, IslandStep):
                self._run_island(segment, on_host)
            else:
                segment()

    @cached_property
    def _segments(self) -> list[Callable[[], None] | IslandStep]:
        """The steps as single islands and runs of kernels, each run captured by the device."""
        segments: list[Callable[[], None] | IslandStep] = []
        for is_island, steps in groupby(
            enumerate(self.loaded.program.steps), key=lambda pair: isinstance(pair[1], IslandStep)
        ):
            run = list(steps)
            if is_island:
                segments += [step for _, step in run if isinstance(step, IslandStep)]
            else:
                segments.append(self.device.capture(partial(self._launch_all, run)))
        return segments

    def _launch_all(self, steps: Sequence[tuple[int, Step]]) -> None:
        for index, step in steps:
            self._launch(index, step)

    def _timed(self, index: int, step: Step, on_host: list[Any]) -> float:
        if isinstance(step, KernelStep):
            return self.device.time(partial(self._launch, index, step))
        start = time.perf_counter()
        self._run_island(step, on_host)
        return time.perf_counter() - start

    def _launch(self, index: int, step: Step) -> None:
        assert isinstance(step, KernelStep) and step.launch is not None  # DeviceProgram has checked
        self.device.launch(self._kernels[index], step.launch, [self._at(place) for place in step.args])

    def _at(self, place: Address) -> DevicePointer:
        return self._memory[place.space][place.index], place.offset

    def _fetch(self, spec: TensorSpec, place: Address) -> Array:
        array, _ = empty(memory_shape(spec), numpy_dtype(spec.dtype), nbytes(spec))
        self.device.read(*self._at(place), _bytes(array))
        return np.moveaxis(array, -1, 1) if spec.channels_last else array

    def _run_island(self, step: IslandStep, on_host: list[Any]) -> None:
        """In onnxruntime: on the device's own memory where it can, else on copies, on the CPU."""
        if self._bound_island(step):
            return
        session = self.loaded.islands.get(step.model, self.threads)
        feeds = {}
        for spec, place in step.inputs:
            if is_data_dependent(spec):
                feeds[spec.name] = on_host[place.index]
            else:
                feeds[spec.name] = self._fetch(spec, place)
        try:
            results = session.run([spec.name for spec, _ in step.outputs], feeds)
        except Exception as error:  # onnxruntime raises a type of its own for each refusal
            raise ExecutionError(f"{step.label} ({', '.join(step.nodes)}): {error}") from error
        for (spec, place), result in zip(step.outputs, results, strict=True):
            if is_data_dependent(spec):
                on_host[place.index] = result
            else:
                data = np.moveaxis(result, 1, -1) if spec.channels_last else result
                self.device.write(*self._at(place), _bytes(np.ascontiguousarray(data)))

    def _bound_island(self, step: IslandStep) -> bool:
        """Runs it in the device's provider, its inputs and outputs bound to our memory. False: can't be."""
        device, index = self.device, self.device.index
        if index is None or not is_bindable(step):
            return False
        session = self.loaded.islands.on_device(step.model, self.threads, self.loaded.kind, index)
        if session is None:
            return False
        binding = session.io_binding()
        ends = (binding.bind_input, step.inputs), (binding.bind_output, step.outputs)
        for bind, operands in ends:
            for spec, place in operands:
                memory, offset = self._at(place)
                pointer = memory.pointer + offset
                # onnxruntime calls AMD's devices cuda too.
                bind(spec.name, "cuda", index, numpy_dtype(spec.dtype), list(spec.shape), pointer)
        device.synchronise()  # its stream is another
        try:
            session.run_with_iobinding(binding)
            binding.synchronize_outputs()
        except Exception as error:  # onnxruntime raises a type of its own for each refusal
            raise ExecutionError(f"{step.label} ({', '.join(step.nodes)}): {error}") from error
        return True

    def close(self) -> None:
        """Nothing to end: memory goes with the last reference."""


def is_bindable(step: IslandStep) -> bool:
    """Whether all of its operands lie on the device as onnxruntime takes them there."""
    operands = [spec for spec, _ in (*step.inputs, *step.outputs)]
    return not any(
        is_data_dependent(s) or s.channels_last or numpy_dtype(s.dtype).kind not in "fiub" for s in operands
    )


def islands_on_cpu(loaded: DeviceProgram) -> list[IslandStep]:
    """Those that run on the CPU on this machine, on copies: one of each input and output in every run."""
    islands = [step for step in loaded.program.steps if isinstance(step, IslandStep)]
    if loaded.islands.provider(loaded.kind) is None:
        return islands
    return [step for step in islands if not is_bindable(step)]


def _bytes(array: Array) -> Bytes:
    """The contiguous array's memory."""
    flat: Bytes = array.reshape(-1).view(np.uint8)
    return flat
