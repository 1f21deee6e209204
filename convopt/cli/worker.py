"""`convopt worker`: offers this machine for measuring, or runs the tracker that hands out such machines."""

from __future__ import annotations

import argparse
import signal
import threading
from typing import Any

from convopt.cli.command import Command, Document, ReportProgress
from convopt.errors import InputError

CHECK_SECONDS = 30.0  # between looks at the tracker


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--tracker", metavar="HOST:PORT", help="register this machine with the tracker there")
    what.add_argument(
        "--start-tracker", type=int, metavar="PORT", help="run a tracker; 0 takes a free port from 9190 on"
    )
    parser.add_argument("--key", help="with --tracker: the name under which tuners ask for such machines")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    parser.add_argument(
        "--expose-to-network",
        action="store_true",
        help="allow a --host that other machines reach: whoever reaches the port can run code here",
    )


class _Worker:
    """The server between its start, which the document tells, and its end."""

    def __init__(self) -> None:
        self._server: Any = None
        self._tracker: tuple[str, int] | None = None  # that a device registered with

    def run(self, arguments: argparse.Namespace, progress: ReportProgress) -> Document:
        from convopt.tuning import rpc

        del progress
        rpc.require_rpc()
        rpc.check_exposure(arguments.host, arguments.expose_to_network)
        if (arguments.tracker is None) == (arguments.key is not None):
            raise InputError("--key goes with --tracker, and --tracker with --key")
        if arguments.tracker is None:
            role, port = "tracker", arguments.start_tracker
            if not 0 <= port < 65536:
                raise InputError(f"--start-tracker {port}: expected a port, 0 to 65535")
            self._tracker, self._server = None, rpc.start_tracker(arguments.host, port)
        else:
            role, self._tracker = "device", rpc.parse_address(arguments.tracker)
            rpc.check_tracker(self._tracker)
            self._server = rpc.serve(self._tracker, arguments.key, arguments.host)
        return {"command": "worker", "role": role, "host": arguments.host, "port": self._server.port}

    def serve(self, document: Document) -> None:
        from convopt.tuning import rpc

        del document
        stopped = threading.Event()
        before = {n: signal.signal(n, lambda *_: stopped.set()) for n in (signal.SIGINT, signal.SIGTERM)}
        try:
            while not stopped.wait(CHECK_SECONDS):
                if self._tracker is not None:
                    rpc.check_tracker(self._tracker)  # TVM's server would sit here for nobody
        finally:
            self._server.terminate()
            for number, handler in before.items():
                signal.signal(number, handler)


def _show(document: Document) -> None:
    from convopt.report.tables import print_line

    print_line(f"{document['role']} on {document['host']}:{document['port']}")


_WORKER = _Worker()

COMMAND = Command(
    name="worker",
    description="""\
Says where it listens, as soon as it does, and runs until it is interrupted, a device also until its tracker
is gone. --start-tracker hands out machines; --tracker registers this one, and measures what
`convopt tune --tracker HOST:PORT --key KEY` sends, if that is for the same kind of CPU or for a device that
the drivers find here (`convopt doctor`). Both listen on the loopback interface: --host with
--expose-to-network opens them to others, who can then run code here.""",
    fields={
        "role": "tracker or device",
        "host": "the address that it listens on",
        "port": "the port",
    },
    add_arguments=_add_arguments,
    run=_WORKER.run,
    show=_show,
    serve=_WORKER.serve,
)
