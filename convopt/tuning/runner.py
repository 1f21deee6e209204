"""Where candidates are timed: a process on this machine, one that may crash or hang."""

from __future__ import annotations

import contextlib
import json
import math
import os
import select
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from convopt.errors import InputError

# Of the scale of the output. What is rounded to 16 bits anywhere differs by more than sums in another order.
TOLERANCES = {"float32": 1e-3, "float16": 2e-2, "bfloat16": 6e-2}


class NoDevice(InputError):
    """Nothing to measure on: no machine of the kind that was asked for is there, or becomes free."""


@dataclass(frozen=True)
class Probe:
    """A quick measurement: the best time of a few runs, or why there is none."""

    seconds: float | None
    failure: str | None = None


class Runner(Protocol):
    """Times candidates of one convolution after another; files stay valid until `reset`.

    timeout: seconds; a candidate that takes longer has failed. `probe` and `race` raise NoDevice.
    """

    def reset(self) -> None:
        """What comes next is another convolution's."""
        ...

    def prepare(self, paths: Sequence[Path], timeout: float) -> dict[Path, str] | str:
        """Compiles, where that is left to the machine that measures. Why some can't be; a text: the time was
        not enough, or the compiler took its process along.
        """
        ...

    def probe(self, path: Path, reference: Path, tolerance: float, timeout: float) -> Probe: ...

    def race(self, paths: Sequence[Path], seconds: float, timeout: float) -> list[list[float]] | str:
        """The best time of each turn for each path, timed in turn; a text says why there are none."""
        ...

    def close(self) -> None: ...


class ProcessRunner:
    """A process that answers lines of JSON (`convopt.tuning.measuring`), started again after it died."""

    def __init__(self, module: str, *arguments: str) -> None:
        self._command = [sys.executable, "-P", "-m", module, *arguments]
        self._process: subprocess.Popen[str] | None = None

    def reset(self) -> None:
        if self._process is not None:
            self.ask({"reset": True}, 10.0)

    def prepare(self, paths: Sequence[Path], timeout: float) -> dict[Path, str] | str:
        answer = self.ask({"prepare": [str(path) for path in paths]}, timeout)
        if "error" in answer:
            return str(answer["error"])
        told = zip(paths, answer["failures"], strict=True)
        return {path: failure for path, failure in told if failure is not None}

    def probe(self, path: Path, reference: Path, tolerance: float, timeout: float) -> Probe:
        return judged(self.ask({"probe": str(path), "reference": str(reference)}, timeout), tolerance)

    def race(self, paths: Sequence[Path], seconds: float, timeout: float) -> list[list[float]] | str:
        answer = self.ask({"race": [str(path) for path in paths], "seconds": seconds}, timeout)
        return str(answer["error"]) if "error" in answer else list(answer["turns"])

    def close(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    with contextlib.suppress(OSError):  # what its reader never read
                        stream.close()

    def ask(self, request: dict[str, Any], timeout: float) -> dict[str, Any]:
        """The answer; `{"error": text}` where the process died or took longer than `timeout` seconds."""
        process = self._running()
        assert process.stdin is not None and process.stdout is not None
        limit = math.ceil(timeout) + 1
        try:
            process.stdin.write(json.dumps(request | {"limit": limit}) + "\n")
            process.stdin.flush()
        except OSError as error:
            self.close()
            return {"error": f"the measuring process is gone: {error}"}
        if not select.select([process.stdout], [], [], timeout)[0]:
            self.close()
            return {"error": f"took longer than {timeout:.1f} s"}
        line = process.stdout.readline()
        if not line:
            code = process.wait()
            self.close()
            return {"error": f"crashed ({'signal' if code < 0 else 'exit'} {abs(code)})"}
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _running(self) -> subprocess.Popen[str]:
        if self._process is None or self._process.poll() is not None:
            self.close()
            paths = [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                bufsize=1,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
            )
        return self._process


class LocalRunner(ProcessRunner):
    """On this machine."""

    def __init__(self) -> None:
        super().__init__("convopt.tuning.measuring")


def judged(answer: dict[str, Any], tolerance: float) -> Probe:
    """The answer to a probe; a result that differs from the reference's is a failure."""
    if "error" in answer:
        return Probe(None, str(answer["error"]))
    difference = answer["difference"]
    if difference is None or difference > tolerance:
        return Probe(None, f"wrong result: it differs by {difference} of the output's scale")
    return Probe(float(answer["seconds"]))
