"""Fallback islands: parts of a model that onnxruntime runs, as one session per island model."""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Sequence
from typing import Any

from convopt.runtime import forks

logger = logging.getLogger("convopt")

CPU = "CPUExecutionProvider"
# kind of target -> onnxruntime's providers for such devices, the preferred first
PROVIDERS = {
    "cuda": ("CUDAExecutionProvider",),
    "hip": ("ROCMExecutionProvider", "MIGraphXExecutionProvider"),
    "rocm": ("ROCMExecutionProvider", "MIGraphXExecutionProvider"),
}


@functools.cache
def device_provider(kind: str) -> str | None:
    """The provider that this installation of onnxruntime has for the kind of target; None without."""
    if kind not in PROVIDERS:
        return None
    try:
        import onnxruntime
    except ImportError:
        return None
    available = onnxruntime.get_available_providers()
    return next((name for name in PROVIDERS[kind] if name in available), None)


class IslandSessions:
    """The sessions of a Program's island models, made at first use and shared by all contexts.

    A session may run several calls at once. Its thread pool does not survive a fork: a child makes its own.
    """

    def __init__(self, models: tuple[bytes, ...]) -> None:
        self.models = models
        self._lock = threading.Lock()
        self._sessions: dict[tuple[int, int, str], Any] = {}
        self._foreign: list[Any] = []
        self._unusable: set[str] = set()
        forks.watch(self)

    def get(self, model: int, threads: int) -> Any:
        """A session on the CPU."""
        return self._get(model, threads, CPU, [CPU])

    def provider(self, kind: str) -> str | None:
        """Where islands run beside a device of this kind without copies; None: on the CPU."""
        name = device_provider(kind)
        return None if name in self._unusable else name

    def on_device(self, model: int, threads: int, kind: str, index: int) -> Any | None:
        """A session on the device with this number.

        None where onnxruntime has no provider for it, or one that does not start here, which is logged.
        """
        name = self.provider(kind)
        if name is None:
            return None
        session = self._get(model, threads, name, [(name, {"device_id": index}), CPU])
        if name in session.get_providers():
            return session
        # onnxruntime goes on without a provider whose libraries are missing, and says so on stderr.
        logger.warning("onnxruntime's %s does not start here: islands run on the CPU, with copies", name)
        self._unusable.add(name)
        return None

    def _get(self, model: int, threads: int, name: str, providers: Sequence[Any]) -> Any:
        key = (model, threads, name)
        session = self._sessions.get(key)
        if session is None:
            with self._lock:
                session = self._sessions.get(key)
                if session is None:
                    session = self._sessions[key] = _session(self.models[model], threads, providers)
        return session

    def after_fork(self) -> None:
        # The parent's sessions are kept, unused: destroying one would wait for threads that are not here.
        self._foreign.append(self._sessions)
        self._lock = threading.Lock()
        self._sessions = {}


def _session(model: bytes, threads: int, providers: Sequence[Any]) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    # Its threads would poll while our kernels run on the same cores.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return onnxruntime.InferenceSession(model, options, providers=list(providers))
