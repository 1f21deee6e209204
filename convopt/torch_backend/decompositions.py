"""How far torch takes composite operators apart before they get here."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._ops import OpOverload

from convopt.frontends.torch.translate import TABLE

_RESIZES = ("nearest1d", "nearest2d", "nearest3d", "linear1d", "bilinear2d", "bicubic2d", "trilinear3d")


def _upsampling() -> Iterator[OpOverload]:
    """Torch has them as one operator each, and would trace them as tables of indices."""
    for name in _RESIZES:
        for operator in (f"upsample_{name}", f"_upsample_{name.replace('nearest', 'nearest_exact')}"):
            if packet := getattr(torch.ops.aten, operator, None):
                yield from (packet.default, packet.vec)


def for_export() -> dict[Any, Callable[..., Any]]:
    """What torch.export decomposes, less what has a translation as it is."""
    table: Any = torch.export.default_decompositions()
    for operator in (*TABLE, *_upsampling()):
        table.pop(operator, None)
    return dict(table)


@contextlib.contextmanager
def whole_upsampling() -> Iterator[None]:
    """Inside, AOTAutograd keeps upsampling whole: the Python kernels that decompose it are set aside.

    Where a version of torch has other ones the graph holds tables of indices, which are right and slower.
    """
    removed = []
    for operator in _upsampling():
        kernels, cache = operator.py_kernels, operator._dispatch_cache
        removed.append((kernels, cache, dict(kernels)))
        kernels.clear()
        cache.clear()
    try:
        yield
    finally:
        for kernels, cache, taken in removed:
            kernels.update(taken)
            cache.clear()
