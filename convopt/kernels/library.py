"""A family's kept instances in one file: at run time the sizes pick one, and nothing is compiled.

The rule's first two steps do not depend on the sizes: what they keep is compiled when the library is built.
The other three are taken with m, n and k in hand. The file is a zip of manifest.json (instances, target,
digest of the code) and kernels.so.
"""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from convopt.codegen.cache import KernelCache, symbol_of
from convopt.codegen.link import link
from convopt.codegen.workers import KernelSource, compile_kernels
from convopt.errors import ArtifactError, CompileError, InputError
from convopt.runtime.execution import ExecutionContext
from convopt.runtime.folders import written_whole
from convopt.runtime.loaded import LoadedProgram
from convopt.runtime.machine import this_machine
from convopt.runtime.program import Address, KernelStep, Program, TensorSpec
from convopt.schedules.gemm_any import AnyGemm, AnyGemmProblem
from convopt.selection.rule import Instance, Selection, Size, Step, allowed, prefiltered, select
from convopt.selection.rule_cpu import cpu_machine
from convopt.targets import CpuTarget, host_cpu

Array = np.ndarray[Any, Any]
FORMAT = 1
MANIFEST, CODE = "manifest.json", "kernels.so"
PROBLEM = AnyGemmProblem()


def instances(target: CpuTarget, size: Size) -> list[Instance]:
    """The family's configurations as the rule sees them; k decides how much of the cache a panel takes."""
    found = []
    for config in AnyGemm.space(target):
        tile = config.tile(target)
        registers = config.pixels * config.vectors + config.vectors + (not target.fma_from_memory)
        lanes = config.pixels * tile
        found.append(
            Instance(
                config, lanes, config.pixels, tile, config.row_chunk, 1, size.k, registers, 4 * size.k * tile
            )
        )
    return found


def kept(target: CpuTarget) -> tuple[Step, Step]:
    """The steps that need no sizes: what they keep is worth compiling."""
    machine = cpu_machine(target, 1)
    first = allowed(instances(target, Size(1, 1, 1)), machine)
    return first, prefiltered(first.kept, machine)


def build(path: Path, cache: KernelCache, progress: Callable[[int, int], None] | None = None) -> int:
    """Compiles the kept instances for this machine's CPU into a library; returns how many there are.

    Raises:
        CompileError: an instance can't be compiled, or there is no C compiler. InputError: `path` can't be
        written.
    """
    target = host_cpu()
    configs = [instance.config for instance in kept(target)[1].kept]
    sources = [KernelSource(config, PROBLEM, target) for config in configs]
    compiled = compile_kernels(sources, cache, progress)
    if compiled.failures:
        raise CompileError(f"kernels of the library: {next(iter(compiled.failures.values()))}")
    image = link(compiled.objects, cache)
    needs = this_machine(target.cpu_flags)
    manifest = {
        "format": FORMAT,
        "family": AnyGemm.name,
        "target": target.name,
        "requires": {"system": needs.system, "machine": needs.machine, "flags": list(needs.flags)},
        "sha256": hashlib.sha256(image).hexdigest(),
        "instances": [
            {"config": asdict(config), "symbol": symbol_of(source.key)}
            for config, source in zip(configs, sources, strict=True)
        ],
    }
    with written_whole(path) as temporary, zipfile.ZipFile(temporary, "w") as archive:
        archive.writestr(MANIFEST, json.dumps(manifest, indent=1))
        archive.writestr(CODE, image)
    return len(configs)


