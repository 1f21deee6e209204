"""Graph passes: standard ONNX in, standard ONNX out. One pass per file; the order is that of the table."""

from convopt.passes.base import Note, Pass, PassContext, PassError, PassReport, run_passes, without
from convopt.passes.bind_shapes import BindShapes
from convopt.passes.cancel_transposes import CancelTransposes
from convopt.passes.canonicalise_conv import CanonicaliseConv
from convopt.passes.cleanup import Cleanup
from convopt.passes.fold_batchnorm import FoldBatchNorm
from convopt.passes.fold_constants import FoldConstants
from convopt.passes.inline_functions import InlineFunctions
from convopt.passes.merge_pad import MergePad
from convopt.passes.remove_no_ops import RemoveNoOps
from convopt.passes.upgrade_opset import UpgradeOpset
from convopt.passes.widen_types import WidenTypes

GRAPH_PASSES: tuple[Pass, ...] = (
    InlineFunctions(),
    BindShapes(),
    UpgradeOpset(),
    FoldConstants(),
    WidenTypes(),
    CanonicaliseConv(),
    CancelTransposes(),
    RemoveNoOps(),
    FoldBatchNorm(),
    MergePad(),
    Cleanup(),
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
