"""Tuning through a tracker: on loopback, with devices that are killed or hang."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import pytest

from convopt.cli.main import main
from convopt.codegen.cache import KernelCache
from convopt.errors import InputError
from convopt.lowering.base import LoweringOptions
from convopt.selection.plans import ranked
from convopt.targets import GPU_TARGETS, host_cpu
from convopt.tuning import rpc
from convopt.tuning.candidate import compile_candidates
from convopt.tuning.runner import NoDevice
from convopt.tuning.store import Store
from tests.tuning.problems import conv

MAIN = "import sys; from convopt.cli.main import main; sys.exit(main())"


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_loopback_needs_no_leave(host: str) -> None:
    rpc.check_exposure(host, exposed=False)


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.1.4", "::", "machine.example"])
def test_the_network_does(host: str) -> None:
    with pytest.raises(InputError, match="--expose-to-network"):
        rpc.check_exposure(host, exposed=False)
    rpc.check_exposure(host, exposed=True)


@pytest.mark.parametrize("text", ["9190", "host:", ":9190", "host:0", "host:70000", "host:x"])
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(InputError, match="expected HOST:PORT"):
        rpc.parse_address(text)


@pytest.mark.parametrize(
    "argv",
    [
        ["worker", "--start-tracker", "0", "--key", "k"],
        ["worker", "--tracker", "127.0.0.1:9190"],
        ["worker", "--start-tracker", "0", "--host", "0.0.0.0"],
        ["worker", "--start-tracker", "65536"],
        ["worker", "--start-tracker", "-1"],
        ["worker", "--tracker", "127.0.0.1:1", "--key", "k"],
        ["tune", "--suite", "contest", "--budget", "1s", "--key", "k"],
        ["tune", "--conv", "n=1,c=8,h=4,w=4,k=8,r=1,s=1", "--budget", "1s", "--tracker", "127.0.0.1:9190"],
    ],
)
def test_wrong_usage(argv: list[str]) -> None:
    assert main(argv) == 2


@pytest.mark.parametrize("option", ["--json", "--quiet"])
def test_a_worker_says_at_once_where_it_listens(
    option: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A script reads the port while it runs; the tracker is gone at the second look."""
    said: list[str] = []

    def check(address: tuple[str, int]) -> None:
        said.append(capsys.readouterr().out)
        if len(said) == 2:
            raise InputError(f"there is no tracker at {address}")

    server = SimpleNamespace(port=9191, terminate=lambda: said.append("terminated"))
    monkeypatch.setattr(rpc, "require_rpc", lambda: None)
    monkeypatch.setattr(rpc, "check_tracker", check)
    monkeypatch.setattr(rpc, "serve", lambda *_: server)
    monkeypatch.setattr("convopt.cli.worker.CHECK_SECONDS", 0.01)
    assert main(["worker", "--tracker", "127.0.0.1:9190", "--key", "k", option]) == 2
    assert said[0] == "" and said[2] == "terminated"
    if option == "--quiet":
        assert said[1] == ""
    else:
        assert json.loads(said[1]) == {
            "command": "worker",
            "role": "device",
            "host": "127.0.0.1",
            "port": 9191,
        }


Farm = Callable[[int], tuple[int, list[subprocess.Popen[str]]]]


@pytest.fixture
def farm() -> Iterator[Farm]:
    """A tracker with that many workers of key "here": its port and theirs; kills what is left of them."""
    started: list[subprocess.Popen[str]] = []

    def start(*argv: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", MAIN, "worker", *argv, "--json"],
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # so that `kill` reaches what it starts
        )
        started.append(process)
        return process

    def port(process: subprocess.Popen[str]) -> int:
        assert process.stdout is not None
        text = ""
        for line in process.stdout:
            text += line
            if line == "}\n":
                return int(json.loads(text)["port"])
        raise AssertionError(f"the worker ended with {process.wait()}")

    def farm(devices: int) -> tuple[int, list[subprocess.Popen[str]]]:
        tracker = port(start("--start-tracker", "0"))
        workers = [start("--tracker", f"127.0.0.1:{tracker}", "--key", "here") for _ in range(devices)]
        for worker in workers:
            port(worker)
        return tracker, workers

    yield farm
    for process in started:
        kill(process)


def kill(process: subprocess.Popen[str]) -> None:
    """With everything it started, as when its machine loses power."""
    if process.returncode is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert process.stdout is not None
    process.stdout.close()


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """Two compiled plans of one convolution."""
    problem, options = conv(c=16, size=9, k=24), LoweringOptions(host_cpu(), 1)
    plans = [plan for plan, _ in ranked(problem, options.cpu, 1)][:2]
    candidates, failures = compile_candidates(
        problem, plans, options, KernelCache(tmp_path), tmp_path, deadline=time.monotonic() + 120
    )
    assert failures == {}
    return candidates[0].path, candidates[1].path


