"""One start in a process of its own, for `convopt.bench.startup`, which gives the task as JSON:

    spawned: CLOCK_MONOTONIC seconds at which the process was started
    source: the model to optimize, or the artifact to load if `artifact`
    artifact: which of the two
    inputs: name -> [dtype, shape]; they are zeros
    threads, cache_dir: of optimize
    save: path for the artifact, or null; written when the times are taken
or, of a torch module behind torch.compile,
    spawned, threads, cache_dir: as above
    module, batch: as `convopt.bench.torch_nets.made` takes them

Prints [import_s, ready_s, first_result_s] as JSON; an error in one line on stderr.
"""

from __future__ import annotations

import json
import sys
import time
from itertools import pairwise
from typing import Any


def start(task: dict[str, Any]) -> list[float]:
    """The seconds until convopt is imported, then until there is a module, then until there is a result."""
    import convopt

    stamps = [task["spawned"]]
    if task["artifact"]:
        load = convopt.load  # imports the running half
        stamps.append(time.monotonic())
        module = load(task["source"])
    else:
        optimize = convopt.optimize  # imports the compiling half
        stamps.append(time.monotonic())
        shapes = {name: shape for name, (_, shape) in task["inputs"].items()}
        module = optimize(task["source"], shapes, threads=task["threads"], cache_dir=task["cache_dir"])
    stamps.append(time.monotonic())
    module.run(_zeros(task["inputs"]))
    stamps.append(time.monotonic())
    if task["save"]:
        module.save(task["save"])
    return [after - before for before, after in pairwise(stamps)]


def start_module(task: dict[str, Any]) -> list[float]:
    """The seconds until torch and convopt are imported, then until there is a module, then a result."""
    import torch

    import convopt.torch_backend.dynamo  # noqa: F401
    from convopt.bench.module_engines import compiled_module
    from convopt.bench.torch_nets import made

    stamps = [task["spawned"], time.monotonic()]
    module, x = made(task["module"], task["batch"])
    torch.set_num_threads(task["threads"])
    stamps.append(time.monotonic())
    with torch.inference_mode():
        compiled_module(module, {"cache_dir": task["cache_dir"]})(x)
    stamps.append(time.monotonic())
    return [after - before for before, after in pairwise(stamps)]


def _zeros(inputs: dict[str, Any]) -> dict[str, Any]:
    import numpy as np

    return {name: np.zeros(shape, dtype) for name, (dtype, shape) in inputs.items()}


def main(argument: str) -> int:
    from convopt.errors import ConvoptError

    try:
        task = json.loads(argument)
        print(json.dumps(start_module(task) if "module" in task else start(task)))
    except ConvoptError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
