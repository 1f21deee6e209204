"""The shape of the source tree: who may import whom, under which name, and how long a file may get."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCES = ("convopt", "passes", "schedules")
OURS = (*SOURCES, "tests", "examples")
LONGEST_FILE = 400

# room -> the rooms that it may import from. errors is open to all; the faces (cli, report, bench) and the
# compiler see everything below them. The runtime sees nothing of the compiling half.
MAY_IMPORT: dict[str, frozenset[str]] = {
    "errors": frozenset(),
    "sessions": frozenset(),
    "__main__": frozenset({"cli"}),
    "targets": frozenset(),
    "ir": frozenset({"sessions"}),
    "frontends": frozenset({"ir"}),
    "runtime": frozenset({"sessions"}),
    "analysis": frozenset({"ir", "targets"}),
    "schedules": frozenset({"targets"}),
    "selection": frozenset({"schedules", "targets"}),
    "codegen": frozenset({"runtime", "schedules", "targets"}),
    "lowering": frozenset({"codegen", "ir", "runtime", "schedules", "selection", "targets"}),
    "tuning": frozenset({"codegen", "lowering", "runtime", "schedules", "selection", "targets"}),
    "passes": frozenset({"analysis", "ir", "lowering", "selection", "sessions", "targets"}),
    "verification": frozenset({"ir", "passes", "runtime"}),
    "arguments": frozenset({"codegen", "ir", "runtime", "targets"}),
    "kernels": frozenset({"codegen", "runtime", "schedules", "selection", "targets"}),
    "grouping": frozenset({"ir", "lowering", "passes", "schedules", "selection", "targets", "tuning"}),
    "compiler": frozenset(
        {
            "codegen",
            "arguments",
            "frontends",
            "grouping",
            "ir",
            "lowering",
            "passes",
            "runtime",
            "schedules",
            "selection",
            "targets",
            "tuning",
            "verification",
        }
    ),
    "torch_backend": frozenset({"arguments", "frontends", "ir", "passes", "runtime", "verification"}),
    "interface": frozenset({"compiler", "runtime", "torch_backend"}),
    "report": frozenset({"runtime"}),
    "bench": frozenset(
        {"codegen", "frontends", "ir", "passes", "runtime", "schedules", "targets", "torch_backend"}
    ),
    "cli": frozenset(
        {
            "analysis",
            "arguments",
            "bench",
            "codegen",
            "compiler",
            "frontends",
            "grouping",
            "ir",
            "kernels",
            "lowering",
            "passes",
            "report",
            "runtime",
            "schedules",
            "selection",
            "selftest",
            "targets",
            "tuning",
        }
    ),
    "selftest": frozenset({"bench", "codegen", "runtime", "schedules", "selection", "targets"}),
}
# The package itself (`import convopt`) is the public interface: the faces use it.
MAY_IMPORT_PACKAGE = frozenset({"bench", "cli", "torch_backend"})


def _files(*folders: str) -> list[Path]:
    """Real files once each: convopt/passes and convopt/schedules are links to the folders at the top."""
    found = (path for folder in folders for path in sorted((ROOT / folder).rglob("*.py")))
    return [path for path in found if not any(parent.is_symlink() for parent in path.parents)]


def _imports(path: Path) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of every absolute import; `from a import b` is a.b."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def _room(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return parts[0] if parts[0] != "convopt" else parts[1]


def _place(path: Path, line: int) -> str:
    return f"{path.relative_to(ROOT)}:{line}"


def test_passes_and_schedules_are_imported_under_convopt_only() -> None:
    """As top-level modules they would exist twice, with two of every class."""
    wrong = [
        f"{_place(path, line)}: {name}"
        for path in _files(*OURS)
        for line, name in _imports(path)
        if name.split(".")[0] in SOURCES[1:]
    ]
    assert wrong == []


def test_rooms_import_in_one_direction() -> None:
    assert [fault for path in _files(*SOURCES) for fault in _faults(path)] == []


def _faults(path: Path) -> Iterator[str]:
    room = _room(path)
    if room == "__init__":
        return  # the package's face names what it offers
    assert room in MAY_IMPORT, f"{room}: a new room; say in MAY_IMPORT what it may use"
    for line, name in _imports(path):
        top, _, rest = name.partition(".")
        other = rest.split(".")[0]
        if top != "convopt":
            continue
        if not other:
            if room not in MAY_IMPORT_PACKAGE:
                yield f"{_place(path, line)}: {room} imports the package itself"
        elif other not in ("errors", "__version__", room) and other not in MAY_IMPORT[room]:
            yield f"{_place(path, line)}: {room} imports from {other}"


def test_the_table_has_no_cycle() -> None:
    done: set[str] = set()
    left = dict(MAY_IMPORT)
    while left:
        ready = [room for room, used in left.items() if used <= done]
        assert ready, f"a cycle among {sorted(left)}"
        done.update(ready)
        for room in ready:
            del left[room]


def test_files_stay_short() -> None:
    """A file that outgrows this has two rooms in it: split it."""
    lengths = {
        str(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").splitlines())
        for path in _files(*OURS)
    }
    assert {path: lines for path, lines in lengths.items() if lines > LONGEST_FILE} == {}


def test_only_code_generation_and_kernels_import_tvm() -> None:
    importers = {
        path for path in _files(*SOURCES) for _, name in _imports(path) if name.split(".")[0] == "tvm"
    }
    rpc = {ROOT / "convopt" / "tuning" / name for name in ("remote.py", "rpc.py")}  # TVM's RPC, nothing else
    assert {_room(path) for path in importers - rpc} <= {"codegen", "schedules"}
