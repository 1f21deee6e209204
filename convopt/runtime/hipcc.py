"""HIP source to code objects, by the compiler of the machine that runs them; each compiled once.

The toolkit, ROCm or Hygon's DTK, is looked for in the folder given, in $ROCM_PATH, at /opt/dtk and /opt/rocm,
and on the PATH.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from convopt.errors import CompileError, CompilerMissing
from convopt.runtime.folders import cache_folder, keep

# Shared memory holds halves first and the epilogue's floats later: the same bytes under two types.
FLAGS = ("--genco", "-O3", "-std=c++17", "-fno-strict-aliasing")
TOOLKITS = ("/opt/dtk", "/opt/rocm")
TIMEOUT = 600.0
MISSING = (
    "no hipcc found: name the toolkit's folder by ROCM_PATH or --toolkit (DTK's or ROCm's, e.g. /opt/dtk);"
    " Debian has the package hipcc"
)
_ARCH = re.compile(r"^// offload-arch: (\w+)$", re.M)
_KERNEL = re.compile(r'^extern "C" __global__ void [^\n]*\n(\w+)\(', re.M)


@dataclass(frozen=True)
class Hipcc:
    path: str
    version: str  # all of what --version says: it is a part of the cache's key

    @property
    def name(self) -> str:
        return f"{self.path} ({self.version.splitlines()[0]})" if self.version else self.path


def arch_of(source: str) -> str:
    """The chip that HIP source made by convopt is for. CompileError: some other text."""
    found = _ARCH.search(source)
    if found is None:
        raise CompileError("this HIP source does not say which chip it is for (// offload-arch: gfx...)")
    return found.group(1)


def kernels_of(source: str) -> list[str]:
    return _KERNEL.findall(source)


def command(compiler: str, arch: str, source: str, out: str) -> list[str]:
    return [compiler, *FLAGS, f"--offload-arch={arch}", source, "-o", out]


def toolkits(toolkit: str | os.PathLike[str] | None = None) -> list[Path]:
    """Folders that may hold ROCm or DTK, the most specific first."""
    if toolkit is not None:
        return [Path(toolkit)]
    named = [Path(os.environ[v]) for v in ("ROCM_PATH", "HIP_PATH") if os.environ.get(v)]
    return [*named, *map(Path, TOOLKITS)]


def find_hipcc(toolkit: str | os.PathLike[str] | None = None) -> Hipcc:
    """CompilerMissing: there is none. CompileError: it does not run."""
    places = [folder / "bin" / "hipcc" for folder in toolkits(toolkit)]
    path = next((str(place) for place in places if place.is_file()), None)
    if path is None and toolkit is None:
        path = shutil.which("hipcc")
    if path is None:
        where = "" if toolkit is None else f" in {toolkit}"
        raise CompilerMissing(f"{MISSING}{where and f'; none{where}'}")
    return Hipcc(path, _version(path))


@functools.cache
def _version(path: str) -> str:
    try:
        done = subprocess.run([path, "--version"], capture_output=True, text=True, errors="replace",
                              timeout=60, env=_environment())  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CompileError(f"{path} --version: {error}") from error
    if done.returncode:
        raise CompileError(f"{path} --version: {(done.stderr + done.stdout).strip()[-1000:]}")
    return done.stdout.strip()


def _environment() -> dict[str, str]:
    """hipcc compiles for NVIDIA where it finds nvcc, unless told."""
    return {"HIP_PLATFORM": "amd", **os.environ}


def cached_path(source: str, compiler: Hipcc) -> Path:
    """Where the code object of `source` lies once it is compiled: by source, flags, compiler and version."""
    text = "\0".join((source, *FLAGS, compiler.path, compiler.version))
    return cache_folder() / "hip" / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.co"


def compile_source(source: str, compiler: Hipcc) -> tuple[bytes, bool]:
    """(code object, whether it was compiled now). CompileError: what the compiler said of which kernel."""
    path = cached_path(source, compiler)
    with contextlib.suppress(OSError):
        return path.read_bytes(), False
    binary = _compile(source, compiler)
    keep(path, binary, cache_folder())
    return binary, True


def compile_all(
    sources: Collection[str], compiler: Hipcc, progress: Callable[[int, int], None] | None = None
) -> int:
    """Compiles what is not in the cache, on all cores; how many that were. CompileError: the first."""
    missing = list(dict.fromkeys(s for s in sources if not cached_path(s, compiler).is_file()))
    if progress is not None:
        progress(0, len(missing))
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        jobs = [pool.submit(compile_source, source, compiler) for source in missing]
        try:
            for count, job in enumerate(as_completed(jobs)):
                job.result()
                if progress is not None:
                    progress(count + 1, len(missing))
        except CompileError:
            for job in jobs:
                job.cancel()
            raise
    return len(missing)


def _compile(source: str, compiler: Hipcc) -> bytes:
    with tempfile.TemporaryDirectory(prefix="convopt-") as folder:
        text, out = Path(folder, "kernels.hip"), Path(folder, "kernels.co")
        text.write_text(source)
        line = command(compiler.path, arch_of(source), str(text), str(out))
        try:
            done = subprocess.run(
                line, capture_output=True, text=True, errors="replace", timeout=TIMEOUT, env=_environment()
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise CompileError(f"{compiler.path}: {error}") from error
        if done.returncode or not out.is_file():
            words = (done.stderr + done.stdout).strip().replace(f"{folder}/", "")
            raise CompileError(f"{_guilty(source, words)}: {compiler.path} says: {words[:4000]}")
        return out.read_bytes()


def _guilty(source: str, words: str) -> str:
    """The kernel in which the first error is, else all of them."""
    found = re.search(r"kernels\.hip:(\d+):\d+: (?:fatal )?error", words)
    kernels = kernels_of(source)
    if found is not None:
        before = kernels_of("\n".join(source.split("\n")[: int(found.group(1))]) + "\n")
        if before:
            return f"kernel {before[-1]}"
    return f"kernels {', '.join(kernels)}" if kernels else "HIP source"
