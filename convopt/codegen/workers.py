"""Compiles kernels on all cores, in subprocesses that may die without taking the caller along."""

from __future__ import annotations

import atexit
import os
import pickle
import queue
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from convopt.codegen.cache import KernelCache, kernel_key, symbol_of
from convopt.codegen.worker import read_frame, write_frame
from convopt.targets import CpuTarget, GpuTarget
from convopt.targets.cpu import usable_cores


@dataclass(frozen=True)
class KernelSource:
    """What a kernel is made from."""

    schedule: Any
    problem: Any
    target: CpuTarget | GpuTarget

    @property
    def key(self) -> str:
        return kernel_key(self.schedule, self.problem, self.target)


@dataclass(frozen=True)
class CompiledKernels:
    """Object files by key, and why the others have none."""

    objects: dict[str, bytes]
    failures: dict[str, str]
    compiled: int  # made now; the rest came from the cache


class _Worker:
    """One compiler process, restarted after a crash."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[bytes] | None = None

    def compile(self, source: KernelSource, timeout: float, deadline: float) -> tuple[bool, bytes | str]:
        request = (source.schedule, source.problem, source.target, symbol_of(source.key))
        for _ in range(2):
            process = self._running()
            assert process.stdin is not None
            try:
                write_frame(process.stdin, pickle.dumps(request))
                break
            except OSError:  # it left after a minute without work
                self.stop()
        return self._answer(timeout, deadline)

    def _running(self) -> subprocess.Popen[bytes]:
        if self.process is not None and self.process.poll() is not None:
            self.stop()  # it left after a minute without work: its pipes are closed here
        if self.process is None:
            command = [sys.executable, "-P", "-m", "convopt.codegen.worker"]
            paths = [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
            )
        return self.process

    def _answer(self, timeout: float, deadline: float) -> tuple[bool, bytes | str]:
        process = self.process
        assert process is not None and process.stdout is not None
        spent, now = 0.0, time.monotonic()
        while not select.select([process.stdout], [], [], min(1.0, timeout))[0]:
            # A busy machine gives each process its share only: what is compiled must not depend on that.
            before, now = now, time.monotonic()
            spent += (now - before) * min(1.0, usable_cores() / max(os.getloadavg()[0], 1.0))
            if spent >= timeout or now >= deadline:
                self.stop()
                over = f"took longer than {timeout:.0f} s" if spent >= timeout else "found no time left"
                return False, f"the kernel compiler {over}"
        frame = read_frame(process.stdout)
        if frame is None:
            code = process.wait()
            self.stop()
            return False, f"the kernel compiler crashed ({'signal' if code < 0 else 'exit'} {abs(code)})"
        ok, result = pickle.loads(frame)
        return bool(ok), result

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            for stream in (self.process.stdin, self.process.stdout):
                if stream is not None:
                    try:
                        stream.close()
                    except OSError:  # unsent bytes of a pipe whose reader is gone
                        continue
            self.process = None


_idle: queue.SimpleQueue[_Worker] = queue.SimpleQueue()  # workers wait here between calls


def _forget_workers() -> None:
    """A forked child must not talk into its parent's pipes."""
    global _idle
    _idle = queue.SimpleQueue()


def _stop_workers() -> None:
    """At exit, with their pipes: a compiler would wait a minute for more work."""
    while True:
        try:
            _idle.get_nowait().stop()
        except queue.Empty:
            return


os.register_at_fork(after_in_child=_forget_workers)
atexit.register(_stop_workers)


def compile_kernels(
    sources: Iterable[KernelSource],
    cache: KernelCache,
    progress: Callable[[int, int], None] | None = None,
    timeout: float = 120.0,
    deadline: float = float("inf"),
) -> CompiledKernels:
    """The object file of every source, from the cache or compiled now on all usable cores.

    timeout: seconds for one kernel, of a machine that does nothing else.
    deadline: of `time.monotonic()`; what isn't compiled by then has failed.
    progress(done, total) is called from this thread, first with 0, then as kernels are finished.
    """
    wanted = {source.key: source for source in sources}
    objects = {key: code for key in wanted if (code := cache.get(key)) is not None}
    missing = [source for key, source in wanted.items() if key not in objects]
    failures: dict[str, str] = {}
    todo: queue.SimpleQueue[KernelSource] = queue.SimpleQueue()
    done: queue.SimpleQueue[tuple[str, bool, bytes | str]] = queue.SimpleQueue()
    for source in missing:
        todo.put(source)

    def work() -> None:
        try:
            worker = _idle.get_nowait()
        except queue.Empty:
            worker = _Worker()
        while True:
            try:
                source = todo.get_nowait()
            except queue.Empty:
                _idle.put(worker)
                return
            try:
                left = deadline - time.monotonic()
                ok, result = (
                    worker.compile(source, timeout, deadline) if left > 0 else (False, "no time is left")
                )
            except Exception as error:  # the caller waits for an answer to every source
                ok, result = False, f"{type(error).__name__}: {error}"
            done.put((source.key, ok, result))

    threads = [threading.Thread(target=work, daemon=True) for _ in range(min(usable_cores(), len(missing)))]
    for thread in threads:
        thread.start()
    if missing and progress is not None:
        progress(0, len(missing))
    for count in range(len(missing)):
        key, ok, result = done.get()
        if isinstance(result, bytes) and ok:
            objects[key] = result
            cache.put(key, result)
        else:
            failures[key] = str(result)
        if progress is not None:
            progress(count + 1, len(missing))
    for thread in threads:
        thread.join()
    if missing:
        cache.prune()
    return CompiledKernels(objects, failures, len(missing) - len(failures))
