"""One call's worth of state: an arena and a thread pool, and the pool of such contexts that a module keeps.

Why not TVM's runtime on the CPU: our kernels are plain C functions linked with a small C executor into one
shared object, so a saved artifact needs numpy only, each module keeps the number of threads it was asked for
(TVM has one pool per process, sized by its environment), and a launch costs a function call instead of a
packed call with checks per argument.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np

from convopt.errors import ExecutionError, InputError
from convopt.runtime import forks
from convopt.runtime.device_arrays import DeviceArray
from convopt.runtime.device_program import DeviceContext, DeviceProgram
from convopt.runtime.loaded import Loaded, LoadedProgram, is_data_dependent, nbytes, numpy_dtype
from convopt.runtime.memory import address, allocate, empty
from convopt.runtime.program import Address, IslandStep, TensorSpec
from convopt.sessions import run_session

Array = np.ndarray[Any, Any]
MOST_THREADS = 1024  # of one module; each has a stack and scratch memory


class _RunningThreads:
    """How many threads of this process are in a run: the executors count, and tell a full machine by it."""

    def __init__(self) -> None:
        self.count = ctypes.c_int32()
        self.address = ctypes.addressof(self.count)
        forks.watch(self)

    def after_fork(self) -> None:
        self.count.value = 0  # those that ran are the parent's


RUNNING_THREADS = _RunningThreads()


class ExecutionContext:
    """An arena and a pool of threads (the caller is one of them) for one Program; serves one call at a time.

    The arena is zeroed here and never again: kernels that rely on a zero border keep it zero themselves.
    """

    def __init__(self, loaded: LoadedProgram, threads: int) -> None:
        self.loaded = loaded
        self.threads = threads
        self.arena = allocate(loaded.program.arena_bytes)
        table, running = ctypes.addressof(loaded.table), RUNNING_THREADS.address
        pool = loaded.create_pool(table, threads, loaded.scratch, running)
        if not pool:
            error = ctypes.get_errno()
            raise OSError(
                error, f"cannot start {threads} threads with their scratch memory: {os.strerror(error)}"
            )
        self._pool = pool
        self._run, self._segments = loaded.run, loaded.segments
        # `loaded` as an argument keeps the code and the step table alive until the threads are gone.
        self._finalizer = weakref.finalize(self, _destroy, loaded, pool)
        self._finalizer.atexit = False
        program = loaded.program
        self._bases = (ctypes.c_void_p * (2 + len(program.inputs) + len(program.outputs)))()
        self._bases[0] = address(self.arena)
        self._bases[1] = address(loaded.weights)
        self._layout = [
            None if is_data_dependent(spec) else (spec.shape, numpy_dtype(spec.dtype), nbytes(spec))
            for spec in program.outputs
        ]
        self._channels_last = [index for index, spec in enumerate(program.outputs) if spec.channels_last]

    def run(self, inputs: Sequence[Array], seconds: list[float] | None = None) -> list[Array]:
        """The outputs, in fresh arrays. `inputs` are as `as_array` makes them, of the Program's shapes.

        seconds: gets the time of each step, in the Program's order.
        """
        bases, outputs, index = self._bases, [], 2
        for array in inputs:
            bases[index] = address(array)
            index += 1
        for layout in self._layout:
            output: Any = None
            if layout is not None:
                output, bases[index] = empty(*layout)
            outputs.append(output)
            index += 1
        for segment in self._segments:
            if isinstance(segment, IslandStep):
                start = time.perf_counter()
                self._run_island(segment, inputs, outputs)
                if seconds is not None:
                    seconds.append(time.perf_counter() - start)
            elif seconds is None:
                self._run(self._pool, *segment, bases, None)
            else:
                times = np.empty(segment[1] - segment[0] + 1, np.int64)
                self._run(self._pool, *segment, bases, address(times))
                seconds.extend(np.diff(times) * 1e-9)
        for index in self._channels_last:
            array = outputs[index]
            outputs[index] = np.moveaxis(
                array.reshape(array.shape[0], *array.shape[2:], array.shape[1]), -1, 1
            )
        return outputs

    def run_at(self, inputs: Sequence[int], outputs: Sequence[int]) -> None:
        """Like `run`, over the memory at these addresses, for a Program without islands."""
        bases = self._bases
        for index, pointer in enumerate((*inputs, *outputs), 2):
            bases[index] = pointer
        for segment in self._segments:
            assert not isinstance(segment, IslandStep), "onnxruntime takes arrays"
            self._run(self._pool, *segment, bases, None)

    def _run_island(self, step: IslandStep, inputs: Sequence[Array], outputs: list[Any]) -> None:
        threads = 1 if self.loaded.program.meta.get("deterministic") else self.threads
        session = self.loaded.islands.get(step.model, threads)
        feeds = {spec.name: self._at(spec, place, inputs, outputs) for spec, place in step.inputs}
        try:
            results = run_session(session, [spec.name for spec, _ in step.outputs], feeds)
        except Exception as error:  # onnxruntime raises a type of its own for each refusal
            raise ExecutionError(f"{step.label} ({', '.join(step.nodes)}): {error}") from error
        for (spec, place), result in zip(step.outputs, results, strict=True):
            if is_data_dependent(spec):
                outputs[place.index] = result
            elif result.shape != spec.shape or result.dtype != numpy_dtype(spec.dtype):
                raise ExecutionError(
                    f"{step.label} ({', '.join(step.nodes)}): {spec.name!r} came as {result.dtype}"
                    f" {result.shape}; expected {spec.dtype} {spec.shape}, as the model declares it: correct"
                    " its value_info or leave it out"
                )
            else:
                self._at(spec, place, inputs, outputs)[...] = result

    def _at(self, spec: TensorSpec, place: Address, inputs: Sequence[Array], outputs: list[Any]) -> Array:
        """The tensor at an address, as an array over that memory."""
        blocks: dict[str, Sequence[Any]] = {
            "arena": (self.arena,),
            "weights": (self.loaded.weights,),
            "input": inputs,
            "output": outputs,
        }
        block: Array = blocks[place.space][place.index]
        if is_data_dependent(spec):
            return block
        flat = block.reshape(-1).view(np.uint8)
        return np.ndarray(spec.shape, numpy_dtype(spec.dtype), flat.data, place.offset)

    def close(self) -> None:
        """End the threads. The context can't be used after that."""
        self._finalizer()


