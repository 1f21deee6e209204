"""Graph passes: standard ONNX in, standard ONNX out. One pass per file; the order is that of the table."""

from convopt.passes.base import Note, Pass, PassContext, PassError, PassReport, run_passes, without
from convopt.passes.bind_shapes import BindShapes
from convopt.passes.fold_constants import FoldConstants
from convopt.passes.inline_functions import InlineFunctions
from convopt.passes.upgrade_opset import UpgradeOpset

GRAPH_PASSES: tuple[Pass, ...] = (
    InlineFunctions(),
    UpgradeOpset(),
    BindShapes(),
    FoldConstants(),
)

__all__ = [
    "GRAPH_PASSES",
    "Note",
    "Pass",
    "PassContext",
    "PassError",
    "PassReport",
    "run_passes",
    "without",
]
