"""Which element type the values between kernels have."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

NARROW = {"fp16": ir.DataType.FLOAT16, "bf16": ir.DataType.BFLOAT16}
PRECISIONS = ("fp32", "tf32", *NARROW)
# Of an output's scale, after all layers. float32: the bound that the project holds itself to. The others
# round every result, tf32 every factor, to 11 and 8 bits, and a network adds up a few dozen of those errors.
_TOLERANCES = {"fp32": 1e-4, "tf32": 4e-3, "fp16": 4e-3, "bf16": 3e-2}
_KEEP = "convopt.keep_fp32"


@dataclass(frozen=True)
class Precision:
    """name: of PRECISIONS; tf32 stores float32, and products round their factors to it. keep_fp32: names of
    nodes whose products and results stay float32.
    """

    name: str = "fp32"
    keep_fp32: frozenset[str] = frozenset()

    @property
    def tolerance(self) -> float:
        """Largest error of an output, relative to its scale, that this precision is allowed."""
        return _TOLERANCES[self.name]

    def keeping(self, nodes: frozenset[str]) -> Precision:
        return Precision(self.name, self.keep_fp32 | nodes)


FP32 = Precision()


def keep_fp32(group: ir.Node) -> None:
    """Marks a group whose products must be float32 even where its input is stored in 16 bits."""
    group.metadata_props[_KEEP] = "true"


def keeps_fp32(group: ir.Node) -> bool:
    return _KEEP in group.metadata_props