def _destroy(loaded: LoadedProgram, pool: int) -> None:
    loaded.destroy_pool(pool)


class ContextPool:
    """The contexts of a module: each call takes one, so that several threads may call at once.

    At most `max_idle` wait for the next call, over all Programs of the module; the longest unused goes first.
    """

    def __init__(self, threads: int, max_idle: int | None = None) -> None:
        self.threads = threads
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        self.max_idle = max(2, cores // threads) if max_idle is None else max_idle
        self._idle: list[ExecutionContext | DeviceContext] = []
        self._forgotten: set[int] = set()  # the ids of Programs, each as long as its Program lives
        self._lock = threading.Lock()
        forks.watch(self)

    def run(self, loaded: Loaded, inputs: Sequence[Array], seconds: list[float] | None = None) -> list[Array]:
        context = self._take(loaded)
        try:
            return context.run(inputs, seconds)
        finally:
            self._give(context)

    def run_on_device(self, loaded: Loaded, inputs: Sequence[DeviceArray]) -> list[Any]:
        """The outputs as arrays on the device. InputError: the Program is not for a device."""
        context = self._take(loaded)
        try:
            if not isinstance(context, DeviceContext):
                raise InputError("the inputs are on a device, and the module was compiled for the CPU")
            return context.run_on_device(inputs)
        finally:
            self._give(context)

    def run_at(self, loaded: Loaded, inputs: Sequence[int], outputs: Sequence[int]) -> None:
        context = self._take(loaded)
        assert isinstance(context, ExecutionContext)
        try:
            context.run_at(inputs, outputs)
        finally:
            self._give(context)

    def _take(self, loaded: Loaded) -> ExecutionContext | DeviceContext:
        with self._lock:
            idle = self._idle
            for index in range(len(idle) - 1, -1, -1):
                if idle[index].loaded is loaded:
                    return idle.pop(index)
        if isinstance(loaded, DeviceProgram):
            return DeviceContext(loaded, self.threads)
        assert isinstance(loaded, LoadedProgram)
        return ExecutionContext(loaded, self.threads)

    def _give(self, context: ExecutionContext | DeviceContext) -> None:
        with self._lock:
            surplus: ExecutionContext | DeviceContext | None = context
            if id(context.loaded) not in self._forgotten:
                self._idle.append(context)
                surplus = self._idle.pop(0) if len(self._idle) > self.max_idle else None
        if surplus is not None:
            surplus.close()

    def forget(self, loaded: Loaded) -> None:
        """The module no longer keeps this Program: end its contexts, those in use when they come back."""
        with self._lock:
            self._forgotten.add(id(loaded))
            weakref.finalize(loaded, self._forgotten.discard, id(loaded)).atexit = False
            gone = [context for context in self._idle if context.loaded is loaded]
            self._idle = [context for context in self._idle if context.loaded is not loaded]
        for context in gone:
            context.close()

    def after_fork(self) -> None:
        # The parent's threads are not here, and another thread may have held the lock.
        self._lock = threading.Lock()
        self._idle = []
