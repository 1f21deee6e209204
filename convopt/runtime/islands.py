"""Fallback islands: parts of a model that onnxruntime runs, as one session per island model."""

from __future__ import annotations

import threading
from typing import Any

from convopt.runtime import forks


class IslandSessions:
    """The sessions of a Program's island models, made at first use and shared by all contexts.

    A session may run several calls at once. Its thread pool does not survive a fork: a child makes its own.
    """

    def __init__(self, models: tuple[bytes, ...]) -> None:
        self.models = models
        self._lock = threading.Lock()
        self._sessions: dict[tuple[int, int], Any] = {}
        self._foreign: list[Any] = []
        forks.watch(self)

    def get(self, model: int, threads: int) -> Any:
        session = self._sessions.get((model, threads))
        if session is None:
            with self._lock:
                session = self._sessions.get((model, threads))
                if session is None:
                    session = self._sessions[model, threads] = _session(self.models[model], threads)
        return session

    def after_fork(self) -> None:
        # The parent's sessions are kept, unused: destroying one would wait for threads that are not here.
        self._foreign.append(self._sessions)
        self._lock = threading.Lock()
        self._sessions = {}


def _session(model: bytes, threads: int) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    # Its threads would poll while our kernels run on the same cores.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
