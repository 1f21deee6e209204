"""The Programs of one module by input shapes: a bounded cache that compiles each shape once."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from concurrent.futures import Future

from convopt.runtime import forks
from convopt.runtime.loaded import Loaded

ShapeKey = tuple[tuple[int, ...], ...]
"""The inputs' shapes in the model's order."""


def shape_key(loaded: Loaded) -> ShapeKey:
    return tuple(spec.shape for spec in loaded.program.inputs)


class ProgramCache:
    """The most recently used Programs. A Program in use survives its eviction until its calls return.

    evicted: called with each Program that goes.
    """

    def __init__(self, programs: Iterable[Loaded], limit: int, evicted: Callable[[Loaded], None]) -> None:
        self._programs: OrderedDict[ShapeKey, Loaded] = OrderedDict((shape_key(p), p) for p in programs)
        self.limit = max(limit, len(self._programs))
        self._evicted = evicted
        self._pending: dict[ShapeKey, Future[Loaded]] = {}
        self._latest: tuple[ShapeKey, Loaded] | None = None  # what `find` found last: it is the last to go
        self._lock = threading.Lock()
        forks.watch(self)

    def __len__(self) -> int:
        return len(self._programs)

    def values(self) -> list[Loaded]:
        """The Programs, the longest unused first."""
        with self._lock:
            return list(self._programs.values())

    def find(self, key: ShapeKey) -> Loaded | None:
        latest = self._latest
        if latest is not None and latest[0] == key:
            return latest[1]
        with self._lock:
            loaded = self._programs.get(key)
            if loaded is not None:
                self._programs.move_to_end(key)
                self._latest = key, loaded
            return loaded

    def get(self, key: ShapeKey, make: Callable[[], Loaded]) -> Loaded:
        """The Program for the shapes, made by `make` if there is none.

        Threads that ask for the same shapes meanwhile wait for the one that makes it, and get its result or
        its exception. A failure is not kept: the next call tries again.
        """
        with self._lock:
            if (loaded := self._programs.get(key)) is not None:
                self._programs.move_to_end(key)
                self._latest = key, loaded
                return loaded
            future = self._pending.get(key)
            mine = future is None
            if future is None:
                future = self._pending[key] = Future()
        if not mine:
            return future.result()
        try:
            loaded = make()
        except BaseException as error:
            with self._lock:
                self._pending.pop(key, None)
            future.set_exception(error)
            raise
        with self._lock:
            self._programs[key] = loaded
            self._latest = key, loaded
            self._pending.pop(key, None)
            gone = [self._programs.popitem(last=False)[1] for _ in range(len(self._programs) - self.limit)]
        future.set_result(loaded)
        for old in gone:
            self._evicted(old)
        return loaded

    def after_fork(self) -> None:
        # Another thread of the parent may have held the lock, or been compiling: it is not here.
        self._lock = threading.Lock()
        self._pending = {}
