"""What all tests share: a kernel cache of the run's own, golden files, hypothesis profiles."""

from __future__ import annotations

import functools
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# `make test` has to give the same answer twice: examples are derived from the test, not from a seed.
# CONVOPT_HYPOTHESIS=random explores instead.
settings.register_profile(
    "ci", derandomize=True, deadline=None, suppress_health_check=list(HealthCheck), database=None
)
settings.register_profile("random", deadline=None, suppress_health_check=list(HealthCheck), print_blob=True)
settings.load_profile(os.environ.get("CONVOPT_HYPOTHESIS", "ci"))


def pytest_configure(config: pytest.Config) -> None:
    """Kernels are cached for this run only: neither the user's cache nor an older version's kernels matter.

    The workers of pytest-xdist inherit the environment, and with it the folder. A CONVOPT_CACHE that is set
    already is used as it is.
    """
    # PoCL's optimizer is most of what these tests would wait for, and none of what they ask.
    os.environ.setdefault("PYOPENCL_BUILD_OPTIONS", "-cl-opt-disable")
    if "CONVOPT_CACHE" not in os.environ:
        folder = tempfile.TemporaryDirectory(prefix="convopt-tests-")
        os.environ["CONVOPT_CACHE"] = folder.name
        config.add_cleanup(folder.cleanup)


@functools.cache
def _missing(mark: str) -> str | None:
    """What tests with this mark lack here, None if nothing."""
    from convopt.codegen import cuda, rocm
    from convopt.errors import ConvoptError
    from convopt.runtime.device import open_device
    from tests import cross_kernels

    try:
        if mark == "opencl":
            open_device("opencl")
        elif mark == "gpu":
            open_device("cuda")
        elif mark == "aarch64":
            return cross_kernels.missing()
        elif mark == "compilers":
            rocm.library_folder()
            rocm.find_lld()
            return None if cuda.find_nvcc() else cuda.MISSING
        elif mark == "hip":
            tools = {"hipcc": "hipcc", "clang++-19": "clang-19", "g++": "g++"}
            missing = [package for tool, package in tools.items() if not shutil.which(tool)]
            missing += [] if Path("/usr/include/hip/hip_runtime.h").is_file() else ["libamdhip64-dev"]
            return f"apt-get install {' '.join(missing)}" if missing else None
    except ConvoptError as error:
        return str(error)
    return None


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Tests that need a device or a compiler are skipped without it; in the CI only a GPU may be missing."""
    for mark in ("aarch64", "opencl", "compilers", "hip", "gpu"):
        if item.get_closest_marker(mark) is None or (reason := _missing(mark)) is None:
            continue
        if os.environ.get("CI") and mark != "gpu":
            pytest.fail(f"{mark}: {reason}", pytrace=False)
        pytest.skip(f"{mark}: {reason}")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="write golden files instead of comparing with them"
    )


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[..., None]:
    """golden(text) compares with the file `golden/<test name>.txt` beside the test's module.

    golden(text, "before") takes `golden/<test name>.before.txt`. --update-golden writes the file; without it
    a missing file fails like a different one.
    """
    folder = request.path.parent / "golden"
    update = request.config.getoption("--update-golden")

    def check(text: str, part: str = "") -> None:
        path: Path = folder / f"{request.node.name}{'.' if part else ''}{part}.txt"
        text = text.rstrip("\n") + "\n"
        if update:
            folder.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
            return
        if not path.exists():
            pytest.fail(f"no golden file {path}; pytest --update-golden writes it")
        assert text == path.read_text(encoding="utf-8"), (
            f"differs from {path}; pytest --update-golden rewrites it"
        )

    return check
