"""`convopt worker`: offers this machine for measuring, or runs the tracker that hands out such machines."""

from __future__ import annotations

import argparse
import signal
import sys
import threading

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


def _run(arguments: argparse.Namespace, progress: ReportProgress) -> Document:
    from convopt.tuning import rpc

    del progress
    rpc.require_rpc()
    rpc.check_exposure(arguments.host, arguments.expose_to_network)
    if (arguments.tracker is None) == (arguments.key is not None):
        raise InputError("--key goes with --tracker, and --tracker with --key")
    tracker = None if arguments.tracker is None else rpc.parse_address(arguments.tracker)
    if tracker is None:
        if not 0 <= arguments.start_tracker < 65536:
            raise InputError(f"--start-tracker {arguments.start_tracker}: expected a port, 0 to 65535")
        server = rpc.start_tracker(arguments.host, arguments.start_tracker)
    else:
        rpc.check_tracker(tracker)
        server = rpc.serve(tracker, arguments.key, arguments.host)
    role = "tracker" if arguments.tracker is None else "device"
    print(f"convopt worker: {role} on {arguments.host}:{server.port}", file=sys.stderr, flush=True)
    stopped = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopped.set())
    try:
        while not stopped.wait(CHECK_SECONDS):
            if tracker is not None:
                rpc.check_tracker(tracker)  # TVM's server would sit here for nobody
    finally:
        server.terminate()
    return {"command": "worker", "role": role, "host": arguments.host, "port": server.port}


def _show(document: Document) -> None:
    del document  # what there was to say was said when it began


COMMAND = Command(
    name="worker",
    description="""\
Runs until it is interrupted, a device also until its tracker is gone. --start-tracker hands out machines;
--tracker registers this one, and measures what `convopt tune --tracker HOST:PORT --key KEY` sends, if that is
for the same kind of CPU or for a device that the drivers find here (`convopt doctor`). Both listen on the
loopback interface: --host with --expose-to-network opens them to others, who can then run code here.""",
    fields={
        "role": "tracker or device",
        "host": "the address that was listened on",
        "port": "the port",
    },
    add_arguments=_add_arguments,
    run=_run,
    show=_show,
)
