"""Measuring on other machines, through TVM's RPC tracker: the tuner's side and the device's side.

A device's server offers one function of ours, which takes an uploaded candidate and times it with this
project's own runtime, in a measuring process of its own. TVM's runtime never runs the kernels. RPC servers
execute what they are sent: anyone who reaches the port owns the account, so both sides stay on the loopback
interface unless the network is asked for by name.
"""

from __future__ import annotations

import ipaddress
import json
import socket
import time
from importlib.util import find_spec
from typing import Any

from convopt.errors import ExecutionError, InputError
from convopt.targets import CpuTarget, GpuTarget
from convopt.tuning.identity import target_text
from convopt.tuning.runner import LocalRunner, NoDevice, ProcessRunner

FUNCTION = "convopt.measure"
WAIT_SECONDS = 20.0  # for a free device
SESSION_SECONDS = 900  # after which a server ends a session whose tuner has gone
SLACK_SECONDS = 20.0  # for the network, beside what the device itself may take
START_SECONDS = 120.0  # for the client to import TVM, on a busy machine, and to connect


def require_rpc() -> None:
    """InputError, with the remedy, where what TVM's RPC needs is not installed."""
    missing = [name for name in ("cloudpickle", "psutil", "tornado") if find_spec(name) is None]
    if missing:
        raise InputError(f"RPC needs {', '.join(missing)}: pip install 'convopt[rpc]'")


def check_exposure(host: str, exposed: bool) -> None:
    """InputError for an address that other machines can reach, unless that was asked for."""
    try:
        loopback = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        loopback = False
    if not loopback and not exposed:
        raise InputError(
            f"{host} can be reached from other machines, and whoever reaches an RPC port can run code here:"
            " give --expose-to-network if that is wanted"
        )


def parse_address(text: str) -> tuple[str, int]:
    """`HOST:PORT`. InputError for anything else."""
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise InputError(f"{text!r}: expected HOST:PORT, e.g. 127.0.0.1:9190")
    return host, int(port)


def check_tracker(address: tuple[str, int]) -> None:
    """InputError where nobody listens at the tracker's address."""
    try:
        socket.create_connection(address, timeout=START_SECONDS).close()
    except OSError as error:
        raise InputError(f"there is no tracker at {address[0]}:{address[1]}: {error}") from error


# The device's side


def register() -> None:
    """Called in the server's process: offers FUNCTION to its sessions, each a process of its own."""
    import tvm

    runner = LocalRunner()

    def measure(text: str) -> str:
        place = tvm.get_global_func("tvm.rpc.server.workpath")
        request = json.loads(text)
        for name in ("probe", "reference"):
            if name in request:
                request[name] = str(place(request[name]))
        for names in ("prepare", "race"):
            if names in request:
                request[names] = [str(place(name)) for name in request[names]]
        return json.dumps(runner.ask(request, request.pop("timeout")))

    tvm.register_global_func(FUNCTION, measure, override=True)


def start_tracker(host: str, port: int) -> Any:
    """A tracker on that port, 0 for a free one from 9190 on; `port` tells, `terminate()` ends it."""
    from tvm.rpc.tracker import Tracker

    return Tracker(host, port or 9190, (port + 1) if port else 9390, silent=True)


def serve(tracker: tuple[str, int], key: str, host: str) -> Any:
    """A server that registers with the tracker under `key`; `terminate()` ends it."""
    from tvm.rpc.server import Server

    return Server(host, tracker_addr=tracker, key=key, silent=True, server_init_callback=register)


# The tuner's side


class RemoteRunner(ProcessRunner):
    """A Runner on whichever free device of `key` the tracker gives, held until `close`.

    TVM's client waits for ever for a device that hangs: it has a process of its own (`remote.py`),
    which is killed then. A device that dies or hangs costs the request in flight, which it may have died of;
    the next request goes to another one.
    """

    def __init__(self, tracker: tuple[str, int], key: str, target: CpuTarget | GpuTarget) -> None:
        try:
            text = target_text(target)
        except ExecutionError as error:
            raise InputError(
                f"{target.name} is any device of its kind; this machine must have the same one: {error}"
            ) from error
        super().__init__("convopt.tuning.remote", tracker[0], str(tracker[1]), key, text)
        self._since: float | None = None  # of time.monotonic(): when the session began

    def reset(self) -> None:
        if self._since is not None and time.monotonic() - self._since > SESSION_SECONDS / 2:
            self.close()  # a new session before the device ends this one
        super().reset()

    def close(self) -> None:
        self._since = None
        super().close()

    def ask(self, request: dict[str, Any], timeout: float) -> dict[str, Any]:
        if self._since is None:
            self._connect()
        answer = super().ask(request | {"timeout": timeout}, timeout + SLACK_SECONDS)
        if "error" in answer and self._process is None:
            answer = {"error": f"the device no longer answers: {answer['error']}"}
        if answer.get("lost"):
            self.close()
        return answer

    def _connect(self) -> None:
        answer = super().ask({"connect": WAIT_SECONDS}, WAIT_SECONDS + START_SECONDS)
        if "error" not in answer:
            self._since = time.monotonic()
            return
        self.close()
        if answer.get("foreign"):
            raise InputError(answer["error"])
        raise NoDevice(answer["error"])
