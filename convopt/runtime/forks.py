"""What a child process made by `os.fork` must forget: threads and held locks don't exist there.

Objects that own such things call `watch(self)` once; in a child their `after_fork` is called before anything
else runs.
"""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class ForkAware(Protocol):
    def after_fork(self) -> None: ...


_watched: weakref.WeakSet[ForkAware] = weakref.WeakSet()


def watch(thing: ForkAware) -> None:
    _watched.add(thing)


def _renew() -> None:
    for thing in list(_watched):
        thing.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)
