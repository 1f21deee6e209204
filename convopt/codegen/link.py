"""Kernel objects and the C executor, linked into the one shared object that a Program runs from.

Needs a C compiler at build time (`CC`, else cc, gcc or clang); a saved artifact needs none.
"""

from __future__ import annotations

import functools
import hashlib
import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path

from convopt.codegen.cache import KernelCache
from convopt.errors import CompileError, CompilerMissing
from convopt.runtime.folders import naming

# No -march: the executor must run wherever the kernels' own instructions do.
COMPILE_FLAGS = ("-std=c11", "-O2", "-fPIC", "-pthread", "-fvisibility=hidden")
# Undefined symbols are an error now, not at load; calls inside stay inside (-Bsymbolic).
LINK_FLAGS = ("-shared", "-pthread", "-Wl,-Bsymbolic", "-Wl,-z,defs", "-Wl,-z,noexecstack")
TIMEOUT = 120.0


def c_compiler() -> list[str]:
    """The command that starts the C compiler. CompilerMissing where there is none."""
    wanted = os.environ.get("CC")
    candidates = [shlex.split(wanted)] if wanted else [["cc"], ["gcc"], ["clang"]]
    for command in candidates:
        path = shutil.which(command[0]) if command else None
        if path:
            return [path, *command[1:]]
    raise CompilerMissing(
        f"CC={wanted!r} is not a command here: unset CC or name a C compiler"
        if wanted
        else "no C compiler (cc, gcc or clang) found: install one (on Debian: gcc) or set CC"
    )


def _run(command: Sequence[str], doing: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=TIMEOUT)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CompileError(f"{doing}: {error}") from error
    if done.returncode:
        raise CompileError(
            f"{doing}: {command[0]} failed with {done.returncode}:\n{done.stderr.strip()[-4000:]}"
        )
    return done.stdout


@functools.cache
def _compiler_version(compiler: tuple[str, ...]) -> str:
    return _run([*compiler, "--version"], "asking the C compiler for its version")


def executor_source() -> str:
    return resources.files("convopt.runtime").joinpath("executor.c").read_text()


def executor_object(cache: KernelCache | None = None) -> bytes:
    """The compiled executor, from the cache or compiled now and put there."""
    compiler = c_compiler()
    source = executor_source()
    identity = "\0".join([source, *compiler, _compiler_version(tuple(compiler)), *COMPILE_FLAGS])
    key = hashlib.sha256(identity.encode()).hexdigest()[:32]
    if cache and (code := cache.get(key)) is not None:
        return code
    with tempfile.TemporaryDirectory(prefix="convopt-") as folder, naming(Path(folder)):
        c_file, object_file = Path(folder, "executor.c"), Path(folder, "executor.o")
        c_file.write_text(source)
        _run([*compiler, *COMPILE_FLAGS, "-c", str(c_file), "-o", str(object_file)], "compiling the executor")
        code = object_file.read_bytes()
    if cache:
        cache.put(key, code)
    return code


def link(objects: Mapping[str, bytes] | Sequence[Path], cache: KernelCache | None = None) -> bytes:
    """The shared object of the executor and the kernels, as bytes: the `image` of a LoadedProgram.

    objects: ELF objects, in memory (keys are only names for messages) or as paths.
    cache: keeps the compiled executor.
    CompileError: no compiler, a symbol that is defined twice or nowhere, an object that is none.
    InputError: no room for temporary files.
    """
    compiler = c_compiler()
    with tempfile.TemporaryDirectory(prefix="convopt-") as name, naming(Path(name)):
        folder = Path(name)
        paths = [folder / "executor.o"]
        paths[0].write_bytes(executor_object(cache))
        if isinstance(objects, Mapping):
            for index, data in enumerate(objects.values()):
                paths.append(folder / f"kernel{index}.o")
                paths[-1].write_bytes(data)
        else:
            paths += objects
        # A response file: a command line holds too few paths.
        (folder / "objects").write_text("\n".join(f'"{path}"' for path in paths))
        out = folder / "kernels.so"
        _run(
            [*compiler, *LINK_FLAGS, f"@{folder / 'objects'}", "-lm", "-o", str(out)],
            f"linking {len(objects)} kernels",
        )
        return out.read_bytes()
