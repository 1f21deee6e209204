"""Where convopt keeps what it can make again."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """$CONVOPT_CACHE, or convopt in the user's cache folder (XDG)."""
    if explicit := os.environ.get("CONVOPT_CACHE"):
        return Path(explicit)
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "convopt"