@pytest.mark.kernels
@pytest.mark.slow
def test_a_device_that_dies_or_hangs_costs_its_request(
    farm: Farm, files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two runners one loses its device; it goes on with the other's as soon as that is free."""
    monkeypatch.setattr(rpc, "WAIT_SECONDS", 2.0)
    port, devices = farm(2)
    runners = [rpc.RemoteRunner(("127.0.0.1", port), "here", host_cpu()) for _ in range(2)]
    reference, other = files
    for runner in runners:  # both devices are taken now
        found = runner.probe(other, reference, 1e-3, 60)
        assert found.failure is None and found.seconds is not None and 0 < found.seconds < 1
    kill(devices[0])
    probes = [runner.probe(other, reference, 1e-3, 60) for runner in runners]
    (dead,) = (i for i, probe in enumerate(probes) if probe.failure is not None)
    assert "the device went away" in (probes[dead].failure or "")
    turns = runners[1 - dead].race([reference, other], 0.05, 60)
    assert len(turns) == 2 and all(0 < min(times) < 1 for times in turns)
    with pytest.raises(NoDevice, match="no device of key 'here' is free"):
        runners[dead].probe(other, reference, 1e-3, 60)
    runners[1 - dead].close()
    monkeypatch.setattr(rpc, "WAIT_SECONDS", 20.0)
    assert runners[dead].probe(other, reference, 1e-3, 60).failure is None
    os.killpg(devices[1].pid, signal.SIGSTOP)
    monkeypatch.setattr(rpc, "SLACK_SECONDS", 2.0)
    hung = runners[dead].probe(other, reference, 1e-3, 1.0)
    assert hung.failure == "the device no longer answers: took longer than 3.0 s"


@pytest.mark.opencl
@pytest.mark.slow
def test_a_worker_measures_what_its_drivers_find(
    farm: Farm, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An OpenCL device by a worker, and a kind of device that it has none of."""
    opencl = GPU_TARGETS["opencl"]
    problem, options = conv(c=16, size=9, k=24), LoweringOptions(opencl, 1)
    plans = [plan for plan, _ in ranked(problem, opencl, 1)][:2]
    candidates, failures = compile_candidates(
        problem, plans, options, KernelCache(tmp_path), tmp_path, deadline=time.monotonic() + 120
    )
    assert failures == {}
    first, second = (candidate.path for candidate in candidates)
    port, _ = farm(1)
    runner = rpc.RemoteRunner(("127.0.0.1", port), "here", opencl)
    assert runner.prepare([first, second], 60) == {}
    found = runner.probe(second, first, 1e-3, 60)
    assert found.failure is None and found.seconds is not None and 0 < found.seconds < 1
    runner.close()
    argv = ["tune", "--conv", "n=1,c=16,h=9,w=9,k=24,r=3,s=3,pad=1", "--target", "dcu:k100-ai"]
    argv += [
        "--budget",
        "60s",
        "--tracker",
        f"127.0.0.1:{port}",
        "--key",
        "here",
        "--cache-dir",
        str(tmp_path),
    ]
    assert main(argv) == 2
    said = capsys.readouterr().err
    assert re.search(r"the device measures '.*opencl .*'; kernels are made for 'dcu:k100-ai gfx928", said)


@pytest.mark.slow
@pytest.mark.kernels
def test_nobody_there(files: tuple[Path, Path]) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    runner = rpc.RemoteRunner(("127.0.0.1", port), "here", host_cpu())
    with pytest.raises(NoDevice, match=f"no tracker at 127.0.0.1:{port}"):
        runner.probe(files[1], files[0], 1e-3, 60)


def chain(*widths: int) -> onnx.ModelProto:
    """3x3 convolutions, one behind the other, on 9x9 pixels."""
    rng = np.random.default_rng(0)
    nodes, weights = [], []
    for i, (c, k) in enumerate(pairwise(widths)):
        weight = rng.standard_normal((k, c, 3, 3)).astype(np.float32)
        weights.append(onnx.numpy_helper.from_array(weight, f"w{i}"))
        nodes.append(onnx.helper.make_node("Conv", [f"t{i}", f"w{i}"], [f"t{i + 1}"], pads=[1, 1, 1, 1]))
    ends = [
        onnx.helper.make_tensor_value_info(f"t{i}", onnx.TensorProto.FLOAT, (1, width, 9, 9))
        for i, width in ((0, widths[0]), (len(nodes), widths[-1]))
    ]
    graph = onnx.helper.make_graph(nodes, "chain", ends[:1], ends[1:], weights)
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)])


@pytest.mark.kernels
@pytest.mark.slow
def test_tuning_goes_on_when_one_of_two_devices_is_killed(farm: Farm, tmp_path: Path) -> None:
    onnx.save(chain(16, 24, 32, 40), tmp_path / "m.onnx")
    port, devices = farm(2)
    argv = ["tune", str(tmp_path / "m.onnx"), "--budget", "10m", "--threads", "1"]
    argv += ["--tracker", f"127.0.0.1:{port}", "--key", "here", "--workers", "2"]
    tuning = subprocess.Popen(
        [sys.executable, "-c", MAIN, *argv, "--cache-dir", str(tmp_path)], stderr=subprocess.PIPE, text=True
    )
    try:
        with Store(tmp_path / "tuning.sqlite3") as store:

            def count(what: str) -> int:
                ((found,),) = store.rows(f"SELECT count(*) FROM trials WHERE {what}")
                return int(found)

            def reach(trials: int) -> None:
                end = time.monotonic() + 400
                while count("seconds IS NOT NULL") < trials:
                    assert tuning.poll() is None and time.monotonic() < end
                    time.sleep(0.1)

            reach(6)
            kill(devices[0])
            before = count("seconds IS NOT NULL")
            reach(before + 8)
            assert count("seconds IS NULL") <= 1  # the candidate in flight
        tuning.send_signal(signal.SIGINT)
        _, err = tuning.communicate(timeout=100)
        assert (tuning.returncode, err.strip().splitlines()[-1]) == (130, "convopt: interrupted")
    finally:
        tuning.kill()
        tuning.wait()