class GemmLibrary:
    """A loaded library; needs no compiler. y = run(a, b) for any sizes.

    ArtifactError: no library, a damaged one, or one for another machine.
    """

    def __init__(self, path: Path, threads: int = 1) -> None:
        self.threads = threads
        manifest, self._image = _read(path)
        wanted = manifest["requires"]
        needs = this_machine(tuple(wanted["flags"]))
        refusal = needs.why_not()
        if (needs.system, needs.machine) != (wanted["system"], wanted["machine"]):
            refusal = f"it was built for {wanted['system']} on {wanted['machine']}"
        if refusal is not None:
            raise ArtifactError(f"{path}: {refusal}: build it here")
        self.target_name: str = manifest["target"]
        self.target = host_cpu()
        self.symbols = {AnyGemm(**entry["config"]): entry["symbol"] for entry in manifest["instances"]}
        self._contexts: dict[tuple[AnyGemm, int, int, int], ExecutionContext] = {}

    def select(self, m: int, n: int, k: int) -> Selection:
        """The five steps over the compiled instances.

        Raises:
            InputError: a size is below 1. ValueError: the rule leaves nothing.
        """
        if min(m, n, k) < 1:
            raise InputError(f"m={m}, n={n}, k={k}: expected sizes of at least 1")
        return self._select(m, n, k)

    @lru_cache(maxsize=4096)  # noqa: B019 - a library lives as long as its process
    def _select(self, m: int, n: int, k: int) -> Selection:
        size, machine = Size(m, n, k), cpu_machine(self.target, self.threads)
        there = [i for i in instances(self.target, size) if i.config in self.symbols]
        # Of a long reduction even the narrowest panel is more than the cache's share: it has to do.
        room = max(machine.shared_limit, min(i.shared for i in there))
        return select(there, size, replace(machine, shared=room, shared_limit=room))

    def run(self, a: Array, b: Array) -> Array:
        """a (m, k) @ b (k, n), float32; a fresh array."""
        if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[0]:
            raise InputError(f"a {a.shape} @ b {b.shape}: expected (m, k) and (k, n)")
        (m, k), n = a.shape, b.shape[1]
        config = self.select(m, n, k).chosen.config
        context = self._context(config, m, n, k)
        packed = config.pack(np.asarray(b, np.float32), self.target)
        (y,) = context.run([np.ascontiguousarray(a, np.float32), packed])
        return y[:, :n]

    def _context(self, config: AnyGemm, m: int, n: int, k: int) -> ExecutionContext:
        key = (config, m, n, k)
        if key not in self._contexts:
            panels, tile = config.panels(n, self.target), config.tile(self.target)
            program = Program(
                (TensorSpec("a", "float32", (m, k)), TensorSpec("b", "float32", (panels, k, tile))),
                (TensorSpec("y", "float32", (m, panels * tile)),),
                0,
                0,
                (
                    KernelStep(
                        self.symbols[config],
                        (
                            Address("weights", 0, 0),
                            Address("input", 0, 0),
                            Address("input", 1, 0),
                            Address("output", 0, 0),
                        ),
                        config.tasks_of(m, n, self.target),
                        label=f"{m}x{n}x{k} {config.name}",
                    ),
                ),
            )
            sizes = np.array([m, panels, k], np.int32).tobytes().ljust(64, b"\0")
            self._contexts[key] = ExecutionContext(LoadedProgram(program, self._image, sizes), self.threads)
        return self._contexts[key]


def _read(path: Path) -> tuple[dict[str, Any], bytes]:
    try:
        with zipfile.ZipFile(path) as archive:
            manifest, image = json.loads(archive.read(MANIFEST)), archive.read(CODE)
        if manifest["format"] != FORMAT:
            raise ArtifactError(
                f"{path} is a library of format {manifest['format']}, not {FORMAT}: rebuild it"
            )
        if manifest["sha256"] != hashlib.sha256(image).hexdigest():
            raise ArtifactError(f"{path} is damaged: its code has another digest; build it again")
    except FileNotFoundError:
        raise ArtifactError(f"there is no library {path}: `convopt kernels build` makes one") from None
    except (zipfile.BadZipFile, KeyError, ValueError, OSError) as error:
        raise ArtifactError(f"{path} is no kernel library: {error}") from error
    return manifest, image
