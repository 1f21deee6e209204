"""Python's cyclic garbage collector, while something is compiled."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def paused_collector() -> Iterator[None]:
    """No collection starts inside, nor inside a pause within it.

    Compiling makes objects by the hundred thousand; what they set off walks all of torch's objects as well,
    0.4 s of the 6 of a ResNet-50's first call.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
