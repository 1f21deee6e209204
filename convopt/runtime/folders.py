"""Where convopt keeps what it can make again."""

from __future__ import annotations

import os
from pathlib import Path

from convopt.errors import InputError


def cache_folder() -> Path:
    """$CONVOPT_CACHE, or convopt in the user's cache folder (XDG).

    InputError: the user has no home folder, as a bare number of a container has none.
    """
    if explicit := os.environ.get("CONVOPT_CACHE"):
        return Path(explicit)
    if base := os.environ.get("XDG_CACHE_HOME"):
        return Path(base) / "convopt"
    try:
        return Path.home() / ".cache" / "convopt"
    except RuntimeError:
        raise InputError(
            "no folder for the cache: this user has no home; set CONVOPT_CACHE or HOME, or give cache_dir"
        ) from None
