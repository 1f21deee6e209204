"""torch.compile(model, backend="convopt"), and `convopt.optimize` of torch modules. Imports torch when used.

dynamo or torch.export -> ATen graph -> shapes bound -> constants folded -> cut into what has a translation
and what stays in torch -> each part an ONNX model, compiled -> the graph again, its parts called
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch.fx import GraphModule


def backend(module: GraphModule, example_inputs: Any, **how: Any) -> Any:
    """What the entry point "convopt" of `torch_dynamo_backends` names; see `dynamo.compile_graph`."""
    from convopt.torch_backend.dynamo import compile_graph

    return compile_graph(module, example_inputs, **how)
