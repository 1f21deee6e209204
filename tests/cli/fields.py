"""The paths that occur in a JSON document, in the notation of `Command.fields`."""

from collections.abc import Collection, Iterator
from typing import Any


def paths(document: Any, known: Collection[str], prefix: str = "") -> Iterator[str]:
    """Every path to a leaf. An object is keyed by names (`a{}`) exactly where `known` says so."""
    if isinstance(document, dict):
        by_name = any(path.startswith(f"{prefix}{{}}") for path in known)
        for key, value in document.items():
            inner = f"{prefix}{{}}" if by_name else f"{prefix}.{key}" if prefix else key
            yield from paths(value, known, inner)
    elif isinstance(document, list):
        for value in document:
            yield from paths(value, known, f"{prefix}[]")
    else:
        yield prefix


def undocumented(document: dict[str, Any], known: Collection[str]) -> set[str]:
    return set(paths(document, known)) - set(known) - {"command"}
