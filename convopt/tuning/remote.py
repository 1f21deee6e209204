"""The tuner's client of a device, in a process of its own: passes requests on through TVM's RPC.

It speaks the lines of `convopt.tuning.measuring`, with one request more, which comes first:

    {"connect": s}  -> {}    waits that long for a free device; "foreign" in the answer: it is another kind

Other requests carry the device's own "timeout". "lost" in an answer: the device went away, the session ends.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from convopt.tuning.measuring import serve
from convopt.tuning.rpc import FUNCTION, SESSION_SECONDS, START_SECONDS

CONNECTIONS = 3  # devices tried one after the other: a tracker offers one that died for a while


class Client:
    """The session with one device. target: the text of what is tuned for (`identity.target_text`)."""

    def __init__(self, host: str, port: int, key: str, target: str) -> None:
        self._host, self._port, self._key, self._target = host, port, key, target
        self._session: Any = None
        self._measure: Callable[[str], str]
        self._uploaded: set[str] = set()

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """The device's answer, or what went wrong."""
        if "connect" in request:
            return self._connect(request["connect"])
        try:
            return self._pass_on(request)
        except Exception as error:  # TVM's RPC raises what the socket, the FFI or the server raised
            return {"error": f"the device went away: {_last_line(error)}", "lost": True}

    def _pass_on(self, request: dict[str, Any]) -> dict[str, Any]:
        if "reset" in request:
            self._uploaded = set()
        sent = dict(request)
        for name in ("probe", "reference"):
            if name in request:
                sent[name] = self._upload(request[name])
        for names in ("prepare", "race"):
            if names in request:
                sent[names] = [self._upload(path) for path in request[names]]
        answer: dict[str, Any] = json.loads(self._measure(json.dumps(sent)))
        return answer

    def _upload(self, path: str) -> str:
        """The file's name on the device."""
        name = Path(path).name
        if path not in self._uploaded:
            self._session.upload(bytearray(Path(path).read_bytes()), name)
            self._uploaded.add(path)
        return name

    def _connect(self, seconds: float) -> dict[str, Any]:
        from tvm import rpc

        where, last = f"{self._host}:{self._port}", ""
        for _ in range(CONNECTIONS):
            try:
                tracker = rpc.connect_tracker(self._host, self._port)
            except Exception as error:
                return {"error": f"there is no tracker at {where}: {_last_line(error)}"}
            tracker._sock.settimeout(seconds)  # TVM's own request waits for a free device for ever
            try:
                self._session = tracker.request(self._key, session_timeout=SESSION_SECONDS, max_retry=1)
                self._measure = self._session.get_function(FUNCTION)
                there = json.loads(self._measure(json.dumps({"targets": True, "timeout": START_SECONDS})))
            except Exception as error:
                last = _last_line(error)
                if "timed out" in last:
                    return {"error": f"no device of key {self._key!r} is free at {where} for {seconds:.0f} s"}
                continue  # the tracker has not noticed yet that this one is gone
            if "error" in there:
                return {"error": f"a device of {where} can't say what it measures: {there['error']}"}
            if self._target not in there["targets"]:
                measured = ", ".join(map(repr, there["targets"]))
                return {
                    "error": f"the device measures {measured}; kernels are made for {self._target!r}"
                    " (`convopt doctor` there says what is missing)",
                    "foreign": True,
                }
            return {}
        return {"error": f"{CONNECTIONS} devices of {where} went away as they were connected to: {last}"}


def _last_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[-1] if lines else type(error).__name__


if __name__ == "__main__":
    serve(Client(sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]).answer)
