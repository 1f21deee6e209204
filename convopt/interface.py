"""`convopt.optimize`: the one name for models of every kind."""

from __future__ import annotations

import os
import sys
from functools import wraps
from typing import TYPE_CHECKING, Any, overload

from convopt.compiler import optimize as optimize_onnx
from convopt.runtime.module import CompiledModule

if TYPE_CHECKING:
    import onnx_ir as ir
    from onnx import ModelProto
    from torch.export import ExportedProgram
    from torch.nn import Module

    from convopt.torch_backend.module import TorchModule


@overload
def optimize(
    source: str | os.PathLike[str] | bytes | ModelProto | ir.Model, *args: Any, **options: Any
) -> CompiledModule: ...
@overload
def optimize(source: Module | ExportedProgram, *args: Any, **options: Any) -> TorchModule: ...
@wraps(optimize_onnx)
def optimize(source: Any, *args: Any, **options: Any) -> Any:
    if _is_torch(source):
        from convopt.torch_backend.module import optimize_torch

        return optimize_torch(source, *args, **options)
    return optimize_onnx(source, *args, **options)


def _is_torch(source: Any) -> bool:
    """Whether it is a torch module or an exported program; torch is not imported to ask."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(source, (torch.nn.Module, torch.export.ExportedProgram))
