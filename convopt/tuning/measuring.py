"""The measuring process: loads candidates from files, runs them on its own threads, answers with times.

It speaks lines of JSON on its pipes; whatever crashes in it costs its caller one candidate. One request, one
answer, `{"error": text}` where there is no other:

    {"targets": true}                                -> {"targets": [text of what runs here, ...]}
    {"prepare": [path, ...], "limit": s}             -> {"failures": [why it can't be compiled or null, ...]}
    {"probe": path, "reference": path, "limit": s}   -> {"seconds": t, "difference": d}
    {"race": [path, ...], "seconds": s, "limit": s}  -> {"turns": [[seconds of each turn], ...]}
    {"reset": true}                                  -> {}

limit: whole seconds after which the process ends itself, should its caller be gone by then. difference: of
the outputs, the largest one / the reference's largest; null if it isn't finite.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from convopt.tuning.loading import Instance, instance, prepare
from convopt.tuning.where import measurable

PROBE_SECONDS = 0.03
SETTLE_SECONDS = 0.004  # of a turn, not counted: threads of the candidate before may still spin
TURNS = 9


def timed(candidate: Instance, seconds: float) -> list[float]:
    """Times of the runs that fit into `seconds`, at least one."""
    end = time.perf_counter() + seconds
    times = [candidate.run()]
    while time.perf_counter() < end:
        times.append(candidate.run())
    return times


def race(candidates: Sequence[Instance], seconds: float) -> list[list[float]]:
    """The best time of each turn, candidates in turn (A B C A B C ...), about `seconds` for each in total."""
    turns: list[list[float]] = [[] for _ in candidates]
    for turn in range(TURNS):
        # Every second turn backwards: what drifts (clock, neighbours) favours nobody.
        order = range(len(candidates)) if turn % 2 == 0 else range(len(candidates) - 1, -1, -1)
        for index in order:
            settled = time.perf_counter() + SETTLE_SECONDS
            candidates[index].run()
            while time.perf_counter() < settled:
                candidates[index].run()
            turns[index].append(min(timed(candidates[index], seconds / TURNS)))
    return turns


class Session:
    """The candidates of one convolution, by path."""

    def __init__(self) -> None:
        self._loaded: dict[str, Instance] = {}
        self._outputs: dict[str, np.ndarray[Any, Any]] = {}

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """The answer to a request, `{"error": text}` where it can't be fulfilled."""
        try:
            if "targets" in request:
                return {"targets": measurable()}
            if "prepare" in request:
                return {"failures": prepare(request["prepare"])}
            if "probe" in request:
                return self._probe(request["probe"], request["reference"])
            if "race" in request:
                candidates = [self._load(path) for path in request["race"]]
                return {"turns": race(candidates, request["seconds"])}
            if "reset" in request:
                self.reset()
                return {}
        except Exception as error:  # the process lives on: its caller is told, and asks for the next
            return {"error": f"{type(error).__name__}: {error}"}
        return {"error": f"no such request: {sorted(request)}"}

    def reset(self) -> None:
        """Forgets all candidates: the next ones are another convolution's."""
        for candidate in self._loaded.values():
            candidate.close()
        self._loaded, self._outputs = {}, {}

    def _load(self, path: str) -> Instance:
        if path not in self._loaded:
            self._loaded[path] = instance(path)
        return self._loaded[path]

    def _output(self, path: str) -> np.ndarray[Any, Any]:
        """Of one run; kept, as the reference's is asked for by every candidate."""
        if path not in self._outputs:
            self._load(path).run()
            self._outputs[path] = self._load(path).output()
        return self._outputs[path]

    def _probe(self, path: str, reference: str) -> dict[str, Any]:
        wanted, found = self._output(reference), self._output(path)
        scale = max(float(np.abs(wanted).max(initial=0.0)), 1e-30)
        difference = float(np.abs(found - wanted).max(initial=0.0)) / scale
        seconds = min(timed(self._load(path), PROBE_SECONDS))
        return {"seconds": seconds, "difference": difference if np.isfinite(difference) else None}


def serve(answer: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Answers the requests of standard input until its end."""
    # Libraries print: what goes to file descriptor 1 must not end up between the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        request = json.loads(line)
        signal.alarm(request.get("limit", 0))  # its default action ends the process, native code or not
        found = answer(request)
        signal.alarm(0)
        answers.write(json.dumps(found) + "\n")
        answers.flush()


if __name__ == "__main__":
    serve(Session().answer)
